import { randomBytes } from "node:crypto";
import { Code, ConnectError } from "@connectrpc/connect";
import { ErrorInfoSchema } from "@holdfast/api/google/rpc/error_details_pb";
import { AuthorizationState, Settlement, VoidEvidence } from "@holdfast/api/holdfast/v1/spend_pb";
import { afterAll, beforeAll, expect, test } from "vitest";
import { billingPeriod, purpose } from "../crash/billing-call.ts";
import { type Desk, openDesk } from "../crash/desk.ts";

let desk: Desk;
let spend: ReturnType<Desk["spend"]>;
beforeAll(async () => {
  desk = await openDesk();
  spend = desk.spend();
});
afterAll(() => desk.close());

const money = { currency: "usd", amount: "1.00" };
const CENTS = 100;
const CALLERS = 64;

async function grant(customerId: string, settlement: Settlement = Settlement.RESEND_SAFE) {
  const attemptId = randomBytes(16).toString("hex");
  const { authorization } = await spend.authorizeSpend({
    spend: { customerId, billingPeriod, purpose, amount: money },
    vendor: "stripe",
    endpoint: settlement === Settlement.TWO_STEP ? "POST /v1/payment_intents" : "POST /v1/charges",
    settlement,
    ...(settlement === Settlement.RESEND_SAFE ? { resendSafeFor: { seconds: 3_600n } } : {}),
    attemptId,
  });
  return { name: authorization?.name ?? "", attemptId };
}

const reasonOf = (error: unknown) => {
  const failure = ConnectError.from(error);
  expect(failure.code).toBe(Code.FailedPrecondition);
  return failure.findDetails(ErrorInfoSchema)[0]?.reason;
};

async function outcomes(calls: readonly Promise<unknown>[]): Promise<{ won: number; reasons: unknown[] }> {
  const results = await Promise.allSettled(calls);
  const lost = results.filter((result) => result.status === "rejected");
  return { won: results.length - lost.length, reasons: lost.map(({ reason }) => reasonOf(reason)) };
}

test("32 commits and 32 voids of one authorization at once: one kind wins, the other is told which", async () => {
  for (let round = 0; round < 4; round += 1) {
    const customerId = `race-${round}`;
    const before = await desk.usage();
    const { name, attemptId } = await grant(customerId);
    const commit = () =>
      spend.commitSpend({ authorization: name, attemptId, amount: money, vendorReference: `ch_${round}` });
    const cancel = () => spend.voidSpend({ authorization: name, attemptId, evidence: VoidEvidence.NEVER_SENT });
    // Who is sent first alternates; who arrives first, nobody decides.
    const [first, second] = round % 2 === 0 ? [commit, cancel] : [cancel, commit];
    const one = Array.from({ length: CALLERS / 2 }, () => first());
    const other = Array.from({ length: CALLERS / 2 }, () => second());
    const [commits, voids] = await Promise.all(
      round % 2 === 0 ? [outcomes(one), outcomes(other)] : [outcomes(other), outcomes(one)],
    );
    const { authorization } = await spend.getAuthorization({ lookup: { case: "name", value: name } });
    const committed = authorization?.state === AuthorizationState.COMMITTED;
    expect(commits.won).toBe(committed ? CALLERS / 2 : 0);
    expect(voids.won).toBe(committed ? 0 : CALLERS / 2);
    expect(new Set([...commits.reasons, ...voids.reasons])).toEqual(
      new Set([committed ? "ALREADY_COMMITTED" : "ALREADY_VOIDED"]),
    );
    // A charge that comes after a void is money all the same: it counts, once, as a contradiction.
    expect(await desk.usage()).toEqual({ ...before, committed: before.committed + CENTS });
    const kinds = (await desk.events(customerId)).map(({ kind }) => kind);
    expect(kinds.filter((kind) => kind === "spend.committed")).toHaveLength(committed ? 1 : 0);
    expect(kinds.filter((kind) => kind === "spend.voided")).toHaveLength(committed ? 0 : 1);
    expect(kinds.filter((kind) => kind === "spend.contradiction")).toHaveLength(committed ? 0 : 1);
  }
});

test("a bound object keeps 64 voids without its tombstone away, and the commit is taken", async () => {
  const { name, attemptId } = await grant("bound", Settlement.TWO_STEP);
  await spend.bindVendorReference({ authorization: name, attemptId, vendorReference: "pi_bound" });
  const evidence: readonly VoidEvidence[] = [VoidEvidence.NEVER_SENT, VoidEvidence.VENDOR_REFUSED];
  const voids = Array.from({ length: CALLERS }, (_, n) =>
    spend.voidSpend({
      authorization: name,
      attemptId,
      evidence: evidence[n % evidence.length] as VoidEvidence,
      vendorStatus: n % evidence.length === 1 ? 402 : 0,
    }),
  );
  expect(await outcomes(voids)).toEqual({ won: 0, reasons: voids.map(() => "EVIDENCE_INSUFFICIENT") });
  const { authorization } = await spend.commitSpend({
    authorization: name,
    attemptId,
    amount: money,
    vendorReference: "pi_bound",
  });
  expect(authorization?.state).toBe(AuthorizationState.COMMITTED);
});
