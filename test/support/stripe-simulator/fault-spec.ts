/**
 * What can go wrong with one request.
 *
 * In front of the idempotency layer, nothing executed and nothing saved:
 * - `drop_before_execute`: the connection is reset.
 * - `rate_limit_429`: the limiter, with `reason`.
 * - `conflict_409`: as if another request ran under the key.
 * - `html_502`: a gateway gave up before it reached Stripe.
 * - `hold_in_transit`: the request is under way until released, and only then meets the layer.
 *
 * In execution, so the key is in use meanwhile and the outcome is saved:
 * - `hold`: waits until released before any money moves; `slow_before_execute`: waits `afterMs`.
 * - `error_500_before`, `bad_request_400`, `lock_timeout_429`: instead of the endpoint.
 * - `declined_402`: the endpoint runs and the card is declined (no effect on endpoints that ask no card).
 * - `error_500_after`: money moved, the answer is a 500.
 * - `hold_after_execute`, `slow_after_execute`: money moved, Stripe still computes its answer (repeats get 409).
 *
 * After the answer was saved, only the way back is broken:
 * - `drop_after_execute`: the connection is reset. `truncate_body`: cut in the middle of the body.
 * - `slow_reply`: the answer is `afterMs` late. `html_502_after`, `invalid_json_200`: replaced by something unreadable.
 */
export const faultModes = [
  "drop_before_execute",
  "rate_limit_429",
  "conflict_409",
  "html_502",
  "hold_in_transit",
  "hold",
  "slow_before_execute",
  "error_500_before",
  "bad_request_400",
  "lock_timeout_429",
  "declined_402",
  "error_500_after",
  "hold_after_execute",
  "slow_after_execute",
  "drop_after_execute",
  "truncate_body",
  "slow_reply",
  "html_502_after",
  "invalid_json_200",
] as const;

export type FaultMode = (typeof faultModes)[number];

/** Which requests a fault meets; every given part must match. */
export interface FaultMatch {
  readonly method?: string;
  /** A prefix of the path, or a pattern over it. Over HTTP a text that begins with `^` is a pattern. */
  readonly path?: string | RegExp;
  readonly key?: string;
  readonly account?: string;
  /** Top-level parameters, compared as text: `{ customer: "cus_1" }`. */
  readonly params?: Readonly<Record<string, string>>;
  /** Begin with the nth matching request, counted from 1 since the fault was set. */
  readonly nth?: number;
}

export interface FaultSpec {
  readonly match?: FaultMatch;
  readonly mode: FaultMode;
  /** How many requests it meets before it is used up; 1 unless told. */
  readonly times?: number;
  /** Milliseconds of real time for the `slow_…` modes, and the delay before a connection is dropped. */
  readonly afterMs?: number;
  /** For `bad_request_400` the error code, for `declined_402` the decline code. */
  readonly code?: string;
  /** For `rate_limit_429`; `global-rate` unless told. */
  readonly reason?: string;
}

/** Reads a spec that came as JSON. Throws a plain Error that names what is wrong. */
export function parseFaultSpec(value: unknown): FaultSpec {
  if (typeof value !== "object" || value === null) throw new Error("A fault is a JSON object.");
  const { match, ...rest } = value as Record<string, unknown> & { match?: Record<string, unknown> };
  const mode = faultModes.find((candidate) => candidate === rest["mode"]);
  if (mode === undefined) throw new Error(`mode must be one of ${faultModes.join(", ")}.`);
  const known = ["mode", "times", "afterMs", "code", "reason"];
  const unknown = Object.keys(rest).find((name) => !known.includes(name));
  if (unknown !== undefined) throw new Error(`Unknown field ${unknown} in a fault.`);
  const path = match?.["path"];
  const pattern = typeof path === "string" && path.startsWith("^") ? { path: new RegExp(path) } : {};
  return { ...rest, mode, ...(match === undefined ? {} : { match: { ...match, ...pattern } }) };
}
