import { join } from "node:path";
import { LeaseAnswer } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { afterAll, beforeAll, expect, test } from "vitest";
import { billingPeriod } from "../crash/billing-call.ts";
import { type Desk, openDesk } from "../crash/desk.ts";
import { startLineProcess } from "../crash/line-process.ts";

let desk: Desk;
let spend: ReturnType<Desk["spend"]>;
beforeAll(async () => {
  desk = await openDesk();
  spend = desk.spend();
});
afterAll(() => desk.close());

const TTL_MS = 60_000;

const acquire = (lease: string, holderId: string, ttlMs = TTL_MS) =>
  spend.acquireBillingLease({ lease, billingPeriod, holderId, ttl: { seconds: BigInt(ttlMs / 1000) } });

const ms = (duration: { seconds: bigint; nanos: number } | undefined) =>
  duration === undefined ? Number.NaN : Number(duration.seconds) * 1000 + duration.nanos / 1e6;

test("a holder that is killed is followed by another when its time is over, with a greater token", async () => {
  const lease = "killed";
  const child = startLineProcess(join(import.meta.dirname, "../crash/lease-process.ts"));
  let token = 0n;
  try {
    child.tell({ call: desk.call("lease-killed"), lease, ttlMs: TTL_MS });
    const { holding } = await child.said((line) => "holding" in line);
    token = BigInt(holding as string);
    await child.said((line) => "charged" in line);
  } finally {
    await child.kill();
  }
  const early = await acquire(lease, "next");
  expect(early.answer).toBe(LeaseAnswer.HELD_BY_OTHER);
  const left = ms(early.remaining);
  expect(left).toBeLessThanOrEqual(TTL_MS);
  await desk.server.clock.advance(left + 1);
  const { answer, billingLease } = await acquire(lease, "next");
  expect(answer).toBe(LeaseAnswer.ACQUIRED);
  expect(billingLease?.fencingToken).toBeGreaterThan(token);
  expect(desk.charges("lease-killed")).toHaveLength(1);
});

test("the time of a lease counts from its grant, however long its row was waited for", async () => {
  const lease = "waited";
  await acquire(lease, "first", 5_000);
  await desk.server.clock.advance(5_001);
  const locker = await desk.server.database.pool.connect();
  try {
    await locker.query("begin");
    await locker.query("select from holdfast.billing_leases where lease = $1 for update", [lease]);
    const waiting = acquire(lease, "second", 5_000);
    await expect.poll(waiters).toBe(1);
    // Longer than it asked for.
    await desk.server.clock.advance(20_000);
    await locker.query("commit");
    const { answer, remaining } = await waiting;
    expect(answer).toBe(LeaseAnswer.ACQUIRED);
    expect(ms(remaining)).toBeGreaterThan(4_000);
  } finally {
    locker.release();
  }
  expect((await acquire(lease, "third")).answer).toBe(LeaseAnswer.HELD_BY_OTHER);
});

async function waiters(): Promise<number> {
  const { rows } = await desk.server.database.pool.query<{ n: number }>(
    "select count(*)::int as n from pg_stat_activity where datname = current_database() " +
      "and wait_event_type = 'Lock' and query like '%acquire_billing_lease%'",
  );
  return rows[0]?.n ?? 0;
}

test("fifty that ask while the database's clock jumps back and forth: never two holders of one token", async () => {
  const lease = "jumps";
  const holders = new Map<bigint, Set<string>>();
  let latest = 0n;
  const jumps = [0, -3_600_000, 3_600_000, TTL_MS + 1, -86_400_000, 2 * 86_400_000];
  for (const jump of jumps) {
    const asking = Array.from({ length: 50 }, (_, n) => acquire(lease, `holder-${jump}-${n}`));
    await desk.server.clock.advance(jump);
    const answers = await Promise.all(asking);
    for (const { answer, billingLease } of answers) {
      if (answer !== LeaseAnswer.ACQUIRED || billingLease === undefined) continue;
      const { fencingToken, holderId } = billingLease;
      holders.set(fencingToken, (holders.get(fencingToken) ?? new Set()).add(holderId));
      if (fencingToken > latest) latest = fencingToken;
    }
  }
  expect([...holders.values()].map(({ size }) => size)).toEqual([...holders.keys()].map(() => 1));
  // Whoever holds it now is the one with the greatest token, and a renewal with an older one changes nothing.
  const { billingLease } = await acquire(lease, "last");
  expect(billingLease?.fencingToken).toBeGreaterThanOrEqual(latest);
  for (const [fencingToken, [holderId = ""]] of holders) {
    if (fencingToken === billingLease?.fencingToken) continue;
    const old = { lease, billingPeriod, holderId, fencingToken };
    expect((await spend.renewBillingLease({ ...old, ttl: { seconds: 60n } })).renewed).toBe(false);
    expect((await spend.releaseBillingLease({ ...old, outcome: 2 })).released).toBe(false);
  }
});
