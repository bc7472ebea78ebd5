import { type Authorization, AuthorizationState, Settlement } from "@holdfast/api/holdfast/v1/spend_pb";
import {
  HoldfastRefusedError,
  SpendAlreadyFailedError,
  SpendInProgressError,
  SpendMismatchError,
  SpendUnsupportedError,
} from "./errors.ts";
import { type DecimalMoney, moneyFrom } from "./money.ts";
import { sleep } from "./runtime.ts";
import type { Grant, SpendRequest } from "./spend.ts";
import { recordedAmount, statedMost, within } from "./stripe-amount.ts";
import {
  bind,
  continuation,
  errorContext,
  findBound,
  type GuardedCall,
  requireSpend,
  spendRequest,
  type StripeCall,
} from "./stripe-call.ts";
import type { StripeAnswer } from "./stripe-http.ts";
import { totalOf } from "./stripe-hold.ts";
import type { ObjectFamily } from "./stripe-object.ts";
import { fieldValue } from "./stripe-request.ts";
import { heldMoney, readFamily } from "./stripe-settle.ts";

/** Who may write on a vendor object now. */
export type Possession =
  /** This attempt, under a grant that is bound to the object. */
  | { readonly kind: "granted"; readonly call: GuardedCall; readonly grant: Grant; readonly held: DecimalMoney }
  /** The object's spend is settled. */
  | { readonly kind: "committed"; readonly authorization: Authorization }
  /** Another attempt took over; ask again. */
  | { readonly kind: "again" };

const ROUNDS_MAX = 5;

/**
 * Takes possession of a vendor object: goes on with the authorization that it is bound to, whoever made it, or
 * authorizes it under the spend that the call names and binds it. Throws a typed error if neither is possible.
 */
export async function possess<Result>(
  call: StripeCall,
  family: ObjectFamily,
  reference: string,
  use: (possession: Exclude<Possession, { kind: "again" }>) => Promise<Result | undefined>,
): Promise<Result> {
  for (let round = 0; round < ROUNDS_MAX; round += 1) {
    const bound = await findBound(call, reference);
    const possession =
      bound === undefined || isRetried(call, bound)
        ? await adopt(call, family, reference)
        : await goOn(call, bound, reference);
    const result = possession.kind === "again" ? undefined : await use(possession);
    if (result !== undefined) return result;
    await sleep(call.runtime, 100 * round);
  }
  throw new SpendInProgressError({ ...errorContext(call), vendorReference: reference });
}

/** The caller knows that the object's spend was voided while it lives on, and asks for the next generation. */
function isRetried({ spend }: StripeCall, { generation, spend: of, state }: Authorization): boolean {
  return (
    state === AuthorizationState.VOIDED &&
    spend?.retryAfterGeneration === generation &&
    spend.customerId === of?.customerId &&
    spend.billingPeriod === of.billingPeriod &&
    spend.purpose === of.purpose
  );
}

async function goOn(call: StripeCall, bound: Authorization, reference: string): Promise<Possession> {
  const request = continuation(bound, reference);
  const guarded: GuardedCall = { ...call, spend: request.spend, money: request.money };
  if (bound.state === AuthorizationState.COMMITTED) return { kind: "committed", authorization: bound };
  if (bound.state === AuthorizationState.VOIDED) {
    // An operator may have voided it while the object lives on: nothing may move money under it any more.
    throw new SpendAlreadyFailedError(bound.generation, { spend: request.spend, authorization: bound.name });
  }
  const decision = await call.authorize(request, call.deadline);
  switch (decision.kind) {
    case "already_committed":
      return { kind: "committed", authorization: decision.authorization };
    case "unfinished":
      return { kind: "again" };
    case "granted":
      return { kind: "granted", call: guarded, grant: decision.grant, held: heldMoney(bound, request.money) };
  }
}

/** An object that was made outside of the guard: its total is authorized under the call's own spend. */
async function adopt(call: StripeCall, family: ObjectFamily, reference: string): Promise<Possession> {
  const spend = requireSpend(call);
  const object = await readFamily(call, family, reference);
  const money = await adoptedMoney(call, family, object);
  const guarded: GuardedCall = { ...call, spend, money };
  const request: SpendRequest = { ...spendRequest(guarded, Settlement.TWO_STEP), bodyFingerprint: "" };
  const decision = await call.authorize(request, call.deadline);
  switch (decision.kind) {
    case "already_committed":
      // The spend paid for another object before: this one is not paid, and must not look as if it were.
      if (decision.authorization.vendorReference !== reference) {
        const { name, vendorReference } = decision.authorization;
        throw new SpendMismatchError([`the object (${vendorReference} is paid, not ${reference})`], {
          spend,
          authorization: name,
        });
      }
      return { kind: "committed", authorization: decision.authorization };
    case "unfinished":
      throw otherObject(call, decision.authorization, reference);
    case "granted": {
      const { grant } = decision;
      if (grant.vendorReference !== "" && grant.vendorReference !== reference) {
        await call.settlements.reportUnknown(grant, `the spend belongs to ${grant.vendorReference}`);
        throw otherObject(call, { name: grant.authorization, vendorReference: grant.vendorReference }, reference);
      }
      const result = await bind(guarded, grant, reference).catch(async (error: unknown) => {
        if (!(error instanceof HoldfastRefusedError) || error.reason !== "REFERENCE_BOUND_ELSEWHERE") throw error;
        // Somebody was faster: the object is paid under another spend, and nothing was sent for this one.
        await call.settlements.void(grant, { evidence: "never_sent" });
        throw otherSpend(call, grant, reference, error);
      });
      if (result.kind === "superseded") return { kind: "again" };
      if (result.kind === "other_bound") {
        throw otherObject(call, { name: grant.authorization, vendorReference: result.vendorReference }, reference);
      }
      return { kind: "granted", call: guarded, grant: { ...grant, vendorReference: reference }, held: money };
    }
  }
}

async function adoptedMoney(
  call: StripeCall,
  family: ObjectFamily,
  object: StripeAnswer | undefined,
): Promise<DecimalMoney> {
  const recorded = await recordedAmount(call);
  if (recorded !== undefined) return recorded.money;
  const upTo = statedMost(call);
  const total = object === undefined ? undefined : totalOf(family, object);
  if (upTo !== undefined) {
    if (total !== undefined) within(call, askedOf(call, total.currency) ?? total);
    return upTo;
  }
  if (total !== undefined && !/^0(\.0+)?$/.test(total.amount)) return total;
  throw new SpendUnsupportedError(
    call.endpoint,
    object === undefined ? "is about an object that could not be read" : "is about an object that asks for nothing",
    "Check the object's id and state, or state the most it may cost as spend.upTo.",
  );
}

/** The part of the object that the step asks for. */
function askedOf({ fields }: StripeCall, currency: string): DecimalMoney | undefined {
  const names = ["amount_to_capture", "amount_to_confirm", "amount"];
  const asked = names.map((name) => fieldValue(fields, name)).find((amount) => amount !== undefined);
  return asked === undefined ? undefined : moneyFrom(BigInt(asked), currency);
}

function otherSpend(call: StripeCall, grant: Grant, reference: string, cause: Error): SpendInProgressError {
  return new SpendInProgressError({
    spend: call.spend,
    authorization: grant.authorization,
    vendorReference: reference,
    vendorState: "the object of another spend",
    cause,
  });
}

function otherObject(
  call: StripeCall,
  authorization: Pick<Authorization, "name" | "vendorReference">,
  reference: string,
): SpendInProgressError {
  return new SpendInProgressError({
    spend: call.spend,
    authorization: authorization.name,
    vendorReference: authorization.vendorReference,
    vendorState: `another object than ${reference}`,
  });
}
