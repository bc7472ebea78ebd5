import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { AuthorizeDecision } from "../../server/domain/spend.ts";
import { acquireBillingLease } from "../../server/store/lease.ts";
import { replaceClock, type TestClock } from "../support/clock.ts";
import { type Asked, asks, attempt, type Granting, openGranting, usd } from "../support/granting.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";

let database: TestDatabase;
let clock: TestClock;

beforeAll(async () => {
  database = await createTestDatabase();
  clock = await replaceClock(database.pool);
});
afterAll(() => database.close());

const staleFence = { lease: "nightly", billingPeriod: "2026-11", holderId: "h1", fencingToken: 99n };

/** What breaks one rule: a preparation of the workspace and fields of the request. Rules are in order of judgement. */
interface Breach {
  readonly rule: string;
  readonly asked?: Asked;
  readonly prepare?: (granting: Granting) => Promise<unknown>;
  /** The vault key's policy must be set before a spend of its own exists. */
  readonly late?: (granting: Granting) => Promise<unknown>;
}

const policy: readonly Breach[] = [
  { rule: "VAULT_KEY_REVOKED", late: (g) => g.revoke("judged") },
  { rule: "VAULT_KEY_EXPIRED", late: (g) => change(g, "expire_time = '2000-01-01'") },
  { rule: "VENDOR", late: (g) => change(g, "vendor = 'twilio'") },
  { rule: "ENDPOINT", late: (g) => change(g, "allowed_endpoints = '{}'") },
  { rule: "BILLING_PERIOD", late: (g) => change(g, "billing_periods = '{2026-12}'") },
  { rule: "PURPOSE", late: (g) => change(g, "purposes = '{other}'") },
  { rule: "CUSTOMER", late: (g) => change(g, "customers = '{other}'") },
  { rule: "CURRENCY", late: (g) => change(g, "max_per_spend_currency = 'eur', max_per_spend_micros = 1") },
  {
    rule: "MAX_PER_SPEND",
    late: (g) =>
      change(g, "max_per_spend_currency = coalesce(max_per_spend_currency, 'usd'), max_per_spend_micros = 1"),
  },
];

const caps: readonly Breach[] = [
  {
    rule: "BILLING_PERIOD_NOT_PINNED",
    prepare: (g) => g.cap("c-pin", usd(1000), { window: "BILLING_PERIOD" }),
  },
];

async function change(granting: Granting, assignment: string): Promise<void> {
  const { rowCount } = await database.pool.query(
    `update holdfast.vault_keys set ${assignment} where workspace_id = $1 and vault_key_id = 'judged'`,
    [granting.workspace],
  );
  expect(rowCount).toBe(1);
}

function verdict(decision: AuthorizeDecision | undefined): string {
  return decision?.rule ?? decision?.errorReason ?? decision?.disposition ?? "";
}

async function judge(granting: Granting, asked: Asked): Promise<string> {
  const [decision] = await granting.authorize(asks({ vaultKeyId: "judged", ...asked }));
  return verdict(decision);
}

async function open(): Promise<Granting> {
  await clock.set("2026-11-15T12:00:00Z");
  const granting = await openGranting(database.pool);
  await granting.vaultKey("judged");
  return granting;
}

describe("a request that breaks two rules of its vault key is denied by the earlier one", () => {
  test.each(policy.slice(0, -1).map((one, index) => [one, policy[index + 1] as Breach] as const))(
    "$0.rule before $1.rule",
    async (first, second) => {
      const granting = await open();
      await first.late?.(granting);
      await second.late?.(granting);
      expect(await judge(granting, {})).toBe(first.rule);
    },
  );

  test.each(policy)("$rule alone", async ({ rule, late }) => {
    const granting = await open();
    await late?.(granting);
    expect(await judge(granting, {})).toBe(rule);
    expect(await granting.counters()).toEqual([]);
  });
});

describe("the vault key's policy is judged before the spend's own state", () => {
  test.each(policy)("$rule before ALREADY_COMMITTED", async ({ rule, late }) => {
    const granting = await open();
    const held = await granting.grant({ vaultKeyId: "judged" });
    await granting.commit(held, { actor: { kind: "vault_key", id: "judged" } });
    await late?.(granting);
    expect(await judge(granting, {})).toBe(rule);
  });
});

describe("the spend's own state", () => {
  test("ALREADY_COMMITTED before a difference, which it names, and before a stale fence and a full cap", async () => {
    const granting = await open();
    await granting.cap("full", usd(10));
    const held = await granting.grant({ vaultKeyId: "judged" });
    await granting.commit(held, { actor: { kind: "vault_key", id: "judged" } });
    const [decision] = await granting.authorize(
      asks({
        vaultKeyId: "judged",
        amount: usd(999),
        fence: staleFence,
        settlement: "TWO_STEP",
        retryAfterGeneration: 7,
      }),
    );
    expect(decision).toMatchObject({
      disposition: "ALREADY_COMMITTED",
      differingFields: ["spend.amount.amount", "settlement"],
      rule: undefined,
    });
  });

  test("a difference from a live generation before a stale fence", async () => {
    const granting = await open();
    await granting.grant({ vaultKeyId: "judged" });
    expect(await judge(granting, { amount: usd(11), fence: staleFence })).toBe("SPEND_MISMATCH");
  });

  test("a difference from a live generation before its doubt", async () => {
    const granting = await open();
    await granting.grant({ vaultKeyId: "judged" });
    await clock.advance(600_000);
    expect(await judge(granting, { amount: usd(11) })).toBe("SPEND_MISMATCH");
  });

  const same = attempt();
  test.each([
    ["the same attempt", { attemptId: same }, 0],
    ["another attempt", {}, 0],
    ["another attempt after the hold", {}, 600_000],
  ] as const)("a stale fence before the answer to %s", async (_what, asked, later) => {
    const granting = await open();
    const held = await granting.grant({ vaultKeyId: "judged", attemptId: same });
    await clock.advance(later);
    expect(await judge(granting, { ...asked, fence: staleFence })).toBe("FENCING_TOKEN");
    expect(await granting.row(held)).toMatchObject({ state: "HELD", attempt_id: same, told_may_have_been_sent: false });
  });

  test("a stale fence before ALREADY_FAILED", async () => {
    const granting = await open();
    const held = await granting.grant({ vaultKeyId: "judged" });
    await granting.refuse(held);
    expect(await judge(granting, { fence: staleFence })).toBe("FENCING_TOKEN");
    await granting.cap("full", usd(0));
    expect(await judge(granting, {})).toBe("ALREADY_FAILED");
    expect(await judge(granting, { retryAfterGeneration: 1 })).toBe("CAP_HEADROOM");
  });

  test("a stale fence before the caps, and nothing is left of the claim", async () => {
    const granting = await open();
    await granting.cap("full", usd(0));
    expect(await judge(granting, { fence: staleFence })).toBe("FENCING_TOKEN");
    expect(await judge(granting, {})).toBe("CAP_HEADROOM");
    const { rowCount } = await database.pool.query("select from holdfast.authorizations where workspace_id = $1", [
      granting.workspace,
    ]);
    expect(rowCount).toBe(0);
  });

  test("a takeover re-checks the policy and the fence but needs no headroom", async () => {
    const granting = await open();
    await granting.cap("small", usd(10));
    const asked: Asked = { vaultKeyId: "judged", settlement: "TWO_STEP", holdForMs: 5000 };
    const held = await granting.grant(asked);
    await granting.changeCap("small", { limit: usd(0).micros });
    await clock.advance(5000);
    const [taken] = await granting.authorize(asks(asked));
    expect(taken).toMatchObject({ disposition: "GRANTED", mayHaveBeenSent: true, authorization: { generation: 1 } });
    await clock.advance(5000);
    await granting.revoke("judged");
    expect(await judge(granting, asked)).toBe("VAULT_KEY_REVOKED");
    expect(await granting.row(held)).toMatchObject({ state: "HELD", generation: 1 });
  });
});

test("a cap whose counter cannot be made denies", async () => {
  const granting = await open();
  await granting.cap("a-wide", usd(100));
  await granting.cap("b-lost", usd(100), { maxPerSpend: usd(50).micros });
  await granting.cap("c-lost", usd(100));
  // Nothing of the server does this: it stands for a counter that is lost for whatever reason.
  await database.pool.query(`
    create or replace function public.lose() returns trigger language plpgsql as $$ begin return null; end $$;
    create or replace trigger lose before insert on holdfast.counters for each row
      when (new.workspace_id = '${granting.workspace}' and new.cap_id like '%lost') execute function public.lose()`);
  const lost = { capId: "b-lost", limit: usd(100).micros, committed: 0n, held: 0n, currency: "usd", window: "" };
  const decisions = await granting.authorize(asks({ customerId: "a" }), asks({ customerId: "b", amount: usd(51) }));
  expect(decisions).toMatchObject([
    { disposition: "DENIED", rule: "CAP_HEADROOM", cap: lost, authorization: undefined },
    { disposition: "DENIED", rule: "MAX_PER_SPEND", cap: lost },
  ]);
  expect(await granting.counters()).toMatchObject([{ capId: "a-wide", held: 0n }]);
  await database.pool.query("drop trigger lose on holdfast.counters");
});

describe("a fence", () => {
  async function fenced(): Promise<{ granting: Granting; token: bigint }> {
    const granting = await open();
    const { lease } = await acquireBillingLease(database.pool, granting.workspace, {
      vaultKeyId: "judged",
      lease: "nightly",
      billingPeriod: "2026-11",
      holderId: "h1",
      ttlMs: 60_000,
      traceId: "",
    });
    return { granting, token: lease.fencingToken };
  }

  test("lets the holder through until the lease has run out, to the instant", async () => {
    const { granting, token } = await fenced();
    const fence = { ...staleFence, fencingToken: token };
    await clock.advance(59_999);
    expect(await judge(granting, { fence })).toBe("GRANTED");
    await clock.advance(1);
    expect(await judge(granting, { fence, customerId: "cust_2" })).toBe("FENCING_TOKEN");
  });

  test.each([
    ["another token", { fencingToken: 2n }],
    ["another holder", { holderId: "h2" }],
    ["another period", { billingPeriod: "2026-12" }],
    ["another job", { lease: "weekly" }],
  ])("refuses %s", async (_what, difference) => {
    const { granting, token } = await fenced();
    expect(await judge(granting, { fence: { ...staleFence, fencingToken: token, ...difference } })).toBe(
      "FENCING_TOKEN",
    );
  });
});

describe("caps are judged by id, and each cap in the order pinned, currency, size, headroom", () => {
  test.each([
    ["BILLING_PERIOD_NOT_PINNED", { window: "BILLING_PERIOD" as const }, { currency: "eur", micros: usd(0).micros }],
    ["CURRENCY", { maxPerSpend: usd(1).micros }, { currency: "eur", micros: usd(0).micros }],
    ["MAX_PER_SPEND", { maxPerSpend: usd(1).micros }, usd(0)],
    ["CAP_HEADROOM", {}, usd(0)],
  ] as const)("%s", async (rule, options, limit) => {
    const granting = await open();
    await granting.cap("broken", limit, options);
    expect(await judge(granting, {})).toBe(rule);
  });

  test("the first of two caps that deny is named, and no cap is drawn on", async () => {
    const granting = await open();
    await granting.cap("a-wide", usd(100));
    await granting.cap("b-full", usd(9));
    await granting.cap("c-full", usd(8));
    const [decision] = await granting.authorize(asks({ vaultKeyId: "judged" }));
    expect(decision).toMatchObject({
      disposition: "DENIED",
      rule: "CAP_HEADROOM",
      cap: { capId: "b-full", limit: usd(9).micros, committed: 0n, held: 0n, currency: "usd" },
      authorization: undefined,
    });
    expect((await granting.counters()).map(({ held }) => held)).toEqual([0n, 0n, 0n]);
  });

  test.each(caps)("the vault key's own limits come before $rule", async ({ prepare }) => {
    const granting = await open();
    await prepare?.(granting);
    await change(granting, "max_per_spend_currency = 'usd', max_per_spend_micros = 1");
    expect(await judge(granting, {})).toBe("MAX_PER_SPEND");
  });
});
