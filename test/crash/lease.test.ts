import { randomBytes } from "node:crypto";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { type BillingLease, LeaseAnswer, LeaseOutcome } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { DenialRule, Disposition } from "@holdfast/api/holdfast/v1/spend_pb";
import { afterAll, beforeAll, expect, test } from "vitest";
import { billingPeriod, purpose } from "./billing-call.ts";
import { type Desk, openDesk } from "./desk.ts";
import { startLineProcess } from "./line-process.ts";

let desk: Desk;
let spend: ReturnType<Desk["spend"]>;
beforeAll(async () => {
  desk = await openDesk();
  spend = desk.spend();
});
afterAll(async () => {
  await desk.close();
});

const ttl = (ms: number) => ({ seconds: BigInt(Math.floor(ms / 1000)), nanos: (ms % 1000) * 1_000_000 });
const acquire = (lease: string, holderId: string, ttlMs = 60_000) =>
  spend.acquireBillingLease({ lease, billingPeriod, holderId, ttl: ttl(ttlMs) });

/** Asks until the lease is free, waiting exactly as long as the server says. */
async function takeOver(lease: string, holderId: string): Promise<BillingLease> {
  for (;;) {
    const { answer, billingLease, remaining } = await acquire(lease, holderId);
    if (answer === LeaseAnswer.ACQUIRED && billingLease !== undefined) return billingLease;
    expect(answer).toBe(LeaseAnswer.HELD_BY_OTHER);
    await delay(Number(remaining?.seconds ?? 0n) * 1000 + (remaining?.nanos ?? 0) / 1e6 + 1);
  }
}

function authorize(customerId: string, fence: Pick<BillingLease, "lease" | "holderId" | "fencingToken">) {
  const { lease, holderId, fencingToken } = fence;
  return spend.authorizeSpend({
    spend: { customerId, billingPeriod, purpose, amount: { currency: "usd", amount: "4.90" } },
    vendor: "stripe",
    endpoint: "POST /v1/payment_intents",
    attemptId: randomBytes(16).toString("hex"),
    leaseFence: { lease, billingPeriod, holderId, fencingToken },
  });
}

test("a holder that was stopped past its lease stops by itself, and its token is worth nothing", async () => {
  const lease = "paused";
  const child = startLineProcess(join(import.meta.dirname, "lease-process.ts"));
  try {
    child.tell({ call: desk.call("lease-first"), lease, ttlMs: 8_000 });
    const { holding, holderId } = await child.said((line) => "holding" in line);
    expect(await child.said((line) => line["charged"] === "lease-first")).toMatchObject({
      outcome: { status: "succeeded" },
    });
    child.signal("SIGSTOP");
    const other = await takeOver(lease, "other");
    expect(other.fencingToken).toBeGreaterThan(BigInt(holding as string));
    // Its next customer waits for it when it wakes up.
    child.tell({ charge: "lease-second" });
    child.signal("SIGCONT");
    const refused = await child.said((line) => line["charged"] === "lease-second");
    expect(refused).toMatchObject({ outcome: { error: "LeaseLostError" } });
    const aborted = await child.said((line) => "aborted" in line);
    expect(aborted).toEqual({ aborted: "LeaseLostError" });
    expect(child.lines.indexOf(aborted)).toBeLessThan(child.lines.indexOf(refused));
    child.tell({ finish: true });
    expect(await child.said((line) => "result" in line)).toMatchObject({ result: { outcome: "lost" } });
    expect(child.lines.filter((line) => "defect" in line)).toEqual([]);
    // Nothing of it reached the server or the vendor, and what would have is refused there as well.
    expect(await desk.events("lease-second")).toEqual([]);
    expect(desk.charges("lease-second")).toEqual([]);
    const stale = { lease, holderId: holderId as string, fencingToken: BigInt(holding as string) };
    expect(await authorize("lease-third", stale)).toMatchObject({
      disposition: Disposition.DENIED,
      denial: { rule: DenialRule.FENCING_TOKEN },
    });
    expect(await authorize("lease-third", other)).toMatchObject({ disposition: Disposition.GRANTED });
    expect((await acquire(lease, "third")).billingLease?.holderId).toBe("other");
  } finally {
    child.signal("SIGCONT");
    await child.kill();
  }
});

test("fifty that ask at once: one winner, named to all others", async () => {
  const answers = await Promise.all(Array.from({ length: 50 }, (_, n) => acquire("crowd", `holder-${n}`)));
  const winners = answers.filter(({ answer }) => answer === LeaseAnswer.ACQUIRED);
  expect(winners).toHaveLength(1);
  const holder = winners[0]?.billingLease?.holderId;
  expect(new Set(answers.map(({ billingLease }) => billingLease?.holderId))).toEqual(new Set([holder]));
  expect(new Set(answers.map(({ billingLease }) => billingLease?.fencingToken))).toEqual(new Set([1n]));
});

test("tokens strictly grow over takeovers, also when the same holder comes back", async () => {
  const tokens: bigint[] = [];
  for (const holderId of ["a", "b", "a", "a", "c"]) {
    const { answer, billingLease } = await acquire("growing", holderId, 30_000);
    expect(answer).toBe(LeaseAnswer.ACQUIRED);
    tokens.push(billingLease?.fencingToken ?? 0n);
    await desk.server.clock.advance(30_001);
  }
  await desk.server.clock.reset();
  expect(tokens).toEqual([1n, 2n, 3n, 4n, 5n]);
});

test("renew and release with an old token change nothing", async () => {
  const lease = "old-token";
  const first = (await acquire(lease, "first", 30_000)).billingLease as BillingLease;
  await desk.server.clock.advance(30_001);
  const second = (await acquire(lease, "second", 60_000)).billingLease as BillingLease;
  const now = async () => (await acquire(lease, "spectator")).billingLease;
  expect(await now()).toEqual(second);
  const old = [
    { holderId: "first", fencingToken: first.fencingToken },
    { holderId: "second", fencingToken: first.fencingToken },
    { holderId: "first", fencingToken: second.fencingToken },
  ];
  for (const { holderId, fencingToken } of old) {
    const request = { lease, billingPeriod, holderId, fencingToken };
    expect(await spend.renewBillingLease({ ...request, ttl: ttl(3_600_000) })).toMatchObject({ renewed: false });
    for (const outcome of [LeaseOutcome.COMPLETED, LeaseOutcome.INCOMPLETE]) {
      expect(await spend.releaseBillingLease({ ...request, outcome })).toMatchObject({ released: false });
    }
    expect(await now()).toEqual(second);
  }
  await desk.server.clock.reset();
});

test("completed closes the name and period for ever, and no other", async () => {
  const lease = "nightly";
  const held = (await acquire(lease, "first")).billingLease as BillingLease;
  const { holderId, fencingToken } = held;
  const release = { lease, billingPeriod, holderId, fencingToken, outcome: LeaseOutcome.COMPLETED };
  expect(await spend.releaseBillingLease(release)).toMatchObject({ released: true });
  expect(await authorize("after-completed", held)).toMatchObject({
    disposition: Disposition.DENIED,
    denial: { rule: DenialRule.FENCING_TOKEN },
  });
  await desk.server.clock.advance(10 * 365 * 24 * 3_600_000);
  for (const who of ["first", "second"]) {
    expect(await acquire(lease, who)).toMatchObject({ answer: LeaseAnswer.ALREADY_COMPLETED });
  }
  await desk.server.clock.reset();
  expect(
    await spend.acquireBillingLease({ lease, billingPeriod: "2026-12", holderId: "first", ttl: ttl(60_000) }),
  ).toMatchObject({ answer: LeaseAnswer.ACQUIRED });
});
