import { gzipSync } from "node:zlib";
import { SpendInDoubtError, stableKey, VendorUnreachableError } from "@holdfast/sdk";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type BillingKind, billingPeriod, purpose } from "../crash/billing-call.ts";
import { rejection } from "../sdk/setup.ts";
import type { FaultSpec } from "../support/stripe-simulator/fault-spec.ts";
import { type Answer, type Spoil, type SpoilingFront, startSpoilingFront } from "./spoiling-front.ts";
import { amount, HOUR_MS, openTill, type Till } from "./till.ts";

let till: Till;
let front: SpoilingFront;
beforeAll(async () => {
  till = await openTill();
  front = await startSpoilingFront(till.simulator.port);
});
afterAll(async () => {
  front.spoil(undefined);
  await front.close();
  await till.close();
});

const kinds: readonly BillingKind[] = ["one_call", "two_step"];

/** Of the request that moves the money. */
function movingKey(customerId: string, kind: BillingKind): string {
  return `${stableKey(customerId, billingPeriod, purpose)}${kind === "two_step" ? "-confirm-1" : ""}`;
}

const movesMoney = ({ method, path }: Answer): boolean =>
  method === "POST" && (path === "/v1/charges" || path.endsWith("/confirm"));

/** For a whole call of the vendor, bodies and repeats included; the SDK's own. */
const VENDOR_DEADLINE_MS = 30_000;

/** Nothing of the vendor can be read meanwhile, or the guard would look and know. */
const alsoReads = (answer: Answer): boolean => movesMoney(answer) || answer.method === "GET";

/** Told when an answer has begun that will not end. The ones after it are cut. */
let hangs: (() => void) | undefined;

const answers: Readonly<Record<string, Spoil>> = {
  "one byte at a time": ({ status, headers, body }, response) => {
    if (hangs === undefined) {
      response.destroy();
      return "taken";
    }
    const told = hangs;
    hangs = undefined;
    response.writeHead(status, { ...headers, "content-length": body.length + 1_000_000 });
    let bytes = 0;
    const timer = setInterval(() => {
      response.write(" ");
      bytes += 1;
      if (bytes === 3) told();
    }, 20);
    response.once("close", () => clearInterval(timer));
    return "taken";
  },
  "cut in the middle": ({ status, headers, body }, response) => {
    response.writeHead(status, { ...headers, "content-length": body.length });
    response.write(body.subarray(0, body.length / 2), () => response.destroy());
    return "taken";
  },
  "broken JSON": (answer) => ({ ...answer, body: Buffer.from(`{"id": "ch_1", "status": `) }),
  "nothing at all": (answer) => ({ ...answer, body: Buffer.alloc(0) }),
  "another program's JSON": (answer) => ({ ...answer, status: 503, body: Buffer.from('"upstream"') }),
  "compressed junk": (answer) => ({
    ...answer,
    headers: { ...answer.headers, "content-encoding": "gzip" },
    body: gzipSync(answer.body).fill(7, 10),
  }),
  "a redirection": (answer) => ({
    ...answer,
    status: 307,
    headers: { location: `http://127.0.0.1:${front.port}/elsewhere` },
    body: Buffer.from("moved"),
  }),
  "a redirection with a body of Stripe's": (answer) => ({
    ...answer,
    status: 302,
    headers: { ...answer.headers, location: "/elsewhere" },
  }),
};

describe.each(kinds)("the answer to what moved the money (%s)", (kind) => {
  test.each(Object.keys(answers))("is %s: an unknown outcome, counted, settled by who looks", async (name) => {
    const customerId = `${kind}-${name.replaceAll(/\W/g, "-")}`;
    const before = await till.usage();
    front.spoil((answer, response) => (alsoReads(answer) ? (answers[name] as Spoil)(answer, response) : undefined));
    const clerk = till.clerk({ stripePort: front.port });
    // As long as one send may take, of the 30 seconds for all of them.
    hangs = () => void clerk.time.advance(20_000);
    const began = clerk.time.now();
    const error = await rejection(clerk.charge(customerId, kind)).finally(() => front.spoil(undefined));
    expect(clerk.time.now() - began).toBeLessThanOrEqual(VENDOR_DEADLINE_MS);
    expect(error).toBeInstanceOf(SpendInDoubtError);
    expect(till.charges(customerId)).toHaveLength(1);
    expect(await till.state(customerId)).toBe("IN_DOUBT");
    expect(await till.usage()).toEqual({ ...before, held: before.held + amount });
    expect(front.paths.filter((path) => path.includes("elsewhere"))).toEqual([]);
    expect((await till.clerk().reconcile()).counts).toMatchObject({ committed: 1 });
    expect(await till.state(customerId)).toBe("COMMITTED");
    expect(await till.usage()).toEqual({ ...before, committed: before.committed + amount });
    const again = await till.clerk().charge(customerId, kind);
    const [charge, ...others] = till.charges(customerId);
    expect(others).toEqual([]);
    expect(again.id).toBe(charge?.payment_intent ?? charge?.id);
  });
});

interface Case {
  readonly fault: Omit<FaultSpec, "match">;
  readonly kind: BillingKind;
  /** Of the first call: what the application sees, and what the spend is then. */
  readonly first: "charged" | "in doubt" | "refused by the vendor" | "unreachable";
  readonly state: string;
  /** Charges at the vendor after the first call. */
  readonly charged: 0 | 1;
  /** How the spend ends: by another call, or by somebody who looks at the vendor. */
  readonly settledBy: "call" | "reconciler" | "call, after the quarantine";
}

// One call: what the vendor saved under the key is all it will ever answer, so only the object itself tells.
const cases: readonly Case[] = [
  {
    fault: { mode: "error_500_after" },
    kind: "one_call",
    first: "in doubt",
    state: "IN_DOUBT",
    charged: 1,
    settledBy: "reconciler",
  },
  {
    fault: { mode: "error_500_before" },
    kind: "one_call",
    first: "in doubt",
    state: "IN_DOUBT",
    charged: 0,
    settledBy: "call, after the quarantine",
  },
  {
    fault: { mode: "error_500_after" },
    kind: "two_step",
    first: "charged",
    state: "COMMITTED",
    charged: 1,
    settledBy: "call",
  },
  {
    fault: { mode: "error_500_before" },
    kind: "two_step",
    first: "charged",
    state: "COMMITTED",
    charged: 1,
    settledBy: "call",
  },
  {
    fault: { mode: "lock_timeout_429" },
    kind: "one_call",
    first: "in doubt",
    state: "IN_DOUBT",
    charged: 0,
    settledBy: "call, after the quarantine",
  },
  {
    fault: { mode: "lock_timeout_429" },
    kind: "two_step",
    first: "charged",
    state: "COMMITTED",
    charged: 1,
    settledBy: "call",
  },
  {
    fault: { mode: "rate_limit_429" },
    kind: "one_call",
    first: "charged",
    state: "COMMITTED",
    charged: 1,
    settledBy: "call",
  },
  {
    fault: { mode: "rate_limit_429" },
    kind: "two_step",
    first: "charged",
    state: "COMMITTED",
    charged: 1,
    settledBy: "call",
  },
  // For as long as the call lasts. Of a first send the limiter says that nothing happened.
  {
    fault: { mode: "rate_limit_429", times: 100 },
    kind: "one_call",
    first: "refused by the vendor",
    state: "VOIDED",
    charged: 0,
    settledBy: "call",
  },
  {
    fault: { mode: "conflict_409", times: 100 },
    kind: "one_call",
    first: "in doubt",
    state: "IN_DOUBT",
    charged: 0,
    settledBy: "call",
  },
  {
    fault: { mode: "conflict_409", times: 100 },
    kind: "two_step",
    first: "in doubt",
    state: "IN_DOUBT",
    charged: 0,
    settledBy: "call",
  },
];

describe("an answer that is an error", () => {
  test.each(cases)("$fault.mode × $fault.times, $kind: $first, $charged charged", async (row) => {
    const { fault, kind } = row;
    const customerId = `${kind}-${fault.mode}-${fault.times ?? 1}`;
    const before = await till.usage();
    till.simulator.fault({ ...fault, match: { key: movingKey(customerId, kind) } });
    const outcome = await till
      .clerk()
      .charge(customerId, kind)
      .catch((error: unknown) => error);
    till.simulator.clearFaults();
    if (row.first === "charged") expect(outcome).toMatchObject({ status: "succeeded" });
    if (row.first === "in doubt") expect(outcome).toBeInstanceOf(SpendInDoubtError);
    if (row.first === "unreachable") expect(outcome).toBeInstanceOf(VendorUnreachableError);
    if (row.first === "refused by the vendor") expect(outcome).toMatchObject({ statusCode: 429 });
    expect(await till.state(customerId)).toBe(row.state);
    expect(till.charges(customerId)).toHaveLength(row.charged);
    const held = row.state === "IN_DOUBT" ? amount : 0;
    expect((await till.usage()).held - before.held).toBe(held);
    const key = movingKey(customerId, kind);
    const keys = till.simulator
      .requests()
      .filter((one) => one.method === "POST" && one.params["customer"] === customerId);
    expect(new Set(keys.map((one) => one.key)).size).toBeLessThanOrEqual(kind === "two_step" ? 2 : 1);
    expect(till.simulator.requests().some((one) => one.key === key)).toBe(true);
    if (row.settledBy === "reconciler") {
      expect((await till.clerk().reconcile()).counts).toMatchObject({ committed: 1 });
    }
    const proven = row.settledBy === "call, after the quarantine";
    if (proven) await outlastQuarantine(customerId);
    const again = await till.clerk().charge(customerId, kind, proven ? 1 : 0);
    expect(again.status).toBe("succeeded");
    expect(till.charges(customerId)).toHaveLength(1);
    expect(await till.state(customerId)).toBe("COMMITTED");
    expect((await till.usage()).held).toBe(before.held);
  });

  test("429 of the limiter after a lost answer says nothing about it, and voids nothing", async () => {
    const customerId = "limited-replay";
    const key = movingKey(customerId, "one_call");
    till.simulator.fault({ mode: "drop_after_execute", match: { key } });
    till.simulator.fault({ mode: "rate_limit_429", match: { key }, times: 100 });
    expect(await rejection(till.clerk().charge(customerId, "one_call"))).toBeInstanceOf(SpendInDoubtError);
    till.simulator.clearFaults();
    expect(await till.state(customerId)).toBe("IN_DOUBT");
    expect((await till.clerk().charge(customerId, "one_call")).status).toBe("succeeded");
    expect(till.charges(customerId)).toHaveLength(1);
  });
});

/** Nobody knows until two complete looks after the quarantine show nothing. */
async function outlastQuarantine(customerId: string): Promise<void> {
  expect((await till.clerk().reconcile()).counts).toMatchObject({ absent: 1 });
  expect(await till.state(customerId)).toBe("IN_DOUBT");
  // The key may be sent again for 23 hours, and a request may be under way for another 25.
  await till.advance(49 * HOUR_MS);
  expect((await till.clerk().reconcile()).counts).toMatchObject({ absent: 1 });
  await till.advance(HOUR_MS / 12);
  expect((await till.clerk().reconcile()).counts).toMatchObject({ voided: 1 });
  expect(await till.state(customerId)).toBe("VOIDED");
}

test("three processes at one spend, one of them told that the key is in use: one grant, one charge", async () => {
  const customerId = "three-workers";
  const hold = till.simulator.fault({ mode: "hold", match: { key: movingKey(customerId, "one_call") } });
  const first = till.clerk().charge(customerId, "one_call");
  const [sent] = await hold.arrivals();
  // A copy of the process that got the grant, such as a restored machine, sends the same request meanwhile.
  const options = { idempotencyKey: movingKey(customerId, "one_call"), maxNetworkRetries: 0 };
  const copy = till.clerk().plain.charges.create(sent?.params, options);
  expect(await rejection(copy)).toMatchObject({ statusCode: 409 });
  const others = [till.clerk(), till.clerk()].map(({ charge }) => charge(customerId, "one_call"));
  hold.release();
  const [charged, ...rest] = await Promise.all([first, ...others]);
  expect(till.charges(customerId)).toHaveLength(1);
  expect(rest.map(({ id }) => id)).toEqual([charged.id, charged.id]);
  const events = await till.events(customerId);
  expect(events.filter(({ disposition }) => disposition === "GRANTED")).toHaveLength(1);
  expect(await till.state(customerId)).toBe("COMMITTED");
});
