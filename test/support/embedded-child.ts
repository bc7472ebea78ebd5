import { startEmbeddedPostgres } from "../../server/store/embedded-postgres.ts";
import { StartupError } from "../../server/startup-error.ts";

// A server process that only runs the embedded Postgres on the folder in its first argument. It prints one line with
// what it started, and then stays until it is killed.
const [, , dataFolder = ""] = process.argv;
try {
  const postgres = await startEmbeddedPostgres({ dataFolder });
  process.stdout.write(`${JSON.stringify({ pid: postgres.pid, connection: postgres.connection })}\n`);
  process.on("SIGTERM", () => {
    void postgres.close().then(() => process.exit(0));
  });
} catch (error) {
  process.stdout.write(`${String(error)}\n`);
  process.exit(error instanceof StartupError ? error.exitCode : 1);
}
