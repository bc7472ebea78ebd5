import { AuthorizationState, ReconciliationFinding, VoidEvidence } from "@holdfast/api/holdfast/v1/spend_pb";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import {
  charge,
  liveSecret,
  markOf,
  otherSecret,
  startVendorWorld,
  strangersSecret,
  type VendorWorld,
} from "./world.ts";

const minute = 60_000;
const hour = 60 * minute;
const { COMMITTED, HELD, IN_DOUBT, VOIDED } = AuthorizationState;

let world: VendorWorld;
afterEach(() => world.close());

/** Resolves when the reconciler has looked at it once more. */
async function lookedAt(name: string, before: number): Promise<void> {
  await expect.poll(async () => (await world.get(name)).reconciliation?.count ?? 0).toBeGreaterThan(before);
}

/** Resolves when the first look that counts has shown nothing. */
async function absentSince(name: string): Promise<void> {
  await expect.poll(async () => (await world.get(name)).reconciliation?.absentSinceTime).toBeDefined();
}

describe("one server", () => {
  beforeEach(async () => {
    world = await startVendorWorld();
    await world.store();
  });

  test("a charge whose answer was lost is committed at what was charged, also above the hold and the cap", async () => {
    const small = await world.doubted({ charged: 4900 });
    const large = await world.doubted({ charged: 490_000 });
    expect(await world.becomes(small.name, COMMITTED)).toMatchObject({ committedAmount: { amount: "49" } });
    expect(await world.becomes(large.name, COMMITTED)).toMatchObject({ committedAmount: { amount: "4900" } });
    expect(await world.events(small.name)).toEqual([
      "spend.granted vault_key/billing",
      "spend.in_doubt vault_key/billing",
      "spend.committed server/reconciler",
    ]);
    const { cap } = await world.server.admin.getCap({ name: "caps/all" });
    expect(cap).toBeDefined();
  });

  test("a charge that the events do not show is found by its mark, among many pages", async () => {
    const one = await world.doubted({});
    await charge({ plain: world.plain, authorization: one, amount: 4900, key: "another" });
    for (let n = 0; n < 120; n += 1)
      await world.plain.charges.create({ amount: 100, currency: "usd", source: "tok_visa" });
    await world.advance(minute);
    expect((await world.becomes(one.name, COMMITTED)).vendorReference).toMatch(/^ch_/);
    const paths = world.simulator.requests().map(({ path }) => path);
    expect(paths.some((path) => path.includes("search"))).toBe(false);
  });

  test("what never reached the vendor is void only by a second look after the quarantine", async () => {
    const one = await world.doubted();
    await lookedAt(one.name, 0);
    await world.advance(10 * minute);
    await lookedAt(one.name, 1);
    expect((await world.get(one.name)).state).toBe(IN_DOUBT);
    await world.advance(26 * hour);
    await absentSince(one.name);
    expect((await world.get(one.name)).state).toBe(IN_DOUBT);
    await world.advance(5 * minute);
    expect(await world.becomes(one.name, VOIDED)).toMatchObject({ voidEvidence: VoidEvidence.ABSENT_AFTER_QUARANTINE });
    expect((await world.events(one.name)).at(-1)).toBe("spend.voided server/reconciler");
  });

  test("an object that is open is followed, and settled when it is at its end", async () => {
    const attempt = { endpoint: "POST /v1/payment_intents" };
    const [paid, cancelled] = [await world.doubted(attempt), await world.doubted(attempt)];
    const intents = [];
    for (const one of [paid, cancelled]) {
      intents.push(
        await world.plain.paymentIntents.create(
          { amount: 4900, currency: "usd", metadata: { holdfast_authorization: markOf(one) } },
          { idempotencyKey: one.idempotencyKey },
        ),
      );
    }
    await world.advance(minute);
    for (const one of [paid, cancelled]) await world.becomes(one.name, HELD);
    await world.plain.paymentIntents.confirm(intents[0]?.id ?? "", { payment_method: "pm_card_visa" });
    await world.plain.paymentIntents.cancel(intents[1]?.id ?? "");
    await world.advance(hour);
    expect((await world.becomes(paid.name, COMMITTED)).vendorReference).toBe(intents[0]?.id);
    expect((await world.becomes(cancelled.name, VOIDED)).voidEvidence).toBe(VoidEvidence.TOMBSTONE);
  });

  test("a connected account is asked as itself", async () => {
    const one = await world.doubted({ account: "acct_9", charged: 4900 });
    await world.becomes(one.name, COMMITTED);
    const reads = world.simulator.requests().filter(({ method }) => method === "GET");
    expect(reads.some(({ account, path }) => account === "acct_9" && path === "/v1/events")).toBe(true);
  });

  test("rate limits and errors are waited out", async () => {
    world.simulator.fault({ mode: "rate_limit_429", match: { method: "GET", path: "/v1/events" }, times: 1 });
    world.simulator.fault({ mode: "error_500_before", match: { method: "GET", path: "/v1/charges" }, times: 1 });
    const one = await world.doubted({ charged: 4900 });
    await world.becomes(one.name, COMMITTED);
  });

  test("while the vendor is away it stays in doubt and counted, is asked rarely, and is settled soon after", async () => {
    const down = world.simulator.fault({ mode: "drop_before_execute", match: { method: "GET" }, times: 10_000 });
    const one = await world.doubted({ charged: 4900 });
    await lookedAt(one.name, 0);
    for (let hours = 0; hours < 2; hours += 1) {
      const before = world.simulator.requests().length;
      await world.advance(hour);
      await expect.poll(() => world.simulator.requests().length).toBeGreaterThan(before);
      expect((await world.get(one.name)).state).toBe(IN_DOUBT);
    }
    const { rows } = await world.server.database.pool.query<{ pause: number; silent: number }>(
      `select extract(epoch from q.resume_time - holdfast.clock())::float as pause, q.silent_count as silent
       from holdfast.reconciler_claims q`,
    );
    expect(rows[0]?.pause).toBeLessThanOrEqual(60);
    down.remove();
    await world.advance(minute);
    await world.becomes(one.name, COMMITTED);
  });

  test("a database that is not recovered lets nothing be voided for its absence, and everything be committed", async () => {
    const absent = await world.doubted();
    await lookedAt(absent.name, 0);
    await world.advance(10 * minute);
    await lookedAt(absent.name, 1);
    const lost = await world.doubted();
    await world.server.database.pool.query("update holdfast.instance set suspicion = 'LOG_WENT_BACK'");
    await charge({ plain: world.plain, authorization: lost, amount: 4900 });
    await world.advance(26 * hour);
    await world.becomes(lost.name, COMMITTED);
    await absentSince(absent.name);
    const looks = (await world.get(absent.name)).reconciliation?.count ?? 0;
    await world.advance(hour);
    await lookedAt(absent.name, looks);
    expect((await world.get(absent.name)).state).toBe(IN_DOUBT);
  });

  test("an object with our mark that is dearer than the hold, and one that is bound elsewhere, wait for an operator", async () => {
    const one = await world.doubted();
    await charge({ plain: world.plain, authorization: one, amount: 990_000, key: "copied" });
    await world.advance(minute);
    await expect.poll(async () => (await world.get(one.name)).reconciliation?.note ?? "").toContain("dearer than held");
    const reads = world.simulator.requests().length;
    await lookedAt(one.name, 0);
    expect(world.simulator.requests().length - reads).toBeLessThan(6);
  });
});

test("a server that is stopped between its look and its report voids nothing that was charged meanwhile", async () => {
  world = await startVendorWorld();
  await world.store();
  const one = await world.doubted();
  await lookedAt(one.name, 0);
  await world.advance(20 * hour);
  // The vendor's answer is made, and the server goes on with it days later.
  const match = { method: "GET", path: "/v1/charges" };
  const stopped = world.simulator.fault({ mode: "hold_after_execute", match, times: 1 });
  await world.advance(hour);
  await stopped.arrivals(1);
  await charge({ plain: world.plain, authorization: one, amount: 4900 });
  await world.advance(72 * hour);
  const looks = (await world.get(one.name)).reconciliation?.count ?? 0;
  stopped.release();
  await lookedAt(one.name, looks);
  await world.advance(hour);
  await world.becomes(one.name, COMMITTED);
  expect(await world.events(one.name)).not.toContain("spend.voided server/reconciler");
});

/** Stores another credential in place of the one that is there. */
async function replace(secret: string): Promise<void> {
  await world.server.admin.deleteVendorCredential({ name: "vendorCredentials/stripe", reason: "replaced" });
  await world.server.admin.createVendorCredential({ vendorCredentialId: "stripe", vendor: "stripe", secret });
}

describe("a credential that is replaced", () => {
  beforeEach(async () => {
    world = await startVendorWorld();
    await world.store();
  });

  test.each([
    ["by one of another account", strangersSecret, "acct_stranger/live"],
    ["by one of the other mode", liveSecret, "acct_platform/live"],
  ])("%s voids nothing that may have been charged under the first", async (_how, secret, account) => {
    const one = await world.doubted();
    await replace(secret);
    for (let days = 0; days < 3; days += 1) {
      const looks = (await world.get(one.name)).reconciliation?.count ?? 0;
      await world.advance(26 * hour);
      await lookedAt(one.name, looks);
    }
    const { state, reconciliation } = await world.get(one.name);
    expect({ state, finding: reconciliation?.finding }).toEqual({
      state: IN_DOUBT,
      finding: ReconciliationFinding.UNCLEAR,
    });
    expect(reconciliation?.note).toContain(`nothing is at the account ${account}`);
    expect(reconciliation?.note).toContain("may have been sent under acct_platform/test");
  });

  test("holds nothing up that is granted a day later, nor where it is of the same account and mode", async () => {
    const before = await world.doubted();
    await lookedAt(before.name, 0);
    await replace(otherSecret);
    await world.advance(26 * hour);
    await absentSince(before.name);
    await world.advance(5 * minute);
    await world.becomes(before.name, VOIDED);
    await replace(strangersSecret);
    const young = await world.doubted();
    await lookedAt(young.name, 0);
    await world.advance(25 * hour);
    const after = await world.doubted();
    await lookedAt(after.name, 0);
    await world.advance(26 * hour);
    await absentSince(after.name);
    await world.advance(5 * minute);
    await world.becomes(after.name, VOIDED);
    expect((await world.get(young.name)).state).toBe(IN_DOUBT);
  });
});

test("a vault key whose service has shown another account is not voided by what the stored one does not show", async () => {
  world = await startVendorWorld();
  const one = await world.doubted();
  const spends = world.server.spend(world.token);
  const { lookToken: token } = await spends.listUnsettledAuthorizations({});
  const look = { token, vendorAccountId: "acct_own" };
  await spends.reportReconciliation({ authorization: one.name, finding: ReconciliationFinding.UNREADABLE, look });
  await world.store();
  for (let days = 0; days < 2; days += 1) {
    const looks = (await world.get(one.name)).reconciliation?.count ?? 0;
    await world.advance(26 * hour);
    await lookedAt(one.name, looks);
  }
  const { state, reconciliation } = await world.get(one.name);
  expect(state).toBe(IN_DOUBT);
  expect(reconciliation?.note).toContain("may have been sent under acct_own");
});

test("a list that hides what is young lets nothing be voided", async () => {
  world = await startVendorWorld({ simulator: { lag: { lists: 24 * hour, events: 24 * hour } } });
  await world.store();
  const one = await world.doubted({ charged: 4900 });
  await lookedAt(one.name, 0);
  await world.advance(10 * minute);
  await lookedAt(one.name, 1);
  await world.advance(23 * hour);
  await lookedAt(one.name, 2);
  expect((await world.get(one.name)).state).toBe(IN_DOUBT);
  await world.advance(3 * hour);
  await world.becomes(one.name, COMMITTED);
});

test("two servers in the middle of the same work settle it once", async () => {
  world = await startVendorWorld({ servers: 2 });
  const held = world.simulator.fault({ mode: "hold", match: { method: "GET", path: "/v1/events" }, times: 2 });
  await world.store();
  const one = await world.doubted({ charged: 4900 });
  await held.arrivals(1);
  // The claim of the first has run out while it waits for the vendor.
  await world.advance(2 * minute);
  await held.arrivals(2);
  held.release();
  await world.becomes(one.name, COMMITTED);
  const { rows } = await world.server.database.pool.query<{ count: bigint }>(
    "select count(*) from holdfast.contradictions",
  );
  expect(Number(rows[0]?.count)).toBe(0);
  expect((await world.events(one.name)).filter((event) => event.startsWith("spend.committed"))).toHaveLength(1);
});

test("without a credential nothing is asked, and nothing is settled", async () => {
  world = await startVendorWorld();
  const one = await world.doubted({ charged: 4900 });
  const other = await world.doubted({ charged: 4900 });
  expect(world.simulator.requests().filter(({ method }) => method === "GET")).toEqual([]);
  await world.store();
  await world.becomes(one.name, COMMITTED);
  await world.becomes(other.name, COMMITTED);
});
