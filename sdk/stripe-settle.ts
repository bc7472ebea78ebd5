import type { Authorization } from "@holdfast/api/holdfast/v1/spend_pb";
import { toDecimalMoney } from "./convert.ts";
import { type DecimalMoney, moneyFrom } from "./money.ts";
import type { Grant } from "./spend.ts";
import { authorizationMetadata, bind, readObject, type StripeCall, stringField } from "./stripe-call.ts";
import type { StripeAnswer } from "./stripe-http.ts";
import type { ObjectFamily, Verdict } from "./stripe-object.ts";
import { isRecord } from "./stripe-send.ts";
import { sendStep } from "./stripe-step.ts";

/** What became of an authorization once its vendor object was judged. */
export type Settled =
  | { readonly kind: "committed" }
  /** Known and followed: somebody may still finish the object. */
  | { readonly kind: "followed" }
  /** The object will never move money; the headroom was given back. */
  | { readonly kind: "voided" }
  /** Another attempt is in charge now. */
  | { readonly kind: "superseded" }
  | { readonly kind: "unclear"; readonly state: string };

export function judge(family: ObjectFamily, answer: StripeAnswer): Verdict {
  return isRecord(answer.body) ? family.judge(answer.body) : { kind: "unclear", state: "unreadable" };
}

export function objectPath(family: ObjectFamily, id: string): string {
  return `${family.collection}/${encodeURIComponent(id)}`;
}

export function readFamily(
  call: StripeCall,
  family: ObjectFamily,
  id: string,
  deadline?: number,
): Promise<StripeAnswer | undefined> {
  return readObject(call, objectPath(family, id), {
    ...(family.readQuery === undefined ? {} : { query: family.readQuery }),
    ...(deadline === undefined ? {} : { deadline }),
  });
}

/** Tells the control plane what the object says: committed, followed in its state, or void. */
export async function settleByObject(
  call: StripeCall,
  grant: Grant,
  family: ObjectFamily,
  answer: StripeAnswer,
  held: DecimalMoney,
): Promise<Settled> {
  const id = stringField(answer.body, "id");
  const verdict = judge(family, answer);
  switch (verdict.kind) {
    case "charged":
    case "obliged":
      await commitVerdict(call, grant.authorization, verdict, id, held, grant.attemptId);
      return { kind: "committed" };
    case "open": {
      const bound = await bind(call, grant, id, vendorState(verdict.state));
      return bound.kind === "bound" ? { kind: "followed" } : { kind: "superseded" };
    }
    case "gone": {
      // Only a bound object is a tombstone.
      if (grant.vendorReference !== id) await bind(call, grant, id, vendorState(verdict.state));
      await call.settlements.void(grant, { evidence: "tombstone", vendorReference: id });
      return { kind: "voided" };
    }
    case "unclear":
      return verdict;
  }
}

/** A state as the contract takes it. */
function vendorState(state: string): string {
  return state.replaceAll(/[^a-z_]/g, "_").slice(0, 64);
}

/** Commits what the object says; money that only the vendor works out later is committed as it was held. */
export async function commitVerdict(
  call: StripeCall,
  authorization: string,
  verdict: Extract<Verdict, { kind: "charged" | "obliged" }>,
  vendorReference: string,
  held: DecimalMoney,
  attemptId?: string,
): Promise<void> {
  const money = verdict.kind === "charged" ? (moneyFrom(verdict.minor, verdict.currency) ?? held) : held;
  await call.settlements.commit(authorization, {
    money,
    vendorReference,
    ...(attemptId === undefined ? {} : { attemptId }),
  });
}

/** Ends an open object at the vendor, so that it never moves money. True if it was seen ended. */
export async function endObject(
  call: StripeCall,
  grant: Grant,
  family: ObjectFamily,
  object: StripeAnswer,
): Promise<boolean> {
  const end = isRecord(object.body) ? family.end?.(object.body) : undefined;
  if (end === undefined) return false;
  const id = stringField(object.body, "id");
  const deadline = call.runtime.clock.now() + call.vendorDeadlineMs;
  // Ending moves no money, so neither a lease nor a hold that ran out forbids it.
  const ended = await sendStep(
    call,
    { ...grant, lease: undefined },
    {
      method: end.method,
      path: `${objectPath(family, id)}${end.suffix}`,
      endpoint: `${end.method} ${family.collection}/:id${end.suffix}`,
      body: end.body,
      key: `${grant.idempotencyKey}-cancel-${id}`,
      replay: false,
      first: false,
      ends: true,
      sendUntil: Number.POSITIVE_INFINITY,
      deadline,
    },
  );
  const answer = ended.outcome === "too_late" ? undefined : ended.exchange.answer;
  if (answer !== undefined && judge(family, answer).kind === "gone") return true;
  const now = await readFamily(call, family, id, deadline);
  return now !== undefined && judge(family, now).kind === "gone";
}

/** What an authorization holds now: its spend's amount, or more after it was raised. */
export function heldMoney(authorization: Authorization, otherwise: DecimalMoney): DecimalMoney {
  return toDecimalMoney(authorization.heldAmount) ?? toDecimalMoney(authorization.spend?.amount) ?? otherwise;
}

/**
 * The reference of a write that makes no object of its own: the object it is about, and which spend it was. One object
 * may be written to by many spends, and a reference belongs to one.
 */
export function compositeReference(grant: Grant, answer: StripeAnswer): string {
  const id = stringField(answer.body, "id");
  return `${id}+${authorizationMetadata(grant)}`.slice(0, 255);
}
