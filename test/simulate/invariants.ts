import type { Answer } from "../property/command.ts";
import { generations } from "../property/model.ts";
import { authorizationName, type Generation, idempotencyKey } from "../property/model-world.ts";
import type { Movement } from "../support/stripe-simulator/movements.ts";
import type { StandIn } from "./database.ts";
import { checkTold } from "./invariants-told.ts";
import type { Told } from "./job.ts";
import { isTwoStep, type SpendPlan } from "./plan.ts";
import type { Vendor, VendorRequest } from "./vendor.ts";

/** The rules that hold after every event, judged by the vendor's movements and the rows of the control plane. */
export interface Invariants {
  /** After every event. Throws a Violation. */
  check(): void;
  /** After every statement. Throws a Violation. */
  executed(statement: string, answer: Answer): void;
  /** What a caller was told is true. Throws a Violation. */
  told(plan: SpendPlan, told: Told): void;
  /** Second movements, or movements after a void, by one-call requests that were on their way for a day: no SDK can call them back. */
  readonly late: () => number;
  readonly grants: () => number;
}

export class Violation extends Error {
  constructor(message: string) {
    super(message);
    this.name = "Violation";
  }
}

export interface Watched {
  readonly now: () => number;
  readonly plans: readonly SpendPlan[];
  readonly vendor: Vendor;
  readonly database: StandIn;
  readonly capLimit: () => bigint;
}

const dayMs = 24 * 3_600_000;
const capCents = 10_000n;

export function createInvariants(watched: Watched): Invariants {
  const { database, plans, vendor } = watched;
  const grantedAt = new Map<Generation, number>();
  const lateMovements = new Set<Movement>();
  let used = 0n;
  let grants = 0;
  let statements = 0;
  let checked = "";
  let seenRequests = 0;
  const { world } = database.model;

  function executed(statement: string, answer: Answer): void {
    statements += 1;
    for (const one of generations(world)) if (!grantedAt.has(one)) grantedAt.set(one, watched.now());
    if (answer["disposition"] === "GRANTED") {
      grants += 1;
      const key = world.keys.get(String(answer["vaultKey"]));
      if (key?.revoked === true && statement === "authorize_batch") throw new Violation("a revoked key was granted");
    }
    const before = used;
    used = usedNow();
    const grew = statement === "authorize_batch" || statement === "increase_hold";
    if (grew && used > before && used > watched.capLimit()) {
      throw new Violation(`a grant took the cap to ${used} of ${watched.capLimit()} micros`);
    }
  }

  /** Counted anew from the rows, not from the counters. */
  function usedNow(): bigint {
    let sum = 0n;
    for (const one of generations(world)) {
      if (one.direction !== "SPEND") continue;
      if (one.state === "HELD" || one.state === "IN_DOUBT") sum += one.held;
      if (one.state === "COMMITTED") sum += one.committed ?? 0n;
    }
    // There is one cap, and it counts spends only.
    for (const counted of world.contradictions.values()) {
      for (const more of counted.values()) sum += more;
    }
    return sum;
  }

  /** Takes note of the movements that came a day after their request had left. */
  function judgeRequests(): void {
    for (; seenRequests < vendor.requests.length; seenRequests += 1) {
      const request = vendor.requests[seenRequests] as VendorRequest;
      const owner = generations(world).find((one) => idempotencyKey(one, one.generation) === request.key);
      if (owner === undefined || owner.settlement === "TWO_STEP" || request.method !== "POST") continue;
      const bornAt = grantedAt.get(owner) ?? 0;
      if (request.sentAt - bornAt >= dayMs) {
        throw new Violation(`${request.path} left ${hours(request.sentAt - bornAt)} h after its grant`);
      }
      if (request.arrivedAt - request.sentAt < dayMs - 3_600_000) continue;
      for (const movement of vendor.movements.slice(request.movementsBefore, request.movementsAfter)) {
        lateMovements.add(movement);
      }
    }
  }

  function checkPlan(plan: SpendPlan): void {
    const moved = vendor.movements.filter((one) => belongs(one, plan));
    if (moved.length < 2) return;
    const excused = !isTwoStep(plan) && moved.slice(1).every((one) => lateMovements.has(one));
    if (!excused) {
      const what = moved.map((one) => `${one.kind} ${one.id} of ${one.amount} by ${one.idempotency_key ?? "nobody"}`);
      throw new Violation(
        `${plan.customerId} ${plan.purpose} (${plan.kind}) moved ${moved.length} times: ${what.join("; ")}`,
      );
    }
  }

  function checkRow(one: Generation): void {
    const name = authorizationName(one, one.generation).replace("authorizations/", "");
    const moved = vendor.movements.filter(
      (movement) => isCharge(movement, one.direction) && movement.metadata["holdfast_authorization"] === name,
    );
    const first = moved.find((movement) => !lateMovements.has(movement));
    if (one.state === "VOIDED" && first !== undefined) {
      throw new Violation(`${one.customer} is VOIDED by ${one.evidence}, and ${first.id} moved ${first.amount}`);
    }
    if (one.state !== "COMMITTED") return;
    const own = moved.find((movement) => movement.id === one.reference || movement.payment_intent === one.reference);
    if (own === undefined)
      throw new Violation(`${one.customer} is COMMITTED with ${one.reference}, which moved nothing`);
    if (BigInt(own.amount) * capCents !== one.committed) {
      throw new Violation(
        `${one.customer} is COMMITTED at ${one.committed} micros, and ${own.id} moved ${own.amount} cents`,
      );
    }
  }

  return {
    late: () => lateMovements.size,
    grants: () => grants,
    executed,
    told: (plan, told) => checkTold(database.model.world, vendor, lateMovements, plan, told),
    check() {
      // What a process does by itself changes neither rows nor movements.
      const seen = `${vendor.requests.length} ${vendor.movements.length} ${statements}`;
      if (seen === checked) return;
      checked = seen;
      judgeRequests();
      for (const plan of plans) checkPlan(plan);
      for (const one of generations(world)) checkRow(one);
    },
  };
}

/** Whether a movement is that of a plan. */
export function belongs(movement: Movement, plan: SpendPlan): boolean {
  if (movement.customer !== plan.stripeCustomer) return false;
  return isCharge(movement, plan.kind === "refund" ? "REFUND" : "SPEND");
}

function isCharge({ kind }: Movement, direction: "SPEND" | "REFUND"): boolean {
  return direction === "REFUND" ? kind === "refund" : kind === "charge" || kind === "capture";
}

const hours = (ms: number): string => (ms / 3_600_000).toFixed(1);
