import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { startEmbeddedPostgres } from "../../server/store/embedded-postgres.ts";
import { given, serveParent } from "../child.ts";

/**
 * A durable Postgres in a folder of its own, which goes with it. In a process of its own, so that both are gone also when
 * whoever started it is killed.
 */
const folder = await mkdtemp(join(tmpdir(), "holdfast-bench-"));
const postgres = await startEmbeddedPostgres({
  dataFolder: join(folder, "data"),
  settings: JSON.parse(given().settings ?? "{}") as Record<string, string>,
});
serveParent({ folder, connection: JSON.stringify(postgres.connection), pid: String(postgres.pid) }, async () => {
  await postgres.close();
  await rm(folder, { recursive: true, force: true, maxRetries: 5 });
});
