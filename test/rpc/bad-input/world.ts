import { randomBytes } from "node:crypto";
import { CapWindow } from "@holdfast/api/holdfast/v1/cap_pb";
import { OperatorRole } from "@holdfast/api/holdfast/v1/operator_pb";
import { Settlement } from "@holdfast/api/holdfast/v1/spend_pb";
import { LeaseOutcome } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { startTestServer, type TestServer } from "../../support/server.ts";
import { startStripeSimulator } from "../../support/stripe-simulator/index.ts";

export const secret = "sk_test_4eC39HqLyjWDarjtT1zdp7dc";
export const otherSecret = "sk_test_51Nv0dFrTz8QpWmKcXbYhGjLsR";
export const endpoint = "POST /v1/payment_intents";

/** What there is for the valid requests to name. */
export interface Things {
  /** Attempts and names of authorizations, by what is done with them. */
  readonly held: Readonly<Record<"commit" | "batch" | "void" | "unknown" | "increase" | "bind", Held>>;
  readonly doubted: Readonly<Record<"committed" | "voided" | "finding", Held>>;
  readonly contradiction: string;
  /** Of a spend with the purpose "sub" in "2026-11". */
  readonly customer: string;
  readonly killSwitch: string;
  readonly run: string;
  readonly fencingToken: string;
}

interface Held {
  readonly name: string;
  readonly attempt: string;
}

export interface World {
  readonly server: TestServer;
  readonly things: Things;
  readonly tokens: { readonly vaultKey: string; readonly operator: string };
  close(): Promise<void>;
}

export const attempt = (): string => randomBytes(16).toString("hex");
const usd = (amount: string) => ({ currency: "usd", amount });
const hour = { seconds: 3600n };
export const fence = { lease: "nightly", billingPeriod: "2026-11", holderId: "holder" };

export async function openWorld(): Promise<World> {
  const simulator = await startStripeSimulator({
    secrets: { [secret]: "acct_platform", [otherSecret]: "acct_platform" },
  });
  const server = await startTestServer({
    config: {
      credentialKeys: { current: Buffer.alloc(32, 7), previous: undefined },
      stripeOrigin: simulator.url,
      // The reconciler changes rows; here only the calls may.
      reconcileIntervalMs: 3_600_000,
    },
  });
  const vaultKey = await server.vaultKey("main");
  const things = await fill(server, vaultKey);
  return {
    server,
    things,
    tokens: { vaultKey, operator: server.operatorToken },
    close: async () => {
      await server.close();
      await simulator.close();
    },
  };
}

async function fill(server: TestServer, vaultKey: string): Promise<Things> {
  const { admin } = server;
  const spends = server.spend(vaultKey);
  for (const key of ["rotated", "suspended", "resumed", "revoked", "updated"]) await server.vaultKey(key);
  await server.cap("total", "1000000");
  await server.cap("archived", "100000");
  await server.cap("changed", "100000", { maxPerSpend: usd("50") });
  await server.cap("attachable", "100000", { attachedOnly: true });
  await server.cap("daily", "1000000", { window: CapWindow.DAY, perCustomer: true });
  for (const operatorId of ["rotated", "revoked"]) {
    await admin.createOperator({ operatorId, role: OperatorRole.AUDITOR });
  }
  await admin.createVendorCredential({ vendorCredentialId: "stripe", vendor: "stripe", secret });
  const held = async (settlement: Settlement = Settlement.TWO_STEP): Promise<Held> => {
    const attemptId = attempt();
    const spend = { customerId: `cust_${attemptId}`, billingPeriod: "2026-11", purpose: "sub", amount: usd("10") };
    const { authorization } = await spends.authorizeSpend({ spend, vendor: "stripe", endpoint, attemptId, settlement });
    return { name: authorization?.name ?? "", attempt: attemptId };
  };
  const doubted = async (): Promise<Held> => {
    const made = await held(Settlement.SEND_ONCE);
    await spends.reportUnknown({ authorization: made.name, attemptId: made.attempt });
    return made;
  };
  const twice = await held();
  for (const vendorReference of ["pi_first", "pi_second"]) {
    await spends.commitSpend({ authorization: twice.name, amount: usd("10"), vendorReference }).catch(() => {});
  }
  const { contradictions } = await admin.listContradictions({});
  const target = { target: { case: "customerId" as const, value: "stopped" } };
  const { killSwitch } = await admin.engageKillSwitch({ target, reason: "for a reason" });
  const { reconciliationRun } = await admin.startReconciliationRun({ vendor: "stripe" });
  const { billingLease } = await spends.acquireBillingLease({ ...fence, ttl: hour });
  const done = { ...fence, lease: "done" };
  const { billingLease: ended } = await spends.acquireBillingLease({ ...done, ttl: hour });
  const { fencingToken = 0n } = ended ?? {};
  await spends.releaseBillingLease({ ...done, fencingToken, outcome: LeaseOutcome.COMPLETED });
  return {
    held: {
      commit: await held(),
      batch: await held(),
      void: await held(),
      unknown: await held(),
      increase: await held(),
      bind: await held(),
    },
    doubted: { committed: await doubted(), voided: await doubted(), finding: await doubted() },
    contradiction: contradictions[0]?.name ?? "",
    customer: `cust_${twice.attempt}`,
    killSwitch: killSwitch?.name ?? "",
    run: reconciliationRun?.name ?? "",
    fencingToken: `${billingLease?.fencingToken ?? 0n}`,
  };
}
