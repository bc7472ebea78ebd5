import { randomBytes } from "node:crypto";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { type Client, Code, ConnectError, createClient } from "@connectrpc/connect";
import { BadRequestSchema, ErrorInfoSchema } from "@holdfast/api/google/rpc/error_details_pb";
import {
  AuthorizationState,
  DenialRule,
  Direction,
  Disposition,
  Settlement,
  VoidEvidence,
} from "@holdfast/api/holdfast/v1/spend_pb";
import {
  type AuthorizeSpendRequestSchema,
  LeaseAnswer,
  LeaseOutcome,
  SpendControlService,
} from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { startTestServer, type TestServer } from "../support/server.ts";

/** The fields of a request, not the message itself. */
type Request = Exclude<MessageInitShape<typeof AuthorizeSpendRequestSchema>, { $typeName: string }>;
type Spends = Client<typeof SpendControlService>;

let server: TestServer;
let token: string;
let spends: Spends;

beforeAll(async () => {
  server = await startTestServer({ protocol: "grpc" });
  token = await server.vaultKey("main");
  spends = server.spend(token);
});
afterAll(() => server.close());

const attempt = () => randomBytes(16).toString("hex");
const usd = (amount: string) => ({ currency: "usd", amount });
let customers = 0;

/** A request for a spend that nobody has asked for before. */
function asks(request: Request & { readonly amount?: string; readonly customerId?: string } = {}): Request {
  const { amount = "10", customerId, ...others } = request;
  customers += 1;
  return {
    spend: {
      customerId: customerId ?? `cust_${customers}`,
      billingPeriod: "2026-11",
      purpose: "subscription",
      amount: usd(amount),
    },
    vendor: "stripe",
    endpoint: "POST /v1/payment_intents",
    attemptId: attempt(),
    settlement: Settlement.TWO_STEP,
    ...others,
  };
}

async function grant(request: Request = asks(), client = spends) {
  const { disposition, authorization } = await client.authorizeSpend(request);
  if (disposition !== Disposition.GRANTED || authorization === undefined) throw new Error("not granted");
  return authorization;
}

async function refusal(call: Promise<unknown>) {
  const error = await call.then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
  if (!(error instanceof ConnectError)) throw new Error("the call was not refused", { cause: error });
  const [info] = error.findDetails(ErrorInfoSchema);
  const fields = error.findDetails(BadRequestSchema).flatMap((one) => one.fieldViolations.map(({ field }) => field));
  return { code: error.code, reason: info?.reason, metadata: info?.metadata, fields, error };
}

describe("the life of a spend", () => {
  test("authorized, bound, committed, and read by name and by reference", async () => {
    const request = asks();
    const granted = await spends.authorizeSpend(request);
    expect(granted).toMatchObject({ disposition: Disposition.GRANTED, mayHaveBeenSent: false });
    const { name = "", idempotencyKey = "" } = granted.authorization ?? {};
    expect(name).toBe(`authorizations/05e0${idempotencyKey}-1`);
    const vendorReference = `pi_${customers}`;
    const attemptId = request.attemptId ?? "";
    const bound = await spends.bindVendorReference({ authorization: name, attemptId, vendorReference });
    expect(bound.authorization).toMatchObject({ state: AuthorizationState.HELD, vendorReference });
    const committed = await spends.commitSpend({
      authorization: name,
      amount: usd("9.90"),
      vendorReference,
      attemptId,
    });
    expect(committed).toMatchObject({
      overCommitted: false,
      authorization: { state: AuthorizationState.COMMITTED, committedAmount: usd("9.90") },
    });
    const lookups = [
      { case: "name" as const, value: name },
      { case: "vendorReference" as const, value: { vendor: "stripe", vendorReference } },
    ];
    for (const lookup of lookups) {
      const { authorization } = await spends.getAuthorization({ lookup });
      expect(authorization).toEqual(committed.authorization);
    }
    const repeated = await spends.authorizeSpend({
      ...request,
      spend: { ...request.spend, amount: usd("11") },
    } as Request);
    expect(repeated).toMatchObject({
      disposition: Disposition.ALREADY_COMMITTED,
      differingFields: ["spend.amount.amount"],
      authorization: { vendorReference },
    });
  });

  test("a lost answer is given again, another attempt waits, and other values are refused", async () => {
    const request = asks();
    await grant(request);
    const again = await spends.authorizeSpend(request);
    expect(again).toMatchObject({ disposition: Disposition.GRANTED, mayHaveBeenSent: true });
    const other = await spends.authorizeSpend({ ...request, attemptId: attempt() });
    expect(other.disposition).toBe(Disposition.IN_PROGRESS);
    expect(other.retryAfter).toBeDefined();
    const changed = await refusal(
      spends.authorizeSpend({ ...request, endpoint: "POST /v1/payment_intents", vendorAccount: "acct_2" }),
    );
    expect(changed).toMatchObject({
      code: Code.FailedPrecondition,
      reason: "SPEND_MISMATCH",
      metadata: { fields: "vendor_account" },
    });
  });

  test("voided as never sent, and granted again as generation 2", async () => {
    const request = asks();
    const { name } = await grant(request);
    const attemptId = request.attemptId ?? "";
    const { authorization } = await spends.voidSpend({
      authorization: name,
      attemptId,
      evidence: VoidEvidence.NEVER_SENT,
    });
    expect(authorization).toMatchObject({ state: AuthorizationState.VOIDED, voidEvidence: VoidEvidence.NEVER_SENT });
    const next = await grant({ ...request, attemptId: attempt() });
    expect(next.generation).toBe(2);
    expect(next.name).toBe(name.replace(/-1$/, "-2"));
  });

  test("refused by the vendor, answered ALREADY_FAILED, and tried again only when asked for", async () => {
    const request = asks({ settlement: Settlement.SEND_ONCE });
    const { name } = await grant(request);
    const attemptId = request.attemptId ?? "";
    await spends.voidSpend({
      authorization: name,
      attemptId,
      evidence: VoidEvidence.VENDOR_REFUSED,
      vendorStatus: 402,
    });
    const failed = await spends.authorizeSpend({ ...request, attemptId: attempt() });
    expect(failed).toMatchObject({ disposition: Disposition.ALREADY_FAILED, failedGeneration: 1 });
    const other = server.spend(await server.vaultKey("failing"));
    const told = await other.authorizeSpend({ ...request, attemptId: attempt() });
    expect(told).toMatchObject({ disposition: Disposition.ALREADY_FAILED, failedGeneration: 0 });
    expect(told.authorization).toBeUndefined();
    const next = await grant({ ...request, attemptId: attempt(), retryAfterGeneration: 1 });
    expect(next.generation).toBe(2);
  });

  test("turned away in front of the vendor, and granted again as generation 2 at once", async () => {
    const request = asks({ settlement: Settlement.SEND_ONCE });
    const { name } = await grant(request);
    const attemptId = request.attemptId ?? "";
    const evidence = VoidEvidence.NOT_EXECUTED;
    const { authorization } = await spends.voidSpend({ authorization: name, attemptId, evidence, vendorStatus: 429 });
    expect(authorization).toMatchObject({ state: AuthorizationState.VOIDED, voidEvidence: evidence });
    const next = { ...request, attemptId: attempt() };
    const again = await grant(next);
    expect(again.generation).toBe(2);
    await spends.authorizeSpend(next);
    const late = spends.voidSpend({
      authorization: again.name,
      attemptId: next.attemptId,
      evidence,
      vendorStatus: 429,
    });
    expect((await refusal(late)).reason).toBe("EVIDENCE_INSUFFICIENT");
  });

  test("reported unknown, kept in doubt, and settled by an operator with a reason", async () => {
    const request = asks({ settlement: Settlement.SEND_ONCE });
    const { name } = await grant(request);
    const attemptId = request.attemptId ?? "";
    const { authorization } = await spends.reportUnknown({ authorization: name, attemptId, reason: "timeout" });
    expect(authorization?.state).toBe(AuthorizationState.IN_DOUBT);
    expect((await spends.authorizeSpend({ ...request, attemptId: attempt() })).disposition).toBe(Disposition.IN_DOUBT);
    const operator = server.spend(server.operatorToken);
    const settled = await operator.voidSpend({
      authorization: name,
      evidence: VoidEvidence.OPERATOR,
      reason: "seen in the dashboard",
    });
    expect(settled.authorization).toMatchObject({
      state: AuthorizationState.VOIDED,
      voidEvidence: VoidEvidence.OPERATOR,
      voidReason: "seen in the dashboard",
    });
  });

  test("evidence that proves nothing is refused and leaves it in doubt", async () => {
    const request = asks({ settlement: Settlement.SEND_ONCE });
    const { name } = await grant(request);
    const { attemptId = "" } = request;
    const refused = { authorization: name, attemptId, evidence: VoidEvidence.VENDOR_REFUSED, vendorStatus: 500 };
    expect(await refusal(spends.voidSpend(refused))).toMatchObject({
      code: Code.FailedPrecondition,
      reason: "EVIDENCE_INSUFFICIENT",
      metadata: { state: "IN_DOUBT" },
    });
  });

  test("bound by another first: told the winner's reference", async () => {
    const request = asks();
    const { name } = await grant(request);
    const { attemptId = "" } = request;
    await spends.bindVendorReference({ authorization: name, attemptId, vendorReference: "pi_first" });
    const second = spends.bindVendorReference({ authorization: name, attemptId, vendorReference: "pi_second" });
    expect(await refusal(second)).toMatchObject({
      reason: "ALREADY_BOUND",
      metadata: { vendor_reference: "pi_first" },
    });
  });
});

describe("a denial", () => {
  test("explains itself with every figure", async () => {
    const { token: narrow } = await server.admin.createVaultKey({
      vaultKeyId: "narrow",
      vaultKey: { vendor: "stripe", allowedEndpoints: ["POST /v1/payment_intents"] },
    });
    await server.cap("narrow", "15", { scope: { vaultKey: "vaultKeys/narrow" } });
    const client = server.spend(narrow);
    await grant(asks(), client);
    const { disposition, denial, authorization } = await client.authorizeSpend(asks());
    expect(disposition).toBe(Disposition.DENIED);
    expect(authorization).toBeUndefined();
    expect(denial).toMatchObject({
      rule: DenialRule.CAP_HEADROOM,
      cap: "caps/narrow",
      limit: usd("15"),
      committed: usd("0"),
      held: usd("10"),
      headroom: usd("5"),
      shortBy: usd("5"),
    });
    expect(denial?.windowEndTime).toBeUndefined();
  });

  test("of a dry run is the same as a real one, and a dry run writes nothing", async () => {
    const count = async () =>
      (
        await server.database.pool.query<{ n: string }>(
          `select (select count(*) from holdfast.authorizations) || ' ' || (select count(*) from holdfast.audit_events)
             || ' ' || (select count(*) from holdfast.counters) || ' ' || (select count(*) from holdfast.holds) as n`,
        )
      ).rows[0]?.n;
    const before = await count();
    const request = asks({ dryRun: true });
    const answer = await spends.authorizeSpend(request);
    expect(answer.disposition).toBe(Disposition.GRANTED);
    expect(answer.authorization).toBeUndefined();
    const denied = await spends.authorizeSpend({ ...request, endpoint: "POST /v1/refunds" });
    expect(denied).toMatchObject({ disposition: Disposition.DENIED, denial: { rule: DenialRule.ENDPOINT } });
    expect(await count()).toBe(before);
  });
});

describe("a vendor object that is not at its end", () => {
  const follow = { vendorState: "processing", followFor: { seconds: 3600n } };

  test("of a one-call spend is followed, found, and continued by the attempt that names it", async () => {
    const request = asks({ settlement: Settlement.SEND_ONCE });
    const { name } = await grant(request);
    const { attemptId = "" } = request;
    const vendorReference = `py_${customers}`;
    const binding = { authorization: name, attemptId, vendorReference };
    expect(await refusal(spends.bindVendorReference(binding))).toMatchObject({
      code: Code.FailedPrecondition,
      reason: "STATE_NOT_ALLOWED",
      metadata: { state: "HELD" },
    });
    await spends.bindVendorReference({ ...binding, ...follow });
    const lookup = { case: "vendorReference" as const, value: { vendor: "stripe", vendorReference } };
    const found = await spends.getAuthorization({ lookup });
    expect(found.authorization).toMatchObject({ name, vendorReference, vendorState: "processing" });
    const waiting = await spends.authorizeSpend({ ...request, attemptId: attempt() });
    expect(waiting).toMatchObject({ disposition: Disposition.IN_PROGRESS, authorization: { vendorReference } });
    const next = { ...request, attemptId: attempt(), continueVendorReference: vendorReference };
    expect(await spends.authorizeSpend({ ...next, dryRun: true })).toMatchObject({
      disposition: Disposition.GRANTED,
      mayHaveBeenSent: true,
    });
    expect(await spends.authorizeSpend(next)).toMatchObject({
      disposition: Disposition.GRANTED,
      mayHaveBeenSent: true,
      authorization: { name, vendorReference, vendorState: "" },
    });
  });

  test("belongs to the spend that bound it, and another key learns no more than that", async () => {
    const request = asks();
    const { name } = await grant(request);
    const vendorReference = `pi_${customers}`;
    const binding = { vendorReference, attemptId: request.attemptId ?? "" };
    await spends.bindVendorReference({ authorization: name, ...binding });
    const other = server.spend(await server.vaultKey("binding"));
    const theirs = await grant(asks({ attemptId: binding.attemptId }), other);
    const refused = await refusal(other.bindVendorReference({ authorization: theirs.name, ...binding }));
    expect(refused).toMatchObject({ reason: "REFERENCE_BOUND_ELSEWHERE" });
    expect(JSON.stringify(refused)).not.toContain(name);
    const lookup = { case: "vendorReference" as const, value: { vendor: "stripe", vendorReference } };
    expect((await spends.getAuthorization({ lookup })).authorization?.name).toBe(name);
    expect(await refusal(other.getAuthorization({ lookup }))).toMatchObject({ reason: "NOT_FOUND" });
    await spends.commitSpend({ authorization: name, amount: usd("10"), vendorReference });
    const operator = server.spend(server.operatorToken);
    expect((await operator.getAuthorization({ lookup })).authorization?.name).toBe(name);
  });
});

describe("a refund", () => {
  test("states what it gives back of, adjusts that charge, and is shown by it", async () => {
    await server.cap("charged", "10", {
      scope: { purpose: "refundable" },
      refundsRestoreHeadroom: true,
      direction: Direction.SPEND,
    });
    const charge = asks();
    const spend = { ...charge.spend, purpose: "refundable" };
    const { name } = await grant({ ...charge, spend });
    const vendorReference = `ch_${customers}`;
    const { authorization } = await spends.commitSpend({ authorization: name, amount: usd("10"), vendorReference });
    expect(authorization).toMatchObject({ direction: Direction.SPEND, refundedAmount: usd("0"), refundOf: "" });
    const request = asks({ direction: Direction.REFUND, refundOf: vendorReference, amount: "4" });
    const refund = await grant(request);
    expect(refund).toMatchObject({ direction: Direction.REFUND, refundOf: vendorReference });
    expect(refund.refundedAmount).toBeUndefined();
    const changed = { ...request, refundOf: "ch_other" };
    expect(await refusal(spends.authorizeSpend(changed))).toMatchObject({
      reason: "SPEND_MISMATCH",
      metadata: { fields: "refund_of" },
    });
    await spends.commitSpend({ authorization: refund.name, amount: usd("4"), vendorReference: `re_${customers}` });
    const lookup = { case: "name" as const, value: name };
    expect((await spends.getAuthorization({ lookup })).authorization).toMatchObject({
      committedAmount: usd("10"),
      refundedAmount: usd("4"),
    });
    const { usage } = await server.admin.getCap({ name: "caps/charged" });
    expect(usage).toMatchObject({ committed: usd("6"), headroom: usd("4") });
    const { authorizations } = await server.admin.listAuthorizations({ customerId: request.spend?.customerId ?? "" });
    expect(authorizations).toMatchObject([{ direction: Direction.REFUND, refundOf: vendorReference }]);
  });
});

describe("an increase", () => {
  test("is granted with the new total, repeated, and denied with every figure of what is missing", async () => {
    const client = server.spend(await server.vaultKey("raising"));
    await server.cap("raising", "15", { scope: { vaultKey: "vaultKeys/raising" } });
    const request = asks();
    const { attemptId = "" } = request;
    const { name, heldAmount } = await grant(request, client);
    expect(heldAmount).toMatchObject(usd("10"));
    for (const amount of ["14", "14", "12"]) {
      const granted = await client.increaseHold({ authorization: name, attemptId, amount: usd(amount) });
      expect(granted).toMatchObject({
        disposition: Disposition.GRANTED,
        authorization: { name, heldAmount: usd("14"), spend: { amount: usd("10") } },
      });
      expect(granted.denial).toBeUndefined();
    }
    const denied = await client.increaseHold({ authorization: name, attemptId, amount: usd("17.50") });
    expect(denied).toMatchObject({
      disposition: Disposition.DENIED,
      authorization: { name, heldAmount: usd("14") },
      denial: {
        rule: DenialRule.CAP_HEADROOM,
        message:
          "17.50 usd can never fit into the cap caps/raising: its limit is 15 usd in all. Ask for less, or raise its limit.",
        cap: "caps/raising",
        limit: usd("15"),
        held: usd("14"),
        headroom: usd("1"),
        shortBy: usd("2.50"),
      },
    });
    await server.admin.revokeVaultKey({ name: "vaultKeys/raising" });
    const revoked = await client.increaseHold({ authorization: name, attemptId, amount: usd("15") });
    expect(revoked).toMatchObject({
      disposition: Disposition.DENIED,
      denial: { rule: DenialRule.VAULT_KEY_REVOKED },
    });
  });

  test("is refused in another currency, without an amount, and once the spend is settled", async () => {
    const request = asks();
    const { attemptId = "" } = request;
    const { name } = await grant(request);
    const eur = { currency: "eur", amount: "12" };
    expect(await refusal(spends.increaseHold({ authorization: name, attemptId, amount: eur }))).toMatchObject({
      code: Code.FailedPrecondition,
      reason: "SPEND_MISMATCH",
      metadata: { fields: "amount.currency" },
    });
    for (const amount of [undefined, usd("0"), usd("-1")]) {
      const refused = await refusal(spends.increaseHold({ authorization: name, ...(amount && { amount }) }));
      expect(refused).toMatchObject({ code: Code.InvalidArgument, reason: "INVALID_FIELD" });
    }
    await spends.commitSpend({ authorization: name, amount: usd("10"), vendorReference: `i_${customers}` });
    expect(await refusal(spends.increaseHold({ authorization: name, amount: usd("12") }))).toMatchObject({
      code: Code.FailedPrecondition,
      reason: "ALREADY_COMMITTED",
      metadata: { vendor_reference: `i_${customers}` },
    });
  });
});

describe("a request that is malformed names its field", () => {
  test.each<[string, Request]>([
    ["spend", asks({ spend: undefined })],
    ["spend.customer_id", asks({ customerId: "a:b" })],
    ["spend.amount.amount", asks({ amount: "1.0000001" })],
    ["spend.amount.amount", asks({ amount: "0" })],
    ["spend.amount.amount", asks({ amount: "-1" })],
    ["attempt_id", asks({ attemptId: "x" })],
    ["vendor", asks({ vendor: "" })],
    ["endpoint", asks({ endpoint: "/v1/charges" })],
    ["resend_safe_for", asks({ settlement: Settlement.RESEND_SAFE })],
    ["resend_safe_for", asks({ resendSafeFor: { seconds: 1n } })],
    ["refund_of", asks({ refundOf: "ch_1" })],
    ["refund_of", asks({ refundOf: "a b", direction: Direction.REFUND })],
    ["direction", asks({ direction: 9 as Direction })],
    ["continue_vendor_reference", asks({ continueVendorReference: "a b" })],
    ["hold_duration", asks({ holdDuration: { seconds: 4n } })],
    ["hold_duration", asks({ holdDuration: { seconds: 86_401n } })],
    ["retry_after_generation", asks({ retryAfterGeneration: -1 })],
    ["lease_fence.fencing_token", asks({ leaseFence: { lease: "a", billingPeriod: "b", holderId: "c" } })],
    ["body_fingerprint", asks({ bodyFingerprint: "F".repeat(64) })],
    ["credential_fingerprint", asks({ credentialFingerprint: "f".repeat(31) })],
  ])("%s", async (field, request) => {
    expect(await refusal(spends.authorizeSpend(request))).toMatchObject({
      code: Code.InvalidArgument,
      reason: "INVALID_FIELD",
      metadata: { field },
      fields: [field],
    });
  });

  test("a generation that does not exist", async () => {
    expect(await refusal(spends.authorizeSpend(asks({ retryAfterGeneration: 3 })))).toMatchObject({
      code: Code.FailedPrecondition,
      reason: "GENERATION_NOT_FOUND",
    });
  });

  test("one bad request of a batch leaves its neighbours alone", async () => {
    const { results } = await spends.batchAuthorizeSpend({
      requests: [asks(), asks({ customerId: "" }), asks({ retryAfterGeneration: 3 }), asks({ amount: "1" })],
    });
    expect(
      results.map(({ result }) => (result.case === "error" ? result.value.reason : result.value?.disposition)),
    ).toEqual([Disposition.GRANTED, "INVALID_FIELD", "GENERATION_NOT_FOUND", Disposition.GRANTED]);
    const names = results.flatMap(({ result }) =>
      result.case === "response" ? [result.value.authorization?.name ?? ""] : [],
    );
    const commit = (authorization: string, n: number) => ({
      authorization,
      amount: usd("1"),
      vendorReference: `b_${n}`,
    });
    const settled = await spends.batchCommitSpend({
      requests: [commit(names[0] ?? "", 1), commit(`authorizations/${"0".repeat(36)}-1`, 2), commit(names[1] ?? "", 3)],
    });
    expect(settled.results.map(({ result }) => (result.case === "error" ? result.value.reason : result.case))).toEqual([
      "response",
      "NOT_FOUND",
      "response",
    ]);
  });
});

describe("another vault key", () => {
  test("cannot see, settle, bind, void, raise or doubt what is not its own, and an operator can settle it", async () => {
    const stranger = server.spend(await server.vaultKey("stranger"));
    const request = asks();
    const { name } = await grant(request);
    const { attemptId = "" } = request;
    const lookup = { case: "name" as const, value: name };
    expect((await refusal(stranger.getAuthorization({ lookup }))).reason).toBe("NOT_FOUND");
    const calls = [
      () => stranger.commitSpend({ authorization: name, amount: usd("10"), vendorReference: "x" }),
      () => stranger.voidSpend({ authorization: name, attemptId, evidence: VoidEvidence.NEVER_SENT }),
      () => stranger.bindVendorReference({ authorization: name, attemptId, vendorReference: "x" }),
      () => stranger.reportUnknown({ authorization: name, attemptId }),
      () => stranger.increaseHold({ authorization: name, amount: usd("11") }),
    ];
    for (const call of calls) {
      const { reason, metadata } = await refusal(call());
      expect([reason, metadata]).toEqual(["OTHER_VAULT_KEY", {}]);
    }
    const answer = await stranger.authorizeSpend({ ...request, attemptId: attempt() });
    expect(answer.disposition).toBe(Disposition.IN_PROGRESS);
    expect(answer.authorization).toBeUndefined();
    const { authorization } = await spends.getAuthorization({ lookup });
    expect(authorization).toMatchObject({ state: AuthorizationState.HELD, vendorReference: "" });
    const operator = createClient(SpendControlService, server.transport(server.operatorToken));
    const settled = await operator.commitSpend({
      authorization: name,
      amount: usd("10"),
      vendorReference: `o_${customers}`,
    });
    expect(settled.authorization?.state).toBe(AuthorizationState.COMMITTED);
  });
});

describe("a billing lease", () => {
  const job = { lease: "nightly", billingPeriod: "2026-11" };
  const ttl = { seconds: 60n };

  test("is held by one, fences spends, is renewed and released, and is closed when completed", async () => {
    const first = await spends.acquireBillingLease({ ...job, holderId: "h1", ttl });
    expect(first).toMatchObject({ answer: LeaseAnswer.ACQUIRED, billingLease: { fencingToken: 1n, holderId: "h1" } });
    expect(first.remaining?.seconds).toBeGreaterThan(55n);
    const second = await spends.acquireBillingLease({ ...job, holderId: "h2", ttl });
    expect(second).toMatchObject({ answer: LeaseAnswer.HELD_BY_OTHER, billingLease: { holderId: "h1" } });
    const fence = { ...job, holderId: "h1", fencingToken: 1n };
    await grant(asks({ leaseFence: fence }));
    const stale = await spends.authorizeSpend(asks({ leaseFence: { ...fence, fencingToken: 2n } }));
    expect(stale.denial?.rule).toBe(DenialRule.FENCING_TOKEN);
    expect((await spends.renewBillingLease({ ...fence, ttl })).renewed).toBe(true);
    expect((await spends.renewBillingLease({ ...fence, fencingToken: 9n, ttl })).renewed).toBe(false);
    expect((await spends.releaseBillingLease({ ...fence, outcome: LeaseOutcome.COMPLETED })).released).toBe(true);
    const closed = await spends.acquireBillingLease({ ...job, holderId: "h3", ttl });
    expect(closed.answer).toBe(LeaseAnswer.ALREADY_COMPLETED);
  });
});
