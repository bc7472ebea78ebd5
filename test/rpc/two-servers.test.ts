import { Code, ConnectError } from "@connectrpc/connect";
import { randomBytes } from "node:crypto";
import { Disposition, Settlement } from "@holdfast/api/holdfast/v1/spend_pb";
import { afterAll, beforeAll, expect, test } from "vitest";
import { startTestServer, type TestServer } from "../support/server.ts";

let server: TestServer;

beforeAll(async () => {
  server = await startTestServer({ servers: 2 });
});
afterAll(() => server.close());

function asks(customerId: string, vaultKey = "x") {
  return {
    spend: { customerId, billingPeriod: "2026-11", purpose: vaultKey, amount: { currency: "usd", amount: "10" } },
    vendor: "stripe",
    endpoint: "POST /v1/payment_intents",
    attemptId: randomBytes(16).toString("hex"),
    settlement: Settlement.SEND_ONCE,
  };
}

/** Repeats what a server gave up on while the other one, stalled, held the lock. */
async function untilAnswered<Answer>(ask: () => Promise<Answer>): Promise<Answer> {
  for (;;) {
    try {
      return await ask();
    } catch (error) {
      if (ConnectError.from(error).code !== Code.Unavailable) throw error;
    }
  }
}

function authorize(client: ReturnType<TestServer["spend"]>, request: ReturnType<typeof asks>) {
  return untilAnswered(() => client.authorizeSpend(request));
}

test("two servers never grant more than one cap allows", async () => {
  const token = await server.vaultKey("shared");
  await server.cap("shared", "505", { scope: { vaultKey: "vaultKeys/shared" } });
  const clients = [server.spend(token, 0), server.spend(token, 1)] as const;
  const answers = await Promise.all(
    Array.from({ length: 200 }, (_, n) => authorize(clients[n % 2] ?? clients[0], asks(`c${n}`))),
  );
  expect(answers.filter(({ disposition }) => disposition === Disposition.GRANTED)).toHaveLength(50);
  const { usage } = await server.admin.getCap({ name: "caps/shared" });
  expect(usage).toMatchObject({ held: { amount: "500" }, headroom: { amount: "5" } });
});

test("one spend that both servers are asked for is granted once", async () => {
  const token = await server.vaultKey("pair");
  const clients = [server.spend(token, 0), server.spend(token, 1)] as const;
  for (let round = 0; round < 20; round += 1) {
    const answers = await Promise.all(clients.map((client) => authorize(client, asks(`s${round}`, "pair"))));
    const dispositions = new Set(answers.map(({ disposition }) => disposition));
    expect(dispositions).toEqual(new Set([Disposition.GRANTED, Disposition.IN_PROGRESS]));
  }
});

test("a revoke on one server is in force on the other when it returns, under load on both", async () => {
  const token = await server.vaultKey("doomed");
  await server.cap("doomed", "1000000", { scope: { vaultKey: "vaultKeys/doomed" } });
  const clients = [server.spend(token, 0), server.spend(token, 1)] as const;
  let revoked = false;
  let late = 0;
  let granted = 0;
  const callers = Array.from({ length: 16 }, async (_, n) => {
    for (let round = 0; ; round += 1) {
      const begunAfter = revoked;
      const answer = await authorize(clients[n % 2] ?? clients[0], asks(`${n}-${round}`, "doomed"));
      if (answer.disposition === Disposition.GRANTED) {
        granted += 1;
        if (begunAfter) late += 1;
      } else {
        return;
      }
    }
  });
  while (granted < 100) await untilAnswered(() => server.admin.getCap({ name: "caps/doomed" }));
  const { openAuthorizationCount } = await untilAnswered(() =>
    server.admin.revokeVaultKey({ name: "vaultKeys/doomed" }),
  );
  revoked = true;
  await Promise.all(callers);
  expect(late).toBe(0);
  // What the answer listed is all there ever was: nothing came after it.
  expect(openAuthorizationCount).toBe(BigInt(granted));
});
