import { randomBytes } from "node:crypto";
import { type Client, Code, ConnectError } from "@connectrpc/connect";
import { ErrorInfoSchema } from "@holdfast/api/google/rpc/error_details_pb";
import type { AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import { OperatorRole } from "@holdfast/api/holdfast/v1/operator_pb";
import { LeaseOutcome, type SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { Settlement, VoidEvidence } from "@holdfast/api/holdfast/v1/spend_pb";
import { afterAll, beforeAll, expect, test } from "vitest";
import { openPaused } from "../support/paused.ts";
import { startTestServer, type TestServer } from "../support/server.ts";

let server: TestServer;
let keyToken: string;

beforeAll(async () => {
  server = await startTestServer({ protocol: "grpc" });
  keyToken = await server.vaultKey("main");
});
afterAll(() => server.close());

const amount = { currency: "usd", amount: "10" };
const reason = "seen in the dashboard";

async function doubted(): Promise<string> {
  const attemptId = randomBytes(16).toString("hex");
  const { authorization } = await server.spend(keyToken).authorizeSpend({
    spend: { customerId: `c${attemptId}`, billingPeriod: "2026-11", purpose: "subscription", amount },
    vendor: "stripe",
    endpoint: "POST /v1/payment_intents",
    attemptId,
    settlement: Settlement.SEND_ONCE,
  });
  const name = authorization?.name ?? "";
  await server.spend(keyToken).reportUnknown({ authorization: name, attemptId });
  return name;
}

async function contradicted(): Promise<string> {
  const authorization = await doubted();
  const told = { authorization, amount };
  await server.spend(keyToken).commitSpend({ ...told, vendorReference: `a${authorization.slice(-20)}` });
  const second = server.spend(keyToken).commitSpend({ ...told, vendorReference: `b${authorization.slice(-20)}` });
  await expect(second).rejects.toThrow();
  const { contradictions } = await server.admin.listContradictions({ pageSize: 200 });
  return contradictions.find((one) => one.authorization === authorization)?.name ?? "";
}

async function completed(): Promise<{ lease: string; billingPeriod: string }> {
  const name = { lease: `job${randomBytes(4).toString("hex")}`, billingPeriod: "2026-11" };
  const holder = { ...name, holderId: "h1" };
  const { billingLease } = await server.spend(keyToken).acquireBillingLease({ ...holder, ttl: { seconds: 60n } });
  const fencingToken = billingLease?.fencingToken ?? 0n;
  await server.spend(keyToken).releaseBillingLease({ ...holder, fencingToken, outcome: LeaseOutcome.COMPLETED });
  return name;
}

interface Caller {
  readonly admin: Client<typeof AdminService>;
  readonly spend: Client<typeof SpendControlService>;
}

/** What an operator may say outside of the policy, each about a thing that is made for it. */
const words: Readonly<Record<string, () => Promise<(caller: Caller) => Promise<unknown>>>> = {
  "resolves committed": async () => {
    const name = await doubted();
    const value = { amount, vendorReference: `ch${name.slice(-20)}` };
    return ({ admin }) => admin.resolveAuthorization({ name, reason, resolution: { case: "committed", value } });
  },
  "resolves voided": async () => {
    const name = await doubted();
    return ({ admin }) => admin.resolveAuthorization({ name, reason, resolution: { case: "voided", value: {} } });
  },
  commits: async () => {
    const authorization = await doubted();
    return ({ spend }) =>
      spend.commitSpend({ authorization, amount, vendorReference: `ch${authorization.slice(-20)}` });
  },
  voids: async () => {
    const authorization = await doubted();
    return ({ spend }) => spend.voidSpend({ authorization, evidence: VoidEvidence.OPERATOR, reason });
  },
  "closes a contradiction": async () => {
    const name = await contradicted();
    return ({ admin }) => admin.closeContradiction({ name, reason });
  },
  "reopens a billing lease": async () => {
    const name = await completed();
    return ({ admin }) => admin.reopenBillingLease({ ...name, reason });
  },
};

/** Everything that such a word changes. */
async function state(): Promise<unknown> {
  const { rows } = await server.database.pool.query(
    `select (select jsonb_agg(t order by t.spend_key) from holdfast.authorizations t) as authorizations,
       (select jsonb_agg(c order by c.contradiction_id) from holdfast.contradictions c) as contradictions,
       (select jsonb_agg(c order by c.vendor_reference) from holdfast.vendor_charges c) as charges,
       (select jsonb_agg(l order by l.lease) from holdfast.billing_leases l) as leases`,
  );
  return rows;
}

test.each(Object.entries(words))("an operator who %s behind the revocation changes nothing", async (_what, prepare) => {
  const operatorId = `o${randomBytes(4).toString("hex")}`;
  const { token } = await server.admin.createOperator({ operatorId, role: OperatorRole.OPERATOR });
  const say = await prepare();
  const before = await state();
  const paused = await openPaused(server.database.pool);
  try {
    await paused.client.query("update holdfast.operators set revoke_time = now() where operator_id = $1", [operatorId]);
    const late = say({ admin: server.adminAs(token), spend: server.spend(token) });
    await paused.expectBlocking(late);
    await paused.commit();
    const error = await late.then(
      () => expect.fail("the call was not refused"),
      (cause: unknown) => ConnectError.from(cause),
    );
    expect(error.code).toBe(Code.Unauthenticated);
    expect(error.findDetails(ErrorInfoSchema)[0]?.reason).toBe("INVALID_TOKEN");
  } finally {
    paused.release();
  }
  expect(await state()).toEqual(before);
});
