import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { startEmbeddedPostgres } from "../../server/store/embedded-postgres.ts";
import { migrate } from "../../server/store/migrate.ts";
import { createPool } from "../../server/store/postgres.ts";
import { compareWindows } from "./compare.ts";

/** `npm run windows -- --samples 1000000 --seed 7` compares more windows with Temporal than the test does. */
const { values } = parseArgs({
  options: { samples: { type: "string", default: "200000" }, seed: { type: "string", default: "1" } },
});

const folder = await mkdtemp(join(tmpdir(), "holdfast-windows-"));
const postgres = await startEmbeddedPostgres({ dataFolder: join(folder, "data"), fsync: false });
try {
  await migrate(postgres.connection);
  const pool = createPool({ connection: postgres.connection, statementTimeoutMs: 60_000, answerTimeoutMs: 120_000 });
  const found = await compareWindows(pool, { samples: Number(values.samples), seed: Number(values.seed) });
  await pool.end();
  const { zones, changes, compared, leftOut, wrong } = found;
  process.stdout.write(
    `${compared} windows of ${zones} zones compared around ${changes} changes of the clocks; ` +
      `${leftOut} left out, where Postgres and Node know other clocks; ${wrong.length} wrong\n`,
  );
  for (const one of wrong.slice(0, 50)) process.stdout.write(`${one}\n`);
  process.exitCode = wrong.length === 0 ? 0 : 1;
} finally {
  await postgres.close();
  await rm(folder, { recursive: true, force: true });
}
