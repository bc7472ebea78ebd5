import { createHash, randomBytes } from "node:crypto";
import type pg from "pg";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import type { ProxiedRequestClaim, StoredAnswer } from "../../server/domain/proxied-request.ts";
import { type CredentialKeys, createCredentialCipher } from "../../server/store/credential-cipher.ts";
import {
  claimProxiedRequest,
  emptyProxiedAnswers,
  forgetProxiedRequest,
  reopenDeclined,
  storeProxiedAnswer,
} from "../../server/store/proxied-request.ts";
import { startSweep } from "../../server/store/sweep.ts";
import { replaceClock, type TestClock } from "../support/clock.ts";
import { endpoint, type Granting, openGranting } from "../support/granting.ts";
import { openPaused, type Paused } from "../support/paused.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";

type Connection = pg.Pool | pg.PoolClient;

let database: TestDatabase;
let clock: TestClock;
let granting: Granting;
let paused: Paused;

beforeAll(async () => {
  database = await createTestDatabase({ pool: { max: 20 } });
  clock = await replaceClock(database.pool);
});
afterAll(() => database.close());
beforeEach(async () => {
  await clock.set("2026-11-15T12:00:00Z");
  granting = await openGranting(database.pool);
  paused = await openPaused(database.pool);
});
afterEach(() => paused.release());

const keys = { current: randomBytes(32), previous: undefined };
const cipherOf = (given: CredentialKeys) => createCredentialCipher(given, randomBytes);
const cipher = cipherOf(keys);
const hash = (text: string) => createHash("sha256").update(text).digest();

interface Asked {
  readonly id?: string;
  readonly body?: string;
  readonly card?: string;
  readonly claimId?: string;
  readonly vaultKeyId?: string;
  readonly endpoint?: string;
  readonly joins?: boolean;
}

/** A claim of its own, of the same request unless something else is said. */
function claimOf(asked: Asked = {}): ProxiedRequestClaim {
  const { id = "request", body = "amount=10", card = "visa", vaultKeyId = "main" } = asked;
  return {
    vaultKeyId,
    requestKey: hash(id),
    claimId: asked.claimId ?? randomBytes(16).toString("hex"),
    ...(asked.joins === undefined ? {} : { joins: asked.joins }),
    endpoint: asked.endpoint ?? endpoint,
    bodySha256: hash(`${body} ${card}`),
    retrySha256: hash(body),
    spend: { customerId: "cust_1", billingPeriod: "2026-11", purpose: "sub" },
  };
}

const answered = (body: string, status = 200): StoredAnswer => ({
  status,
  headers: { "content-type": "application/json", "request-id": "req_1" },
  body,
});

const claim = (one: ProxiedRequestClaim, on: Connection = database.pool, by = cipher) =>
  claimProxiedRequest(on, by, granting.workspace, one);
const store = (
  one: ProxiedRequestClaim,
  answer: StoredAnswer,
  {
    generation = 1,
    declined = false,
    on = database.pool,
  }: { generation?: number; declined?: boolean; on?: Connection } = {},
) => storeProxiedAnswer(on, cipher, granting.workspace, one, { generation, declined, answer });
const reopen = (one: ProxiedRequestClaim, generation: number, on: Connection = database.pool) =>
  reopenDeclined(on, granting.workspace, one, generation);
const forget = (one: ProxiedRequestClaim) => forgetProxiedRequest(database.pool, granting.workspace, one);

/** Claimed and declined in generation 1. */
async function declined(asked: Asked = {}): Promise<ProxiedRequestClaim> {
  const one = claimOf(asked);
  await claim(one);
  await store(one, answered('{"error":"card_declined"}', 402), { declined: true });
  return one;
}

describe("a claim", () => {
  test("is new once; a repeat learns since when it is open, and whether it asks for the same", async () => {
    expect(await claim(claimOf())).toEqual({ kind: "new", generation: 1, openMicros: 0n });
    await clock.advance(61_000);
    const open = { kind: "open", generation: 1, openMicros: 61_000_000n };
    expect(await claim(claimOf())).toEqual({ ...open, sameBody: true });
    expect(await claim(claimOf({ body: "amount=11" }))).toEqual({ ...open, sameBody: false });
    expect(await claim(claimOf({ card: "amex" }))).toEqual({ ...open, sameBody: false });
  });

  test("whose answer of the database was lost is new again when it asks again", async () => {
    const one = claimOf();
    await claim(one);
    expect(await claim(one)).toEqual({ kind: "new", generation: 1, openMicros: 0n });
  });

  test("of another key, request or workspace has nothing to do with it", async () => {
    await claim(claimOf());
    expect(await claim(claimOf({ vaultKeyId: "other" }))).toMatchObject({ kind: "new" });
    expect(await claim(claimOf({ id: "another" }))).toMatchObject({ kind: "new" });
    const other = await openGranting(database.pool);
    expect(await claimProxiedRequest(database.pool, cipher, other.workspace, claimOf())).toMatchObject({ kind: "new" });
  });

  test("that waits for another one's transaction is not new after its COMMIT", async () => {
    await claim(claimOf(), paused.client);
    const second = claim(claimOf({ body: "amount=11" }));
    await paused.expectBlocking(second);
    await paused.commit();
    expect(await second).toEqual({ kind: "open", generation: 1, openMicros: 0n, sameBody: false });
  });

  test("that waits for a transaction that is rolled back is new", async () => {
    await claim(claimOf(), paused.client);
    const second = claim(claimOf());
    await paused.expectBlocking(second);
    paused.release();
    expect(await second).toMatchObject({ kind: "new" });
  });

  test("that waits for the row to be forgotten is new", async () => {
    const first = claimOf();
    await claim(first);
    await forgetProxiedRequest(paused.client, granting.workspace, first);
    const second = claim(claimOf());
    await paused.expectBlocking(second);
    await paused.commit();
    expect(await second).toMatchObject({ kind: "new" });
  });

  test("that was joined is not forgotten, and neither by who has joined it", async () => {
    const first = claimOf({ joins: true });
    await claim(first);
    const second = claimOf({ joins: true });
    expect(await claim(second)).toMatchObject({ kind: "open", sameBody: true });
    for (const one of [first, second]) await forget(one);
    expect(await claim(claimOf({ joins: true }))).toMatchObject({ kind: "open", sameBody: true });
    expect(await claim(claimOf({ body: "amount=11", joins: true }))).toMatchObject({ kind: "open", sameBody: false });
  });

  test.each([
    ["by itself", {}, true],
    ["by another request", { joins: true, body: "amount=11" }, false],
    ["by one that a grant protects", { joins: false }, false],
  ] as const)("that was asked again %s is forgotten", async (_, asked, isItself) => {
    const first = claimOf({ joins: true });
    await claim(first);
    await claim(isItself ? first : claimOf(asked));
    await forget(first);
    expect(await claim(claimOf({ body: "amount=12", joins: true }))).toMatchObject({ kind: "new" });
  });

  test("is joined, or forgotten: not both at once", async () => {
    const first = claimOf({ joins: true });
    await claim(first);
    const joining = claimOf({ joins: true });
    await claim(joining, paused.client);
    const forgetting = forget(first);
    await paused.expectBlocking(forgetting);
    await paused.commit();
    await forgetting;
    expect(await claim(claimOf({ joins: true }))).toMatchObject({ kind: "open" });
  });

  test("that is forgotten while it is joined is the joining one's own", async () => {
    const first = claimOf({ joins: true });
    await claim(first);
    await forgetProxiedRequest(paused.client, granting.workspace, first);
    const second = claimOf({ joins: true });
    const joining = claim(second);
    await paused.expectBlocking(joining);
    await paused.commit();
    expect(await joining).toMatchObject({ kind: "new" });
    await forget(first);
    expect(await claim(claimOf({ joins: true }))).toMatchObject({ kind: "open" });
  });

  test("is new for exactly one of sixteen", async () => {
    const all = await Promise.all(Array.from({ length: 16 }, () => claim(claimOf())));
    expect(all.filter(({ kind }) => kind === "new")).toHaveLength(1);
    expect(all.filter(({ kind }) => kind === "open")).toHaveLength(15);
  });
});

describe("an answer", () => {
  test("is what every repeat gets, with its age", async () => {
    const one = claimOf();
    await claim(one);
    const answer = answered('{"id":"pi_1","note":"žluť"}');
    expect(await store(one, answer)).toBe(true);
    await clock.advance(1500);
    const known = { kind: "answered", generation: 1, declined: false, ageMicros: 1_500_000n, answer };
    const same = { sameBody: true, sameButPaymentMethod: false };
    expect(await claim(claimOf())).toEqual({ ...known, ...same });
    expect(await claim(one)).toEqual({ ...known, ...same });
    const card = { sameBody: false, sameButPaymentMethod: true };
    expect(await claim(claimOf({ card: "amex" }))).toEqual({ ...known, ...card });
    const other = { sameBody: false, sameButPaymentMethod: false };
    expect(await claim(claimOf({ body: "amount=11" }))).toEqual({ ...known, ...other });
    expect(await claim(claimOf({ endpoint: "POST /v1/charges" }))).toEqual({ ...known, ...other });
  });

  test("stays the first one, also of two that are stored at once", async () => {
    const one = claimOf();
    await claim(one);
    expect(await store(one, answered("first"), { on: paused.client })).toBe(true);
    const second = store(one, answered("second"));
    await paused.expectBlocking(second);
    await paused.commit();
    expect(await second).toBe(false);
    expect(await claim(claimOf())).toMatchObject({ answer: { body: "first" } });
  });

  test("of another generation, body or endpoint than the open one's is not stored", async () => {
    const one = claimOf();
    await claim(one);
    expect(await store(one, answered("x"), { generation: 2 })).toBe(false);
    expect(await store(claimOf({ body: "amount=11" }), answered("x"))).toBe(false);
    expect(await store(claimOf({ card: "amex" }), answered("x"))).toBe(false);
    expect(await store(claimOf({ endpoint: "POST /v1/charges" }), answered("x"))).toBe(false);
    expect(await claim(claimOf())).toMatchObject({ kind: "open" });
  });

  test("as large as it may be is stored; a larger one is omitted, and its request known all the same", async () => {
    const room = 65_536 - Buffer.byteLength(JSON.stringify(answered("")));
    for (const [id, body, kept] of [
      ["fits", "x".repeat(room), true],
      ["too large", "x".repeat(room + 1), false],
      ["too large in UTF-8", "é".repeat(room - 1), false],
    ] as const) {
      const one = claimOf({ id });
      await claim(one);
      expect(await store(one, answered(body))).toBe(true);
      const answer = kept ? answered(body) : undefined;
      expect(await claim(claimOf({ id }))).toMatchObject({ kind: "answered", sameBody: true, answer });
    }
  });

  test("of a request that another claim has taken back meanwhile makes its row anew", async () => {
    const first = claimOf();
    await claim(first);
    const second = claimOf();
    expect(await claim(second)).toMatchObject({ kind: "open" });
    await forget(first);
    expect(await store(second, answered("sent"))).toBe(true);
    expect(await claim(claimOf())).toMatchObject({ kind: "answered", sameBody: true, answer: { body: "sent" } });
  });
});

describe("a declined request", () => {
  test("is opened again by exactly one of sixteen that read the same generation", async () => {
    await declined();
    const all = await Promise.all(Array.from({ length: 16 }, () => reopen(claimOf({ card: "amex" }), 1)));
    expect(all.filter((generation) => generation === 2)).toHaveLength(1);
    expect(all.filter((generation) => generation === undefined)).toHaveLength(15);
  });

  test("is not opened again by one that waited for the winner's COMMIT", async () => {
    await declined();
    expect(await reopen(claimOf(), 1, paused.client)).toBe(2);
    const second = reopen(claimOf(), 1);
    await paused.expectBlocking(second);
    await paused.commit();
    expect(await second).toBeUndefined();
  });

  test("is compared with what is asked for now while it is open, and answered anew", async () => {
    await declined();
    const again = claimOf({ card: "amex" });
    expect(await reopen(again, 1)).toBe(2);
    expect(await claim(claimOf({ card: "amex" }))).toEqual({
      kind: "open",
      generation: 2,
      openMicros: 0n,
      sameBody: true,
    });
    expect(await claim(claimOf())).toEqual({ kind: "open", generation: 2, openMicros: 0n, sameBody: false });
    expect(await store(again, answered("late", 402), { generation: 1, declined: true })).toBe(false);
    expect(await store(again, answered("paid"), { generation: 2 })).toBe(true);
    const paid = { kind: "answered", generation: 2, declined: false, answer: { body: "paid" } };
    expect(await claim(claimOf({ card: "amex" }))).toMatchObject({ ...paid, sameBody: true });
    expect(await reopen(claimOf(), 2)).toBeUndefined();
  });

  test.each([
    [
      "that was not declined",
      async () => {
        const one = claimOf();
        await claim(one);
        await store(one, answered("paid"));
        return reopen(one, 1);
      },
    ],
    ["of another generation", async () => reopen(await declined(), 2)],
    [
      "with another amount",
      async () => {
        await declined();
        return reopen(claimOf({ body: "amount=11" }), 1);
      },
    ],
    ["that nobody made", () => reopen(claimOf(), 1)],
  ])("%s is not opened again", async (_what, attempt) => {
    expect(await attempt()).toBeUndefined();
  });

  test("keeps its first body when it is declined once more with another card", async () => {
    await declined();
    const again = claimOf({ card: "amex" });
    await reopen(again, 1);
    await store(again, answered("no", 402), { generation: 2, declined: true });
    expect(await claim(claimOf({ card: "amex" }))).toMatchObject({ sameBody: true, declined: true, generation: 2 });
    expect(await claim(claimOf())).toMatchObject({ sameBody: false, sameButPaymentMethod: true });
  });
});

describe("a claim that is taken back", () => {
  test("leaves no trace, so that another body is new", async () => {
    const one = claimOf();
    await claim(one);
    await forget(one);
    expect(await claim(claimOf({ body: "amount=11" }))).toEqual({ kind: "new", generation: 1, openMicros: 0n });
  });

  test("is only the one that has made the row, and only while it is open", async () => {
    const one = claimOf();
    await claim(one);
    await forget(claimOf());
    expect(await claim(claimOf())).toMatchObject({ kind: "open" });
    await store(one, answered("sent"));
    await forget(one);
    expect(await claim(claimOf())).toMatchObject({ kind: "answered", answer: { body: "sent" } });
  });

  test("gives a declined request its first answer back, and uses no generation twice", async () => {
    await declined();
    await clock.advance(60_000);
    const again = claimOf({ card: "amex" });
    await reopen(again, 1);
    await forget(again);
    expect(await claim(claimOf())).toMatchObject({
      kind: "answered",
      generation: 2,
      declined: true,
      sameBody: true,
      ageMicros: 60_000_000n,
      answer: { status: 402 },
    });
    expect(await reopen(claimOf(), 1)).toBeUndefined();
    expect(await reopen(claimOf(), 2)).toBe(3);
  });

  test("does not keep out the answer of one that went on with it", async () => {
    await declined();
    const first = claimOf({ card: "amex" });
    await reopen(first, 1);
    const second = claimOf({ card: "amex" });
    expect(await claim(second)).toMatchObject({ kind: "open", generation: 2 });
    await forget(first);
    expect(await store(second, answered("paid"), { generation: 2 })).toBe(true);
    expect(await claim(second)).toMatchObject({ declined: false, answer: { body: "paid" }, sameBody: true });
  });
});

describe("at rest", () => {
  const canary = `zq${randomBytes(12).toString("hex")}`;
  const everything = async () => {
    const { rows } = await database.pool.query<{ text: string }>(
      `select t::text || encode(coalesce(t.ciphertext, ''), 'escape') as text from holdfast.proxied_requests t
       where t.workspace_id = $1`,
      [granting.workspace],
    );
    return rows.map(({ text }) => text).join("\n");
  };
  const stored = async (answer = answered(`{"email":"${canary}"}`)) => {
    const one = claimOf();
    await claim(one);
    await store(one, { ...answer, headers: { ...answer.headers, "x-note": canary } });
    return one;
  };

  test("nothing of an answer can be read in the table", async () => {
    await stored();
    const text = await everything();
    expect(text.length).toBeGreaterThan(100);
    for (const spelled of [canary, Buffer.from(canary).toString("hex"), Buffer.from(canary).toString("base64")]) {
      expect(text).not.toContain(spelled.slice(0, 20));
    }
    expect(await claim(claimOf())).toMatchObject({ answer: { body: `{"email":"${canary}"}` } });
  });

  test("an answer opens with the server's previous key, and is omitted under another one", async () => {
    await stored();
    const next = randomBytes(32);
    const exchanged = cipherOf({ current: next, previous: keys.current });
    expect(await claim(claimOf(), database.pool, exchanged)).toMatchObject({ answer: { status: 200 } });
    const foreign = cipherOf({ current: next, previous: undefined });
    expect(await claim(claimOf(), database.pool, foreign)).toMatchObject({
      kind: "answered",
      sameBody: true,
      answer: undefined,
    });
  });

  test.each([
    ["was moved to another request", "update holdfast.proxied_requests set request_key = sha256('other')", "other"],
    ["was moved to another key", "update holdfast.proxied_requests set vault_key_id = 'moved'", "request"],
    [
      "was changed by one bit",
      "update holdfast.proxied_requests set ciphertext = set_bit(ciphertext, 9, 1 - get_bit(ciphertext, 9))",
      "request",
    ],
  ])("an answer that %s counts as omitted", async (_what, change, id) => {
    await stored();
    await database.pool.query(`${change} where workspace_id = $1`, [granting.workspace]);
    const vaultKeyId = change.includes("moved") ? "moved" : "main";
    expect(await claim(claimOf({ id, vaultKeyId }))).toMatchObject({ kind: "answered", answer: undefined });
  });

  test("old answers are emptied in bounded steps, and their requests stay known", async () => {
    for (const id of ["a", "b", "c"]) {
      const one = claimOf({ id });
      await claim(one);
      await store(one, answered(canary));
    }
    const late = claimOf({ id: "late" });
    await clock.advance(30 * 86_400_000);
    await claim(late);
    await store(late, answered("kept"));
    const empty = () => emptyProxiedAnswers(database.pool, granting.workspace, 30, 2);
    expect(await empty()).toBe(0);
    await clock.advance(1);
    expect([await empty(), await empty(), await empty()]).toEqual([2, 1, 0]);
    expect(await claim(claimOf({ id: "a" }))).toMatchObject({ kind: "answered", sameBody: true, answer: undefined });
    expect(await claim(claimOf({ id: "a", body: "amount=11" }))).toMatchObject({ sameBody: false });
    expect(await claim(claimOf({ id: "late" }))).toMatchObject({ answer: { body: "kept" } });
  });

  test("the sweep empties them", async () => {
    await stored();
    await clock.advance(7 * 86_400_000 + 1);
    const failure = await new Promise((resolve) => {
      const sweep = startSweep({
        database: database.pool,
        intervalMs: 1,
        proxyAnswerDays: 7,
        onResult: (error) => void sweep.stop().then(() => resolve(error)),
      });
    });
    expect(failure).toBeUndefined();
    expect(await claim(claimOf())).toMatchObject({ kind: "answered", answer: undefined });
  });
});
