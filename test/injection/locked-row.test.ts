import { Code } from "@connectrpc/connect";
import { Disposition } from "@holdfast/api/holdfast/v1/spend_pb";
import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import { openPaused } from "../support/paused.ts";
import { startTestServer, type TestServer } from "../support/server.ts";
import { dollar, refusalOf } from "./spend-call.ts";

let server: TestServer;

beforeAll(async () => {
  server = await startTestServer();
});
afterAll(() => server.close());

test("an operator who locks one cap's row: its callers are refused in time, the others never", async () => {
  const tokens = { locked: await server.vaultKey("locked"), free: await server.vaultKey("free") };
  await server.cap("locked", "1000", { scope: { vaultKey: "vaultKeys/locked" } });
  await server.cap("free", "1000", { scope: { vaultKey: "vaultKeys/free" } });
  const clients = { locked: server.spend(tokens.locked), free: server.spend(tokens.free) };
  const granted = await Promise.all(
    (["locked", "free"] as const).flatMap((who) =>
      Array.from({ length: 4 }, (_, n) => clients[who].authorizeSpend(dollar(`first-${n}`, who))),
    ),
  );
  const paused = await openPaused(server.database.pool);
  onTestFinished(() => paused.release());
  await paused.client.query("select from holdfast.counters where cap_id = 'locked' for update");
  // Two rounds: the first finds the lock, the second knows of it. The lock stays until everybody has an answer.
  for (let round = 0; round < 2; round += 1) {
    const call = async (who: "locked" | "free", n: number) =>
      await clients[who].authorizeSpend(dollar(`r${round}-${n}`, who)).then(
        ({ disposition }) => ({ who, disposition }),
        (error: unknown) => ({ who, ...refusalOf(error) }),
      );
    const answers = await Promise.all(Array.from({ length: 40 }, (_, n) => call(n % 2 === 0 ? "locked" : "free", n)));
    const wrong = answers.filter((one) =>
      one.who === "free"
        ? !("disposition" in one && one.disposition === Disposition.GRANTED)
        : !("code" in one && one.code === Code.Unavailable && one.reason === "DATABASE_UNAVAILABLE" && one.retryInfo),
    );
    expect(wrong, `round ${round}`).toEqual([]);
  }
  // So are commits.
  const settled = await Promise.all(
    granted.map(({ authorization }, n) =>
      clients[n < 4 ? "locked" : "free"]
        .commitSpend({
          authorization: authorization?.name ?? "",
          amount: { currency: "usd", amount: "1" },
          vendorReference: `pi_${n}`,
        })
        .then(() => "committed", refusalOf),
    ),
  );
  expect(settled.slice(4)).toEqual(Array.from({ length: 4 }, () => "committed"));
  expect(new Set(settled.slice(0, 4).map((one) => (typeof one === "string" ? one : one.reason)))).toEqual(
    new Set(["DATABASE_UNAVAILABLE"]),
  );
  paused.release();
  expect(await clients.locked.authorizeSpend(dollar("after", "locked"))).toMatchObject({
    disposition: Disposition.GRANTED,
  });
});
