import Stripe from "stripe";
import { afterEach, beforeEach, expect, test } from "vitest";
import type { FaultSpec } from "./stripe-simulator/fault-spec.ts";
import { type StripeSimulator, startStripeSimulator } from "./stripe-simulator/index.ts";

let simulator: StripeSimulator;
beforeEach(async () => {
  simulator = await startStripeSimulator();
});
afterEach(() => simulator.close());

function client(options: { timeout?: number; maxNetworkRetries?: number } = {}): Stripe {
  const { host, port } = simulator;
  return new Stripe("sk_test_1", { host, port, protocol: "http", telemetry: false, maxNetworkRetries: 0, ...options });
}

/** One charge under the key "k": its status, or what stripe-node makes of the failure. */
async function charge(options: { timeout?: number; maxNetworkRetries?: number } = {}): Promise<string> {
  try {
    const made = await client(options).charges.create(
      { amount: 4900, currency: "usd", source: "tok_visa", customer: "cus_1" },
      { idempotencyKey: "k" },
    );
    return made.status;
  } catch (error) {
    if (!(error instanceof Stripe.errors.StripeError)) throw error;
    return [error.type, error.statusCode, error.code].filter((part) => part !== undefined).join(" ");
  }
}

interface Case {
  readonly fault: FaultSpec;
  readonly options?: { timeout: number };
  /** What the first send looks like to stripe-node. */
  readonly first: string;
  readonly movedAfterFirst: 0 | 1;
  /** What a repeat under the same key gets. */
  readonly again: string;
  readonly movedAtEnd: 0 | 1;
}

const timedOut = "StripeConnectionError";
const serverError = "StripeAPIError 500";

const cases: readonly Case[] = [
  // stripe-node re-sends a reset connection once by itself, so two are needed for it to see one.
  {
    fault: { mode: "drop_before_execute", times: 2 },
    first: timedOut,
    movedAfterFirst: 0,
    again: "succeeded",
    movedAtEnd: 1,
  },
  {
    fault: { mode: "drop_after_execute", times: 2 },
    first: timedOut,
    movedAfterFirst: 1,
    again: "succeeded",
    movedAtEnd: 1,
  },
  { fault: { mode: "drop_after_execute" }, first: "succeeded", movedAfterFirst: 1, again: "succeeded", movedAtEnd: 1 },
  {
    fault: { mode: "rate_limit_429" },
    first: "StripeRateLimitError 429 rate_limit",
    movedAfterFirst: 0,
    again: "succeeded",
    movedAtEnd: 1,
  },
  {
    fault: { mode: "conflict_409" },
    first: "StripeAPIError 409 idempotency_key_in_use",
    movedAfterFirst: 0,
    again: "succeeded",
    movedAtEnd: 1,
  },
  { fault: { mode: "html_502" }, first: "StripeAPIError", movedAfterFirst: 0, again: "succeeded", movedAtEnd: 1 },
  { fault: { mode: "error_500_before" }, first: serverError, movedAfterFirst: 0, again: serverError, movedAtEnd: 0 },
  { fault: { mode: "error_500_after" }, first: serverError, movedAfterFirst: 1, again: serverError, movedAtEnd: 1 },
  {
    fault: { mode: "bad_request_400", code: "account_closed" },
    first: "StripeInvalidRequestError 400 account_closed",
    movedAfterFirst: 0,
    again: "StripeInvalidRequestError 400 account_closed",
    movedAtEnd: 0,
  },
  {
    fault: { mode: "lock_timeout_429" },
    first: "StripeRateLimitError 429 lock_timeout",
    movedAfterFirst: 0,
    again: "StripeRateLimitError 429 lock_timeout",
    movedAtEnd: 0,
  },
  {
    fault: { mode: "declined_402" },
    first: "StripeCardError 402 card_declined",
    movedAfterFirst: 0,
    again: "StripeCardError 402 card_declined",
    movedAtEnd: 0,
  },
  { fault: { mode: "truncate_body" }, first: timedOut, movedAfterFirst: 1, again: "succeeded", movedAtEnd: 1 },
  { fault: { mode: "html_502_after" }, first: "StripeAPIError", movedAfterFirst: 1, again: "succeeded", movedAtEnd: 1 },
  {
    fault: { mode: "invalid_json_200" },
    first: "StripeAPIError",
    movedAfterFirst: 1,
    again: "succeeded",
    movedAtEnd: 1,
  },
  {
    fault: { mode: "slow_reply", afterMs: 60_000 },
    options: { timeout: 2_000 },
    first: timedOut,
    movedAfterFirst: 1,
    again: "succeeded",
    movedAtEnd: 1,
  },
];

test.each(cases)("$fault.mode: $first, $movedAfterFirst moved; repeated: $again, $movedAtEnd moved", async (row) => {
  simulator.fault(row.fault);
  expect(await charge(row.options)).toBe(row.first);
  expect(simulator.movements()).toHaveLength(row.movedAfterFirst);
  expect(await charge()).toBe(row.again);
  expect(simulator.movements()).toHaveLength(row.movedAtEnd);
});

test("a slow execution outlives its client: nothing at first, then the charge", async () => {
  const slow = simulator.fault({ mode: "hold" });
  const first = charge({ timeout: 2_000 });
  await slow.arrivals();
  expect(await first).toBe(timedOut);
  expect(await charge()).toBe("StripeAPIError 409 idempotency_key_in_use");
  expect((await client().charges.list({ customer: "cus_1" })).data).toEqual([]);
  slow.release();
  await expect.poll(() => simulator.movements().length).toBe(1);
  expect(await charge()).toBe("succeeded");
  expect(simulator.movements()).toHaveLength(1);
});

test.each(["slow_before_execute", "slow_after_execute"] as const)("%s: late, and 409 meanwhile", async (mode) => {
  const slow = simulator.fault({ mode, afterMs: 4_000 });
  const first = charge();
  await slow.arrivals();
  expect(await charge()).toBe("StripeAPIError 409 idempotency_key_in_use");
  expect(simulator.movements()).toHaveLength(mode === "slow_after_execute" ? 1 : 0);
  expect(await first).toBe("succeeded");
  expect(await charge()).toBe("succeeded");
  expect(simulator.movements()).toHaveLength(1);
});

test("hold_after_execute: the money has moved and nobody has been told", async () => {
  const held = simulator.fault({ mode: "hold_after_execute" });
  const first = charge();
  const [request] = await held.arrivals();
  expect(request).toMatchObject({ method: "POST", path: "/v1/charges", key: "k", params: { amount: "4900" } });
  await expect.poll(() => simulator.movements().length).toBe(1);
  expect(await charge()).toBe("StripeAPIError 409 idempotency_key_in_use");
  held.release();
  expect(await first).toBe("succeeded");
});

test("a request held in transit past the retention of its key charges a second time", async () => {
  const held = simulator.fault({ mode: "hold_in_transit" });
  const late = charge();
  await held.arrivals();
  expect(await charge()).toBe("succeeded");
  simulator.advance(25 * 3_600_000);
  held.release();
  expect(await late).toBe("succeeded");
  expect(simulator.movements()).toHaveLength(2);
});

test("the rate limiter names its reason, and lock_timeout does not", async () => {
  simulator.fault({ mode: "rate_limit_429", reason: "endpoint-concurrency" });
  simulator.fault({ mode: "lock_timeout_429" });
  const headers = { authorization: "Bearer sk_test_1", "content-type": "application/x-www-form-urlencoded" };
  const send = () =>
    fetch(`${simulator.url}/v1/charges`, { method: "POST", headers, body: "amount=1&currency=usd&source=tok_visa" });
  const [limited, locked] = [await send(), await send()];
  expect(limited.headers.get("stripe-rate-limited-reason")).toBe("endpoint-concurrency");
  expect(limited.headers.get("stripe-should-retry")).toBeNull();
  expect(locked.headers.get("stripe-rate-limited-reason")).toBeNull();
  expect(locked.headers.get("stripe-should-retry")).toBe("true");
});

test("a cut body still tells which request it was", async () => {
  simulator.fault({ mode: "truncate_body" });
  const error: unknown = await client()
    .charges.create({ amount: 1, currency: "usd", source: "tok_visa" })
    .catch((reason: unknown) => reason);
  expect(error).toMatchObject({ type: "StripeConnectionError", requestId: simulator.requests()[0]?.id });
});

test("stripe-node's own re-send after a reset carries the same key", async () => {
  simulator.fault({ mode: "drop_after_execute" });
  await charge();
  expect(simulator.requests().map(({ key, status, replayed }) => [key, status, replayed])).toEqual([
    ["k", null, false],
    ["k", 200, true],
  ]);
});

test("a fault meets only what it matches, from the nth request on, so many times", async () => {
  const stripe = client();
  const fault = simulator.fault({
    match: { method: "POST", path: "/v1/payment_intents", params: { customer: "cus_1" }, nth: 2 },
    mode: "error_500_before",
    times: 2,
  });
  const create = async (customer: string) => {
    try {
      await stripe.paymentIntents.create({ amount: 1, currency: "usd", customer });
      return 200;
    } catch (error) {
      return (error as Stripe.errors.StripeError).statusCode;
    }
  };
  expect(await charge()).toBe("succeeded");
  await stripe.paymentIntents.list({ customer: "cus_1" });
  const statuses: unknown[] = [];
  for (const customer of ["cus_1", "cus_2", "cus_1", "cus_1", "cus_1"]) statuses.push(await create(customer));
  expect(statuses).toEqual([200, 200, 500, 500, 200]);
  expect((await fault.arrivals(2)).map(({ params }) => params["customer"])).toEqual(["cus_1", "cus_1"]);

  simulator.fault({ match: { path: /\/confirm$/, key: "other" }, mode: "error_500_before" });
  const { id } = await stripe.paymentIntents.create({ amount: 1, currency: "usd", payment_method: "pm_card_visa" });
  expect(await stripe.paymentIntents.confirm(id, {}, { idempotencyKey: "mine" })).toMatchObject({
    status: "succeeded",
  });
});

test("a removed fault meets nothing more; cleared ones let go of what they hold", async () => {
  const fault = simulator.fault({ mode: "error_500_before", times: 9 });
  fault.remove();
  expect(await charge()).toBe("succeeded");
  const held = simulator.fault({ mode: "hold_in_transit", times: 9 });
  const waiting = charge();
  await held.arrivals();
  simulator.clearFaults();
  expect(await waiting).toBe("succeeded");
  expect(await charge()).toBe("succeeded");
});

test("nothing that is held executes after the simulator was closed", async () => {
  const other = await startStripeSimulator({ movementsFile: simulator.movementsFile });
  const held = other.fault({ mode: "hold" });
  const headers = { authorization: "Bearer sk_test_1", "content-type": "application/x-www-form-urlencoded" };
  const body = "amount=1&currency=usd&source=tok_visa";
  const sent = fetch(`${other.url}/v1/charges`, { method: "POST", headers, body }).catch(() => "cut");
  await held.arrivals();
  await other.close();
  held.release();
  expect(await sent).toBe("cut");
  await new Promise((resolve) => setImmediate(resolve));
  expect(simulator.movements()).toEqual([]);
});
