import { createHash } from "node:crypto";

/** What makes two calls one spend. One spend is charged at most once, for ever. */
export interface SpendIdentity {
  /** The caller's own id of the customer: 1–128 visible ASCII characters except ":". */
  readonly customerId: string;
  /** The period that is billed, for example "2026-11": 1–128 visible ASCII characters except ":". */
  readonly billingPeriod: string;
  /** What is paid for, for example "subscription": 1–128 visible ASCII characters. */
  readonly purpose: string;
}

// The same patterns as in the proto. Without ":" in the first two fields no two identities share one text.
const VISIBLE_WITHOUT_COLON = /^[!-9;-~]{1,128}$/;
const VISIBLE = /^[!-~]{1,128}$/;
const MAX_GENERATION = 1_000_001;

function checkField(name: string, value: string, pattern: RegExp, allowed: string): void {
  if (typeof value !== "string" || !pattern.test(value)) {
    throw new TypeError(
      `${name} must be 1 to 128 visible ASCII characters without spaces${allowed}; got ${JSON.stringify(value)}.`,
    );
  }
}

/** Throws a TypeError that names the first field a spend identity may not have. */
export function checkIdentity(identity: SpendIdentity): void {
  checkField("customerId", identity.customerId, VISIBLE_WITHOUT_COLON, ' except ":"');
  checkField("billingPeriod", identity.billingPeriod, VISIBLE_WITHOUT_COLON, ' except ":"');
  checkField("purpose", identity.purpose, VISIBLE, "");
}

/**
 * The idempotency key of one generation of a spend: the first 32 hex digits of the SHA-256 of
 * `customerId:billingPeriod:purpose`. From generation 2 on, a line feed and `g<n>` follow the text: a line feed can
 * occur in no field, so no other spend has that key. Throws a TypeError on a field that cannot be part of a spend.
 */
export function stableKey(customerId: string, billingPeriod: string, purpose: string, generation = 1): string {
  checkIdentity({ customerId, billingPeriod, purpose });
  if (!Number.isInteger(generation) || generation < 1 || generation > MAX_GENERATION) {
    throw new TypeError(`generation must be a whole number from 1 on; got ${generation}.`);
  }
  const text = `${customerId}:${billingPeriod}:${purpose}`;
  const hashed = generation === 1 ? text : `${text}\ng${generation}`;
  return digest(hashed, 32);
}

/**
 * Resource name of one generation of a spend, the same for every caller that computes it: the first four hex digits of the
 * SHA-256 of the billing period, the stable key of generation 1, `-` and the generation.
 */
export function authorizationName(identity: SpendIdentity, generation: number): string {
  const key = stableKey(identity.customerId, identity.billingPeriod, identity.purpose);
  return `authorizations/${digest(identity.billingPeriod, 4)}${key}-${generation}`;
}

function digest(text: string, digits: number): string {
  return createHash("sha256").update(text).digest("hex").slice(0, digits);
}
