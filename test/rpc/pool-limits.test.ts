import { randomBytes } from "node:crypto";
import { Code, ConnectError } from "@connectrpc/connect";
import { ErrorInfoSchema, RetryInfoSchema } from "@holdfast/api/google/rpc/error_details_pb";
import { Disposition } from "@holdfast/api/holdfast/v1/spend_pb";
import type pg from "pg";
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from "vitest";
import { createToken } from "../../server/rpc/auth.ts";
import { startTestServer, type TestServer } from "../support/server.ts";

let server: TestServer;
let token: string;
/** Holds what the calls wait for. */
let blocker: pg.PoolClient;

beforeAll(async () => {
  server = await startTestServer({ protocol: "grpc", config: { poolSize: 4 } });
  token = await server.vaultKey("main");
});
afterAll(() => server.close());
beforeEach(async () => {
  blocker = await server.database.pool.connect();
  await blocker.query("begin");
});
afterEach(() => blocker.release());

const request = (dryRun: boolean) => ({
  spend: {
    customerId: `c_${randomBytes(8).toString("hex")}`,
    billingPeriod: "2026-11",
    purpose: "subscription",
    amount: { currency: "usd", amount: "1" },
  },
  vendor: "stripe",
  endpoint: "POST /v1/payment_intents",
  attemptId: randomBytes(16).toString("hex"),
  dryRun,
});

// One runs and 100 wait; what comes beyond is refused. Far below what one HTTP/2 session carries at once.
const FLOOD = 160;

/** Calls at once until one is refused because too many wait, and returns that refusal and all the calls. */
async function flood(call: () => Promise<unknown>): Promise<{ refused: ConnectError; waiting: Promise<unknown>[] }> {
  const refusal = Promise.withResolvers<ConnectError>();
  const waiting: Promise<unknown>[] = [];
  const one = () =>
    call().catch((error: unknown) => {
      const failure = ConnectError.from(error);
      if (failure.code === Code.ResourceExhausted) refusal.resolve(failure);
      return failure;
    });
  for (let calls = 0; calls < FLOOD; calls += 1) waiting.push(one());
  return { refused: await refusal.promise, waiting };
}

function expectQueueFull(refused: ConnectError): void {
  expect(refused.findDetails(ErrorInfoSchema)[0]?.reason).toBe("QUEUE_FULL");
  expect(refused.findDetails(RetryInfoSchema)[0]?.retryDelay).toBeDefined();
}

test("dry runs that wait take no connection from others, and too many are refused", async () => {
  const spends = server.spend(token);
  const { authorization } = await spends.authorizeSpend(request(false));
  const lookup = { case: "name" as const, value: authorization?.name ?? "" };
  await blocker.query("select from holdfast.workspaces for update");
  const { refused, waiting } = await flood(() => spends.authorizeSpend(request(true)));
  expectQueueFull(refused);
  expect((await spends.getAuthorization({ lookup })).authorization?.name).toBe(lookup.value);
  await blocker.query("commit");
  const answers = await Promise.all(waiting);
  expect(answers.filter((one) => !(one instanceof ConnectError)).length).toBeGreaterThan(10);
  expect(await spends.authorizeSpend(request(true))).toMatchObject({ disposition: Disposition.GRANTED });
});

test("tokens that nobody has seen take no connection from others, and too many are refused", async () => {
  const spends = server.spend(token);
  const { authorization } = await spends.authorizeSpend(request(false));
  const lookup = { case: "name" as const, value: authorization?.name ?? "" };
  await blocker.query("lock table holdfast.vault_keys in access exclusive mode");
  const strangers = server.spend();
  let made = 0;
  const { refused, waiting } = await flood(async () => {
    made += 1;
    const authorization = `Bearer ${createToken("vk", "default", `stranger${made}`)}`;
    return await strangers.authorizeSpend(request(false), { headers: { authorization } });
  });
  expectQueueFull(refused);
  expect((await spends.getAuthorization({ lookup })).authorization?.name).toBe(lookup.value);
  await blocker.query("commit");
  const codes = (await Promise.all(waiting)).map((one) => (one as ConnectError).code);
  expect(codes).toContain(Code.Unauthenticated);
  expect((await spends.authorizeSpend(request(false))).disposition).toBe(Disposition.GRANTED);
});
