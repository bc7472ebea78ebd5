import { createHash } from "node:crypto";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import type { Authorization, AuthorizationId } from "../../server/domain/spend.ts";
import {
  closeContradiction,
  type ContradictionFilter,
  countOpenContradictions,
  listContradictions,
} from "../../server/store/contradiction.ts";
import { type InDoubtFilter, listInDoubt } from "../../server/store/reconcile.ts";
import { resolveVoid } from "../../server/store/resolve.ts";
import { bindVendorReference, reportUnknown, sweepExpired } from "../../server/store/spend.ts";
import { replaceClock, type TestClock } from "../support/clock.ts";
import { type Asked, asks, attempt, type Granting, openGranting, usd } from "../support/granting.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";

let database: TestDatabase;
let clock: TestClock;
let granting: Granting;

beforeAll(async () => {
  database = await createTestDatabase();
  clock = await replaceClock(database.pool);
});
afterAll(() => database.close());
beforeEach(async () => {
  await clock.set("2026-11-15T12:00:00Z");
  granting = await openGranting(database.pool);
  await granting.cap("all", usd(100));
});

const minute = 60_000;
const operator = { kind: "operator", id: "alice" } as const;

async function held(asked: Asked = {}): Promise<{ one: Authorization; attemptId: string }> {
  const attemptId = attempt();
  return { one: await granting.grant({ attemptId, ...asked }), attemptId };
}

async function doubted(asked: Asked = {}): Promise<Authorization> {
  const { one, attemptId } = await held(asked);
  const call = { vaultKeyId: "main", authorization: one, attemptId, reason: "", traceId: "" };
  await reportUnknown(database.pool, granting.workspace, call);
  return one;
}

async function followed(asked: Asked = {}): Promise<Authorization> {
  const { one, attemptId } = await held(asked);
  await bindVendorReference(database.pool, granting.workspace, {
    vaultKeyId: "main",
    authorization: one,
    attemptId,
    vendorReference: `pi_${asked.customerId}`,
    vendorState: "processing",
    followForMs: 10 * minute,
    traceId: "",
  });
  return one;
}

const commit = (id: AuthorizationId, vendorReference: string, amount: string) =>
  granting.commit(id, { actor: operator, vendorReference, amount: usd(amount), resolution: "seen in the dashboard" });

const voided = (authorization: AuthorizationId, vendorReference = "") =>
  resolveVoid(database.pool, granting.workspace, {
    operatorId: "alice",
    authorization,
    vendorReference,
    reason: "the vendor has said so",
    traceId: "",
  });

async function events(kind: string) {
  const { rows } = await database.pool.query(
    "select actor_kind, actor_id, detail from holdfast.audit_events where workspace_id = $1 and kind = $2",
    [granting.workspace, kind],
  );
  return rows as unknown[];
}

describe("an operator's resolution", () => {
  test("commits what was charged, also more than was held, and names him and the reason", async () => {
    const one = await doubted();
    expect(await commit(one, "ch_1", "12")).toMatchObject({
      overCommitted: true,
      authorization: { state: "COMMITTED" },
    });
    expect(await granting.counters()).toMatchObject([{ committed: usd(12).micros, held: 0n }]);
    expect(await events("spend.committed")).toMatchObject([
      {
        actor_kind: "operator",
        actor_id: "alice",
        detail: { resolution: true, note: "seen in the dashboard", previous_state: "IN_DOUBT" },
      },
    ]);
    expect((await commit(one, "ch_1", "12")).errorReason).toBeUndefined();
    expect((await voided(one)).errorReason).toBe("ALREADY_COMMITTED");
  });

  test("commits once per charge, and keeps a second truth as a contradiction with the reason", async () => {
    const [first, second] = [await doubted({ customerId: "c1" }), await doubted({ customerId: "c2" })];
    await commit(first, "ch_1", "10");
    expect((await commit(second, "ch_1", "10")).errorReason).toBe("REFERENCE_ALREADY_COMMITTED");
    expect((await commit(first, "ch_2", "10")).errorReason).toBe("COMMIT_CONTRADICTS");
    expect(await events("spend.contradiction")).toMatchObject([
      { actor_id: "alice", detail: { contradiction: "REFERENCE_OF_ANOTHER_SPEND", note: "seen in the dashboard" } },
      { actor_id: "alice", detail: { contradiction: "OTHER_REFERENCE", note: "seen in the dashboard" } },
    ]);
    await granting.expectCountersToAddUp();
  });

  test("voids on his word, and what follows has to be asked for", async () => {
    const one = await doubted();
    expect(await voided(one)).toMatchObject({
      authorization: { voidEvidence: "OPERATOR", voidReason: "the vendor has said so" },
    });
    expect(await granting.counters()).toMatchObject([{ committed: 0n, held: 0n }]);
    expect(await events("spend.voided")).toMatchObject([
      { actor_kind: "operator", actor_id: "alice", detail: { evidence: "OPERATOR", note: "the vendor has said so" } },
    ]);
    expect((await voided(one)).errorReason).toBeUndefined();
    expect(await granting.authorize(asks())).toMatchObject([{ disposition: "ALREADY_FAILED" }]);
  });

  test("voids with the bound object that was seen ended; another object changes nothing", async () => {
    const one = await followed({ customerId: "c1" });
    const before = await granting.row(one);
    expect((await voided(one, "pi_other")).errorReason).toBe("EVIDENCE_INSUFFICIENT");
    expect(await granting.row(one)).toEqual(before);
    expect(await voided(one, "pi_c1")).toMatchObject({ authorization: { voidEvidence: "TOMBSTONE" } });
  });

  test("waits for an attempt in the middle of its call, and says for how long", async () => {
    const { one } = await held({ holdForMs: 10 * minute });
    await clock.advance(minute);
    expect(await voided(one)).toMatchObject({ errorReason: "STATE_NOT_ALLOWED", holdLeftMs: 9 * minute });
    expect(await commit(one, "ch_1", "10")).toMatchObject({ errorReason: "STATE_NOT_ALLOWED", holdLeftMs: 9 * minute });
    const { rowCount } = await database.pool.query("select from holdfast.vendor_charges where workspace_id = $1", [
      granting.workspace,
    ]);
    expect(rowCount).toBe(0);
    await clock.advance(9 * minute);
    expect((await commit(one, "ch_1", "10")).errorReason).toBeUndefined();
  });

  test("of nothing is refused", async () => {
    const nothing = { spendKey: "0".repeat(36), generation: 1 };
    expect((await voided(nothing)).errorReason).toBe("NOT_FOUND");
    expect((await commit(nothing, "ch_1", "10")).errorReason).toBe("NOT_FOUND");
  });
});

describe("the list of what is in doubt", () => {
  const page = (filter: Partial<InDoubtFilter> = {}) =>
    listInDoubt(database.pool, granting.workspace, { after: undefined, limit: 100, ...filter });
  const customers = (rows: readonly Authorization[]) => rows.map(({ spend }) => spend.customerId);

  test("counts all of it, longest first, also what only the clock has decided", async () => {
    expect(await page()).toEqual({ authorizations: [], totalCount: 0n, oldestAge: undefined });
    await held({ customerId: "ran-out" });
    await held({ customerId: "running", holdForMs: 60 * minute });
    await held({ customerId: "never-bound", settlement: "TWO_STEP" });
    await clock.advance(minute);
    await followed({ customerId: "followed-long-enough" });
    await clock.advance(minute);
    await doubted({ customerId: "reported" });
    await granting.commit(await doubted({ customerId: "committed" }));
    await clock.advance(20 * minute);
    await followed({ customerId: "followed" });
    const expected = ["reported", "ran-out", "followed-long-enough"];
    const before = await page();
    expect(customers(before.authorizations)).toEqual(expected);
    expect(before).toMatchObject({ totalCount: 3n, oldestAge: 20n * 60_000_000n });
    await sweepExpired(database.pool, granting.workspace, 1000);
    const after = await page();
    expect(customers(after.authorizations)).toEqual(expected);
    expect(after.authorizations.map(({ inDoubtTime }) => inDoubtTime)).toEqual(
      before.authorizations.map(({ inDoubtTime }) => inDoubtTime),
    );

    const first = await page({ limit: 2 });
    const last = first.authorizations.at(-1) as Authorization;
    const second = await page({ limit: 2, after: { ...last, inDoubtTime: last.inDoubtTime ?? 0n } });
    expect(customers(second.authorizations)).toEqual(["followed-long-enough"]);
    expect(second.totalCount).toBe(3n);
  });
});

describe("contradictions", () => {
  const list = (filter: Partial<ContradictionFilter> = {}) =>
    listContradictions(database.pool, granting.workspace, {
      includeClosed: false,
      after: undefined,
      limit: 100,
      ...filter,
    });
  const close = (contradictionId: string, reason = "refunded") =>
    closeContradiction(database.pool, granting.workspace, {
      contradictionId,
      operatorId: "alice",
      reason,
      traceId: "",
    });

  async function contradict(customerId: string): Promise<Authorization> {
    const one = await doubted({ customerId });
    await commit(one, `${customerId}_a`, "10");
    await commit(one, `${customerId}_b`, "7");
    await clock.advance(1);
    return one;
  }

  test("are listed newest first, page by page, with what of them counts", async () => {
    const one = await contradict("c1");
    await contradict("c2");
    const [newest, oldest] = await list();
    expect(newest?.vendorReference).toBe("c2_b");
    expect(oldest).toMatchObject({
      kind: "OTHER_REFERENCE",
      authorization: { spendKey: one.spendKey, generation: 1 },
      vendor: "stripe",
      vendorReference: "c1_b",
      amount: usd(7),
      counted: usd(7).micros,
      closeTime: undefined,
    });
    const key = [granting.workspace, "stripe", "", "c1_b", one.spendKey, "1"].join("\n");
    expect(oldest?.contradictionId).toBe(createHash("sha256").update(key).digest("hex").slice(0, 32));
    expect(await list({ after: newest, limit: 1 })).toEqual([oldest]);
  });

  test("are closed once with a reason, and go on counting", async () => {
    await contradict("c1");
    const [open] = await list();
    const id = open?.contradictionId ?? "";
    const counters = await granting.counters();
    const closed = await close(id);
    expect(closed).toMatchObject({ closeReason: "refunded" });
    await clock.advance(minute);
    expect(await close(id, "again")).toEqual(closed);
    expect(await events("contradiction.closed")).toMatchObject([
      { actor_kind: "operator", actor_id: "alice", detail: { contradiction: id, note: "refunded" } },
    ]);
    expect(await list()).toEqual([]);
    expect(await countOpenContradictions(database.pool, granting.workspace)).toBe(0n);
    expect(await list({ includeClosed: true })).toEqual([closed]);
    expect(await granting.counters()).toEqual(counters);
    expect(await close("0".repeat(32))).toBeUndefined();
  });

  test("are open again when the charge turns out to be larger", async () => {
    const one = await contradict("c1");
    const [open] = await list();
    await close(open?.contradictionId ?? "");
    await commit(one, "c1_b", "7");
    expect(await list()).toEqual([]);
    await commit(one, "c1_b", "8");
    expect(await list()).toMatchObject([{ amount: usd(8), closeReason: undefined }]);
    await granting.expectCountersToAddUp();
  });
});
