import { env } from "node:process";
import fc from "fast-check";
import { afterAll, beforeAll, expect, test } from "vitest";
import { explain, histories, runHistory } from "./history.ts";
import { type HistoryServer, startHistoryServer } from "./history-server.ts";

/**
 * `HISTORY_RUNS=2000 HISTORY_SEED=7 vitest run test/property/histories` looks longer, or at other histories;
 * with the HISTORY_PATH that a failure prints it runs the failing history alone.
 */
const runs = Number(env["HISTORY_RUNS"] ?? 60);
const seed = Number(env["HISTORY_SEED"] ?? Date.now() % 1_000_000);

let server: HistoryServer;

beforeAll(async () => {
  server = await startHistoryServer();
});
afterAll(async () => {
  await server?.close();
});

test(`a server answers as the model does (${runs} histories, seed ${seed})`, { timeout: 600_000 }, async () => {
  const property = fc.asyncProperty(histories(60), async (history) => {
    const { systems } = await server.open();
    const found = await runHistory(history, systems[0]);
    if (found !== null) throw new Error(explain(found));
  });
  const path = env["HISTORY_PATH"];
  const replay = path === undefined ? {} : { path };
  const result = await fc.check(property, { numRuns: runs, seed, interruptAfterTimeLimit: 500_000, ...replay });
  const failure = result.errorInstance instanceof Error ? result.errorInstance.message : String(result.errorInstance);
  expect(result.failed ? `HISTORY_SEED=${seed} HISTORY_PATH=${result.counterexamplePath ?? ""}: ${failure}` : "").toBe(
    "",
  );
});
