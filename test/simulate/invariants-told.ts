import {
  HoldfastError,
  SpendAlreadyCommittedError,
  SpendAlreadyFailedError,
  VendorUnreachableError,
} from "@holdfast/sdk";
import Stripe from "stripe";
import { generations } from "../property/model.ts";
import { authorizationName, type Generation, type World } from "../property/model-world.ts";
import type { Movement } from "../support/stripe-simulator/movements.ts";
import { belongs, Violation } from "./invariants.ts";
import type { Told } from "./job.ts";
import { isTwoStep, type SpendPlan } from "./plan.ts";
import type { Vendor } from "./vendor.ts";

/** Throws a Violation where a caller was told what is not so. */
export function checkTold(
  world: World,
  vendor: Vendor,
  late: ReadonlySet<Movement>,
  plan: SpendPlan,
  { id, error, ...told }: Told & { readonly status?: string },
): void {
  const moved = vendor.movements.filter((one) => belongs(one, plan) && !late.has(one));
  const own = generations(world).filter((one) => one.customer === plan.customerId && one.purpose === plan.purpose);
  const lie = (what: string): never => {
    throw new Violation(`the caller of ${plan.customerId} ${plan.purpose} (${plan.kind}) was told ${what}`);
  };
  if (id !== undefined) {
    const mine = vendor.movements.some((one) => one.id === id || one.payment_intent === id);
    if (told.status === "succeeded" && !mine) lie(`that ${id} succeeded, and nothing moved`);
    if (own.length === 0) lie(`of ${id}, and nothing was authorized`);
    return;
  }
  if (!(error instanceof HoldfastError) && !(error instanceof Stripe.errors.StripeError)) {
    const text = error instanceof Error ? (error.stack ?? error.message) : String(error);
    lie(`something that nobody can handle: ${text}`);
  }
  if (error instanceof SpendAlreadyFailedError) {
    // Its void may still be on the way; but what has failed has moved nothing.
    const failed = own[error.retryAfterGeneration - 1];
    const name = failed === undefined ? undefined : authorizationName(failed, failed.generation);
    if (failed === undefined || failed.state === "COMMITTED" || movedBy(own, moved, name)) {
      lie(`that generation ${error.retryAfterGeneration} failed, and it is ${failed?.state}`);
    }
  }
  if (error instanceof SpendAlreadyCommittedError && own.at(-1)?.state !== "COMMITTED") lie("that it is committed");
  if (error instanceof VendorUnreachableError && !isTwoStep(plan) && movedBy(own, moved, error.authorization)) {
    lie("that nothing was sent, and it moved");
  }
  if (
    error instanceof Stripe.errors.StripeCardError &&
    own.length === 1 &&
    own[0]?.state === "COMMITTED" &&
    isTwoStep(plan)
  ) {
    lie("that the card was declined, and it is committed");
  }
}

function movedBy(own: readonly Generation[], moved: readonly Movement[], authorization: string | undefined): boolean {
  return own
    .map((one) => authorizationName(one, one.generation))
    .filter((name) => name === authorization)
    .some((name) => moved.some((one) => `authorizations/${one.metadata["holdfast_authorization"]}` === name));
}
