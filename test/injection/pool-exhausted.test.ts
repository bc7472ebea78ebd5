import { Code } from "@connectrpc/connect";
import { Disposition } from "@holdfast/api/holdfast/v1/spend_pb";
import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import { openPaused } from "../support/paused.ts";
import { startTestServer, type TestServer } from "../support/server.ts";
import { dollar, refusalOf, untilAnswered } from "./spend-call.ts";

let server: TestServer;
let token: string;

beforeAll(async () => {
  server = await startTestServer({ config: { poolSize: 2, queueMax: 50 } });
  token = await server.vaultKey("main");
  await server.cap("all", "1000");
});
afterAll(() => server.close());

test("with two connections and one slow statement, 500 callers are all answered, the surplus at once", async () => {
  const spends = server.spend(token);
  await spends.authorizeSpend(dollar("known"));
  const paused = await openPaused(server.database.pool);
  onTestFinished(() => paused.release());
  await paused.client.query("select from holdfast.counters for update");
  // The lock is kept until everybody has an answer: nobody may depend on its end.
  const requests = Array.from({ length: 500 }, (_, n) => dollar(`c${n}`));
  const answers = await Promise.all(
    requests.map((request) => spends.authorizeSpend(request).then(() => "granted", refusalOf)),
  );
  const full = { code: Code.ResourceExhausted, reason: "QUEUE_FULL", retryInfo: true };
  const busy = { code: Code.Unavailable, reason: "DATABASE_UNAVAILABLE", retryInfo: true };
  expect(answers).toContainEqual(full);
  expect(answers).toContainEqual(busy);
  const others = answers.filter((one) => JSON.stringify(one) !== JSON.stringify(full));
  expect(others.filter((one) => JSON.stringify(one) !== JSON.stringify(busy))).toEqual([]);
  paused.release();
  const after = await Promise.all(
    requests.slice(0, 40).map((request) => untilAnswered(() => spends.authorizeSpend(request))),
  );
  expect(after.filter(({ disposition }) => disposition !== Disposition.GRANTED)).toEqual([]);
  const { usage } = await server.admin.getCap({ name: "caps/all" });
  expect(usage?.held?.amount).toBe("41");
});
