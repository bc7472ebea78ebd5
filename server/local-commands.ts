import { type App, startApp } from "./app.ts";
import { type Config, readConfig } from "./config.ts";
import { openQuickstart, printQuickstart, printRefusedToken, quickstartConfig } from "./quickstart.ts";
import { recoveryReport } from "./recovery-report.ts";
import { exitCodes, StartupError } from "./startup-error.ts";
import { startEmbeddedPostgres } from "./store/embedded-postgres.ts";
import { recover } from "./store/instance.ts";
import { migrate } from "./store/migrate.ts";
import { createWorkspace, workspaceReport } from "./workspace-command.ts";

type Environment = Readonly<Record<string, string | undefined>>;

/** Runs a command that needs no server. Returns the exit code, or undefined while a server goes on running. */
export async function runLocal(env: Environment, args: readonly string[]): Promise<number | undefined> {
  const [command, ...flags] = args;
  switch (command) {
    case "serve":
      return await serve(readConfig(env, flags));
    case "health":
      throw new StartupError("usage", "health takes no flags: it asks the server of its own environment.");
    case "migrate":
      return await migrateOnly(readConfig(env, flags));
    case "recover":
      return await recoverOnly(
        readConfig(
          env,
          flags.filter((flag) => flag !== "--restored"),
        ),
        flags.includes("--restored"),
      );
    case "workspace":
      return await workspaceOnly(env, flags);
    default:
      throw new StartupError("usage", `${command ?? "nothing"} is not a command; see holdfast --help.`);
  }
}

async function serve(config: Config): Promise<undefined> {
  const embedded = config.database.kind === "embedded" ? config.database : undefined;
  const prepared = embedded === undefined ? config : quickstartConfig(config, embedded.dataFolder);
  const app = await startApp(prepared);
  stopOnSignals(() => app.close());
  if (embedded === undefined) return;
  const others = otherAddresses(app);
  if (prepared.tls !== undefined) {
    // Whether its own client would trust the certificate cannot be known, so nothing is tried out.
    process.stdout.write(`Holdfast is running at ${app.url}\noperator token: ${prepared.operatorToken ?? ""}\n`);
    process.stdout.write(others);
    return;
  }
  try {
    const quickstart = await openQuickstart(app.url, prepared, embedded.dataFolder);
    // Services have vault keys: that nobody can look after it for now is no reason to stop.
    if (quickstart === undefined) printRefusedToken(app.url, embedded.dataFolder);
    else printQuickstart(quickstart);
    process.stdout.write(others);
  } catch (error) {
    // What was promised cannot be shown, and a server nobody can talk to is no use.
    await app.close();
    throw error;
  }
}

/** Where else it listens, a line each. */
function otherAddresses({ stripeProxyUrl, metricsUrl }: Pick<App, "stripeProxyUrl" | "metricsUrl">): string {
  const lines = [
    ["Stripe proxy", stripeProxyUrl],
    ["metrics", metricsUrl],
  ] as const;
  return lines.map(([name, url]) => (url === undefined ? "" : `${name}: ${url}\n`)).join("");
}

async function migrateOnly(config: Config): Promise<number> {
  if (config.database.kind !== "url") {
    throw new StartupError("usage", "migrate needs DATABASE_URL; the embedded database is migrated when it starts.");
  }
  const applied = await migrate({ connectionString: config.database.url });
  const what = applied.length === 0 ? "nothing to do" : applied.join(", ");
  process.stdout.write(`migrate: ${what}\n`);
  return exitCodes.ok;
}

async function recoverOnly(config: Config, force: boolean): Promise<number> {
  const { database } = config;
  const embedded = database.kind === "embedded" ? await startEmbeddedPostgres(database) : undefined;
  try {
    const connection = database.kind === "url" ? { connectionString: database.url } : embedded?.connection;
    process.stdout.write(recoveryReport(await recover(connection ?? {}, { force })));
  } finally {
    await embedded?.close();
  }
  return exitCodes.ok;
}

async function workspaceOnly(env: Environment, [action, workspace, ...more]: readonly string[]): Promise<number> {
  if (action !== "create" || workspace === undefined || more.length > 0) {
    throw new StartupError("usage", "There is one such command: holdfast workspace create <id>.");
  }
  const token = await createWorkspace(readConfig(env, []), workspace);
  process.stdout.write(workspaceReport(workspace, token));
  return exitCodes.ok;
}

function stopOnSignals(close: () => Promise<void>): void {
  let stopping = false;
  const stop = (): void => {
    // A second signal is from someone who does not want to wait.
    if (stopping) process.exit(exitCodes.bug);
    stopping = true;
    void close().then(() => process.exit(exitCodes.ok));
  };
  process.on("SIGINT", stop);
  process.on("SIGTERM", stop);
}
