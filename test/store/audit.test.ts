import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { acquireBillingLease, releaseBillingLease, renewBillingLease } from "../../server/store/lease.ts";
import { authorizeBatch } from "../../server/store/authorize.ts";
import { sweepExpired } from "../../server/store/spend.ts";
import { replaceClock, type TestClock } from "../support/clock.ts";
import { asks, attempt, type Granting, openGranting, usd } from "../support/granting.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";
import { type Operation, operations, type Subject } from "./state-operation.ts";

let database: TestDatabase;
let clock: TestClock;
let granting: Granting;

const traceId = "0af7651916cd43dd8448eb211c80319c";

beforeAll(async () => {
  database = await createTestDatabase();
  clock = await replaceClock(database.pool);
});
afterAll(() => database.close());
beforeEach(async () => {
  await clock.set("2026-11-15T12:00:00Z");
  granting = await openGranting(database.pool);
  await granting.cap("all", usd(100));
  await granting.vaultKey("other");
});

interface Event {
  readonly kind: string;
  readonly actor: string;
  readonly disposition: string | null;
  readonly reason: string | null;
  readonly trace_id: string;
  readonly detail: Readonly<Record<string, unknown>>;
  readonly xid: string;
  readonly n: number;
}

async function events(): Promise<Event[]> {
  const { rows } = await database.pool.query<Event>(
    `select e.kind, e.actor_kind || ' ' || e.actor_id as actor, e.disposition, e.reason, e.trace_id, e.detail,
       e.xid::text as xid, e.n
     from holdfast.audit_events e where e.workspace_id = $1 order by e.xid, e.n`,
    [granting.workspace],
  );
  return rows;
}

/** The events that an action adds. */
async function added(action: () => Promise<unknown>): Promise<Event[]> {
  const before = (await events()).length;
  await action();
  return (await events()).slice(before);
}

async function subject(settlement: "SEND_ONCE" | "TWO_STEP" = "SEND_ONCE"): Promise<Subject> {
  const asked = { settlement, customerId: "cust_1", attemptId: attempt() };
  return { granting, pool: database.pool, asked, authorization: await granting.grant(asked) };
}

describe("a decision is one event", () => {
  test("of a grant, with the trace and the figures of every cap with it", async () => {
    await granting.cap("each", usd(50), { perCustomer: true });
    await granting.grant({ customerId: "cust_0", amount: usd(7) });
    const [event, ...others] = await added(() => granting.grant({ customerId: "cust_0", purpose: "extra" }));
    expect(others).toEqual([]);
    expect(event).toMatchObject({
      kind: "spend.granted",
      actor: "vault_key main",
      disposition: "GRANTED",
      trace_id: traceId,
      detail: {
        caps: [
          { cap: "all", window: "", limit_micros: 100_000_000, committed_micros: 0, held_micros: 17_000_000 },
          { cap: "each", window: "", limit_micros: 50_000_000, committed_micros: 0, held_micros: 17_000_000 },
        ],
      },
    });
  });

  test("of a denial, with the rule and the cap's figures", async () => {
    await granting.grant({ amount: usd(95) });
    const [event, ...others] = await added(() => granting.authorize(asks({ customerId: "cust_2" })));
    expect(others).toEqual([]);
    expect(event).toMatchObject({
      kind: "spend.answered",
      disposition: "DENIED",
      reason: "CAP_HEADROOM",
      trace_id: traceId,
      detail: { cap: "all", window: "", limit_micros: 100_000_000, committed_micros: 0, held_micros: 95_000_000 },
    });
  });

  test("of a refusal, naming the fields that differ", async () => {
    await granting.grant({});
    const [event] = await added(() => granting.authorize(asks({ amount: usd(11), vendorAccount: "acct_1" })));
    expect(event).toMatchObject({
      disposition: "REFUSED",
      reason: "SPEND_MISMATCH",
      detail: { differing_fields: "spend.amount.amount,vendor_account" },
    });
  });

  test("for each request of a batch, in order, in one transaction", async () => {
    const found = await added(() =>
      granting.authorize(asks(), asks({ amount: usd(101), customerId: "b" }), asks(), asks({ vaultKeyId: "nobody" })),
    );
    expect(found.map(({ disposition }) => disposition)).toEqual(["GRANTED", "DENIED", "IN_PROGRESS", "DENIED"]);
    expect(found.map(({ n }) => n)).toEqual([0, 1, 2, 3]);
    expect(new Set(found.map(({ xid }) => xid)).size).toBe(1);
  });

  test("of a takeover, naming the attempt before", async () => {
    const first = await subject("TWO_STEP");
    await clock.advance(600_000);
    const [event, ...others] = await added(() => granting.authorize(asks({ settlement: "TWO_STEP" })));
    expect(others).toEqual([]);
    expect(event).toMatchObject({
      kind: "spend.taken_over",
      detail: { previous_attempt_id: first.asked.attemptId, previous_state: "HELD" },
    });
  });
});

describe("a change is one event", () => {
  test.each([
    ["commit pi_1", "spend.committed"],
    ["void, never sent", "spend.voided"],
    ["void, refused 402", "spend.voided"],
    ["void, never bound", "spend.in_doubt"],
    ["report unknown", "spend.in_doubt"],
  ] as const)("%s", async (name, kind) => {
    const one = await subject();
    const operation: Operation = operations[name];
    const found = await added(() => operation(one));
    expect(found.map((event) => event.kind)).toEqual([kind]);
    const again = await added(() => operation(one));
    expect(again.map((event) => event.kind)).toEqual(name === "void, never bound" ? [kind] : []);
  });

  test("of a bind and of a contradiction, which is written once", async () => {
    const one = await subject("TWO_STEP");
    expect((await added(() => operations["bind pi_1"](one))).map(({ kind }) => kind)).toEqual(["spend.bound"]);
    const contradicting = () => operations["commit pi_2"](one);
    expect(await added(contradicting)).toMatchObject([
      { kind: "spend.contradiction", reason: "COMMIT_CONTRADICTS", detail: { contradiction: "OTHER_REFERENCE" } },
    ]);
    expect(await added(contradicting)).toEqual([]);
  });

  test.each([
    ["bind pi_1", "spend.bind_refused"],
    ["report unknown", "spend.report_refused"],
    ["void, never sent, other attempt", "spend.void_refused"],
    ["report, absent", "spend.reconcile_refused"],
    ["increase to 12", "spend.increase_refused"],
    ["resolve, voided", "spend.resolve_refused"],
    ["resolve, committed pi_1", "spend.resolve_refused"],
  ] as const)("also of a refusal that changes nothing: %s", async (name, kind) => {
    const one = await subject("TWO_STEP");
    if (kind !== "spend.resolve_refused") await granting.commit(one.authorization);
    const found = await added(() => operations[name](one));
    expect(found).toMatchObject([{ kind, disposition: null }]);
    expect(found[0]?.reason).toMatch(/^(ALREADY_COMMITTED|STATE_NOT_ALLOWED)$/);
  });

  test("of an over-commit, which says so", async () => {
    const { authorization } = await subject();
    expect(await added(() => granting.commit(authorization, { amount: usd(12), traceId }))).toMatchObject([
      { kind: "spend.committed", trace_id: traceId, detail: { over_committed: true, committed_micros: 12_000_000 } },
    ]);
  });

  test("of each hold that the sweep finds expired, by the server", async () => {
    await granting.grant({ customerId: "a" });
    await granting.grant({ customerId: "b", settlement: "TWO_STEP" });
    await clock.advance(600_000);
    const sweep = () => sweepExpired(database.pool, granting.workspace, 100);
    expect((await added(sweep)).map(({ kind, actor, reason }) => `${kind} ${actor} ${reason}`).toSorted()).toEqual([
      "spend.in_doubt server sweep HOLD_EXPIRED",
      "spend.voided server sweep NEVER_BOUND",
    ]);
    expect(await added(sweep)).toEqual([]);
  });

  test("of the policy", async () => {
    expect(await added(() => granting.cap("new", usd(1)))).toMatchObject([
      { kind: "cap.created", actor: "operator test" },
    ]);
    expect(await added(() => granting.revoke("other"))).toMatchObject([{ kind: "vault_key.revoked" }]);
    const principal = { role: "operator" as const, workspace: granting.workspace, id: "test" };
    const detail = { capId: "new", before: [{ maxPerSpend: usd(1) }], labels: { "my-team": "A" }, at: 5n };
    const [event] = await added(() =>
      granting.changePolicy({ principal, kind: "test", traceId, detail }, async () => {}),
    );
    // As SQL and the contract spell it: an auditor searches for one spelling.
    const before = [{ max_per_spend: { currency: "usd", micros: "1000000" } }];
    expect(event?.detail).toEqual({ cap_id: "new", before, labels: { "my-team": "A" }, at: "5" });
  });

  test("of a lease: acquired, held by another, refused, released; a renewal is none", async () => {
    const command = { vaultKeyId: "main", lease: "nightly", billingPeriod: "2026-11", holderId: "h1", traceId };
    const { workspace } = granting;
    const found = await added(async () => {
      await acquireBillingLease(database.pool, workspace, { ...command, ttlMs: 60_000 });
      await acquireBillingLease(database.pool, workspace, { ...command, holderId: "h2", ttlMs: 60_000 });
      await renewBillingLease(database.pool, workspace, { ...command, fencingToken: 1n, ttlMs: 60_000 });
      await renewBillingLease(database.pool, workspace, { ...command, fencingToken: 2n, ttlMs: 60_000 });
      await releaseBillingLease(database.pool, workspace, { ...command, fencingToken: 1n, completed: true });
      await acquireBillingLease(database.pool, workspace, { ...command, ttlMs: 60_000 });
    });
    expect(found.map(({ kind, disposition }) => `${kind} ${disposition}`)).toEqual([
      "lease.acquire ACQUIRED",
      "lease.acquire HELD_BY_OTHER",
      "lease.renew_refused null",
      "lease.release RELEASED",
      "lease.acquire ALREADY_COMPLETED",
    ]);
    expect(new Set(found.map((event) => event.trace_id))).toEqual(new Set([traceId]));
  });
});

test("a transaction that is rolled back leaves no event and no change", async () => {
  const before = await events();
  const client = await database.pool.connect();
  try {
    await client.query("begin");
    const [decision] = await authorizeBatch(client, granting.workspace, [asks()]);
    expect(decision?.disposition).toBe("GRANTED");
    await client.query("rollback");
  } finally {
    client.release();
  }
  expect(await events()).toEqual(before);
  expect(await granting.counters()).toEqual([]);
});

test("a change of policy that fails leaves no event", async () => {
  const failing = granting.cap("all", usd(1));
  await expect(failing).rejects.toMatchObject({ reason: "ALREADY_EXISTS" });
  expect((await events()).filter(({ kind }) => kind === "cap.created")).toHaveLength(1);
});
