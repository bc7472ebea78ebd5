import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import type { KillSwitchTarget } from "../../server/domain/kill-switch.ts";
import type { AuthorizeDecision } from "../../server/domain/spend.ts";
import type { Database } from "../../server/store/database.ts";
import { readExposure } from "../../server/store/exposure.ts";
import { engageKillSwitch, listKillSwitches } from "../../server/store/kill-switch.ts";
import { acquireBillingLease, renewBillingLease } from "../../server/store/lease.ts";
import { authorizeBatch } from "../../server/store/authorize.ts";
import { bindVendorReference, reportUnknown, voidSpend } from "../../server/store/spend.ts";
import { changeVaultKeyState, rotateVaultKey, updateVaultKey } from "../../server/store/vault-key.ts";
import { replaceClock, type TestClock } from "../support/clock.ts";
import { type Asked, asks, attempt, type Granting, openGranting, usd } from "../support/granting.ts";
import { openPaused, type Paused } from "../support/paused.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";

let database: TestDatabase;
let clock: TestClock;
let granting: Granting;
/** A server that has read and not yet committed. */
let paused: Paused;

beforeAll(async () => {
  database = await createTestDatabase({ pool: { max: 20 } });
  clock = await replaceClock(database.pool);
});
afterAll(() => database.close());

beforeEach(async () => {
  await clock.reset();
  granting = await openGranting(database.pool);
  paused = await openPaused(database.pool);
});
afterEach(() => paused.release());

/** Something that stops the vault key "main", its vendor, its customer or its workspace. */
interface Switch {
  readonly what: string;
  readonly rule: string;
  /** Inside a change of policy. */
  readonly apply: (transaction: Database) => Promise<unknown>;
}

function engaging(target: KillSwitchTarget): Switch["apply"] {
  return (transaction) => {
    const made = { killSwitchId: attempt(), target, reason: "stolen", engagedBy: "alice" };
    return engageKillSwitch(transaction, granting.workspace, made);
  };
}

function moving(state: "SUSPENDED" | "REVOKED"): Switch["apply"] {
  return (transaction) => changeVaultKeyState(transaction, granting.workspace, "main", { state, reason: "stolen" });
}

const openPolicy = {
  allowedEndpoints: [] as string[],
  billingPeriods: undefined,
  purposes: undefined,
  customers: undefined,
  maxPerSpend: undefined,
  expireTime: undefined,
  attachedCaps: [],
  labels: {},
};

const switches: readonly Switch[] = [
  { what: "a key's suspension", rule: "VAULT_KEY_SUSPENDED", apply: moving("SUSPENDED") },
  { what: "a key's revocation", rule: "VAULT_KEY_REVOKED", apply: moving("REVOKED") },
  {
    what: "a change of a key's policy",
    rule: "ENDPOINT",
    apply: (transaction) => updateVaultKey(transaction, granting.workspace, "main", openPolicy),
  },
  { what: "a vendor's switch", rule: "KILL_SWITCH", apply: engaging({ kind: "VENDOR", vendor: "stripe" }) },
  { what: "a customer's switch", rule: "KILL_SWITCH", apply: engaging({ kind: "CUSTOMER", customerId: "cust_1" }) },
  { what: "the workspace's switch", rule: "KILL_SWITCH", apply: engaging({ kind: "WORKSPACE" }) },
];

/** Carries the change out as a server does. */
function turn(change: Switch, around?: (transaction: Database) => Promise<void>): Promise<void> {
  const principal = { role: "operator" as const, workspace: granting.workspace, id: "alice" };
  return granting.changePolicy({ principal, kind: "test.switched", traceId: "", detail: {} }, async (transaction) => {
    await change.apply(transaction);
    await around?.(transaction);
  });
}

const verdict = (decision: AuthorizeDecision | undefined): string => decision?.rule ?? decision?.disposition ?? "";

async function ask(asked: Asked = {}): Promise<string> {
  return verdict((await granting.authorize(asks(asked)))[0]);
}

/** What a grant is: a new one, a takeover, or more for one that exists. Each is asked for on a given connection. */
interface Grant {
  readonly what: string;
  readonly prepare: () => Promise<(on: Database) => Promise<string>>;
}

const grants: readonly Grant[] = [
  {
    what: "a new grant",
    prepare: () =>
      Promise.resolve(async (on: Database) => verdict((await authorizeBatch(on, granting.workspace, [asks()]))[0])),
  },
  {
    what: "a takeover",
    prepare: async () => {
      const held = await granting.grant({ settlement: "TWO_STEP" });
      await database.pool.query(
        "update holdfast.authorizations set vendor_reference = 'pi_1', hold_expire_time = '2020-01-01' where workspace_id = $1 and spend_key = $2",
        [granting.workspace, held.spendKey],
      );
      return async (on) =>
        verdict((await authorizeBatch(on, granting.workspace, [asks({ settlement: "TWO_STEP" })]))[0]);
    },
  },
  {
    what: "an increase",
    prepare: async () => {
      const authorization = await granting.grant();
      return async (on) => {
        return (await granting.raise(authorization, usd(11), { on })).rule ?? "GRANTED";
      };
    },
  },
];

const cells = switches.flatMap((change) => grants.map((grant) => [change, grant] as const));

describe("a switch and a grant that are in flight at once", () => {
  test.each(cells)("$0.what returns only after $1.what that had not seen it has ended", async (change, grant) => {
    const granted = await grant.prepare();
    expect(await granted(paused.client)).toBe("GRANTED");
    const turned = turn(change);
    await paused.expectBlocking(turned);
    await paused.commit();
    await turned;
    expect((await readExposure(database.pool, granting.workspace, {}, 10)).count).toBe(1n);
    expect(await ask({ customerId: "cust_1", purpose: "later" })).toBe(change.rule);
    await granting.expectCountersToAddUp();
  });

  test.each(cells)("$1.what that comes while $0.what is in flight waits and is denied", async (change, grant) => {
    const granted = await grant.prepare();
    let late: Promise<string> | undefined;
    await turn(change, async (transaction) => {
      const { rows } = await transaction.query<{ pid: number }>({ text: "select pg_backend_pid() as pid", values: [] });
      late = granted(database.pool);
      await untilBlockedBy(rows[0]?.pid ?? 0);
    });
    expect(await late).toBe(change.rule);
  });
});

async function untilBlockedBy(pid: number): Promise<void> {
  for (;;) {
    const { rowCount } = await database.pool.query(
      "select from pg_stat_activity a where a.datname = current_database() and $1::integer = any (pg_blocking_pids(a.pid))",
      [pid],
    );
    if (rowCount !== 0) return;
  }
}

describe("a switch that is turned back", () => {
  test("a resumed key spends again", async () => {
    await granting.suspend("main");
    expect(await ask()).toBe("VAULT_KEY_SUSPENDED");
    await granting.resume("main");
    expect(await ask()).toBe("GRANTED");
  });

  test("a revoked key is never resumed or suspended", async () => {
    await granting.revoke("main");
    await granting.resume("main");
    await granting.suspend("main");
    expect(await ask()).toBe("VAULT_KEY_REVOKED");
  });

  test("a released switch stops nothing, and can be engaged again as a new one", async () => {
    const target = { kind: "VENDOR", vendor: "stripe" } as const;
    const first = await granting.engage(target);
    await granting.release(first);
    expect(await ask()).toBe("GRANTED");
    const second = await granting.engage(target);
    expect(second.killSwitchId).not.toBe(first.killSwitchId);
    expect(await ask({ purpose: "other" })).toBe("KILL_SWITCH");
    const all = await listKillSwitches(database.pool, granting.workspace, {
      includeReleased: true,
      after: undefined,
      limit: 10,
    });
    expect(all.map((one) => one.killSwitchId)).toEqual([second.killSwitchId, first.killSwitchId]);
  });

  test("a release returns only after each grant that saw the switch has ended", async () => {
    const engaged = await granting.engage({ kind: "WORKSPACE" });
    expect(verdict((await authorizeBatch(paused.client, granting.workspace, [asks()]))[0])).toBe("KILL_SWITCH");
    const released = granting.release(engaged);
    await paused.expectBlocking(released);
    await paused.commit();
    await released;
    expect(await ask()).toBe("GRANTED");
  });
});

describe("what a switch does not touch", () => {
  test.each([
    ["another vendor", { kind: "VENDOR", vendor: "twilio" }],
    ["another customer", { kind: "CUSTOMER", customerId: "cust_10" }],
    ["a customer who is called like the vendor", { kind: "CUSTOMER", customerId: "stripe" }],
    ["a vendor that is called like the customer", { kind: "VENDOR", vendor: "cust_1" }],
  ] as const)("%s", async (_what, target) => {
    await granting.engage(target);
    expect(await ask()).toBe("GRANTED");
  });

  test("another workspace", async () => {
    const other = await openGranting(database.pool);
    for (const target of [
      { kind: "WORKSPACE" },
      { kind: "VENDOR", vendor: "stripe" },
      { kind: "CUSTOMER", customerId: "cust_1" },
    ] as const) {
      await other.engage(target);
    }
    expect(await ask()).toBe("GRANTED");
  });

  test("a neighbour in the same batch", async () => {
    const engaged = await granting.engage({ kind: "CUSTOMER", customerId: "cust_2" });
    const decisions = await granting.authorize(
      asks({ customerId: "cust_1" }),
      asks({ customerId: "cust_2" }),
      asks({ customerId: "cust_3" }),
    );
    expect(decisions.map(verdict)).toEqual(["GRANTED", "KILL_SWITCH", "GRANTED"]);
    expect(decisions.map((one) => one.killSwitch)).toEqual([
      undefined,
      { killSwitchId: engaged.killSwitchId, targetKind: "CUSTOMER" },
      undefined,
    ]);
  });
});

describe("of several switches", () => {
  test("the one that stops most is named", async () => {
    const kinds = ["CUSTOMER", "VENDOR", "WORKSPACE"] as const;
    const targets = { CUSTOMER: { customerId: "cust_1" }, VENDOR: { vendor: "stripe" }, WORKSPACE: {} };
    for (const kind of kinds) {
      await granting.engage({ kind, ...targets[kind] } as KillSwitchTarget);
      const [decision] = await granting.authorize(asks());
      expect(decision?.killSwitch?.targetKind).toBe(kind);
    }
  });

  test("the key's own policy is named before any", async () => {
    await granting.engage({ kind: "WORKSPACE" });
    const [decision] = await granting.authorize(asks({ endpoint: "POST /v1/refunds" }));
    expect(decision).toMatchObject({ rule: "ENDPOINT", killSwitch: undefined });
  });

  test("engaging twice answers with the first, whoever and why", async () => {
    const first = await granting.engage({ kind: "WORKSPACE" });
    expect(await granting.engage({ kind: "WORKSPACE" })).toEqual(first);
  });
});

describe("what was granted before", () => {
  test.each(switches)("is settled, reported and bound after $what", async (change) => {
    const { workspace } = granting;
    const held = (purpose: string) => granting.grant({ purpose, settlement: "TWO_STEP", attemptId: same });
    const same = attempt();
    const attemptOf = (authorization: Awaited<ReturnType<typeof held>>) => ({
      vaultKeyId: "main",
      authorization,
      attemptId: same,
      traceId: "",
    });
    const rows = [await held("commit"), await held("void"), await held("report"), await held("bind")] as const;
    await turn(change);
    const [committed, voided, reported, bound] = rows;
    expect(await granting.commit(committed)).toMatchObject({ errorReason: undefined });
    const evidence = { evidence: "NEVER_SENT", vendorStatus: 0, vendorReplayed: false, vendorReference: "" } as const;
    const actor = { kind: "vault_key", id: "main" } as const;
    expect(
      await voidSpend(database.pool, workspace, { ...attemptOf(voided), actor, ...evidence, reason: "" }),
    ).toMatchObject({ errorReason: undefined });
    expect(await reportUnknown(database.pool, workspace, { ...attemptOf(reported), reason: "" })).toMatchObject({
      errorReason: undefined,
    });
    const reference = { vendorReference: "pi_9", vendorState: "", followForMs: 60_000 };
    expect(await bindVendorReference(database.pool, workspace, { ...attemptOf(bound), ...reference })).toMatchObject({
      errorReason: undefined,
    });
    // Nothing else: not even the answer of before to the attempt that holds it.
    for (const purpose of ["commit", "void", "report", "bind"]) {
      expect(await ask({ purpose, settlement: "TWO_STEP", attemptId: same })).toBe(change.rule);
    }
    await granting.expectCountersToAddUp();
  });

  test("is the exposure of its key, its vendor, its customer and its workspace, newest first", async () => {
    await granting.vaultKey("other", { vendor: "twilio" });
    const first = await granting.grant({ customerId: "a" });
    const second = await granting.grant({ customerId: "b" });
    await granting.grant({ customerId: "b", purpose: "sms", vaultKeyId: "other", vendor: "twilio" });
    await granting.commit(await granting.grant({ customerId: "a", purpose: "settled" }));
    const exposed = async (filter: Parameters<typeof readExposure>[2], limit = 10) => {
      const { authorizations, count } = await readExposure(database.pool, granting.workspace, filter, limit);
      return [authorizations.map((one) => `${one.spend.customerId} ${one.vendor}`), count];
    };
    expect(await exposed({ vaultKeyId: "main" })).toEqual([["b stripe", "a stripe"], 2n]);
    expect(await exposed({ vendor: "twilio" })).toEqual([["b twilio"], 1n]);
    expect(await exposed({ customerId: "a" })).toEqual([["a stripe"], 1n]);
    expect(await exposed({}, 1)).toEqual([["b twilio"], 3n]);
    expect(first.spendKey).not.toBe(second.spendKey);
  });
});

describe("a billing lease", () => {
  const job = (holderId: string) => ({
    vaultKeyId: "main",
    lease: "nightly",
    billingPeriod: "2026-11",
    holderId,
    traceId: "",
    ttlMs: 60_000,
  });

  test.each(switches.slice(0, 2))("is neither acquired nor renewed after $what", async (change) => {
    const { lease } = await acquireBillingLease(database.pool, granting.workspace, job("h1"));
    await turn(change);
    const renewal = { ...job("h1"), fencingToken: lease.fencingToken };
    expect(await renewBillingLease(database.pool, granting.workspace, renewal)).toMatchObject({ renewed: false });
    await expect(acquireBillingLease(database.pool, granting.workspace, job("h1"))).rejects.toMatchObject({
      reason: "STATE_NOT_ALLOWED",
    });
  });

  test("is not acquired behind a suspend that has returned", async () => {
    await acquireBillingLease(paused.client, granting.workspace, job("h1"));
    const suspended = granting.suspend("main");
    await paused.expectBlocking(suspended);
    await paused.commit();
    await suspended;
    await expect(acquireBillingLease(database.pool, granting.workspace, job("h2"))).rejects.toMatchObject({
      reason: "STATE_NOT_ALLOWED",
    });
  });
});

test("a rotation returns only after every grant that began before it has ended, and takes nothing from the key", async () => {
  await authorizeBatch(paused.client, granting.workspace, [asks()]);
  const change = { secretSha256: new Uint8Array(32).fill(7), overlapMs: 0 };
  const rotated = turn({
    what: "a rotation",
    rule: "",
    apply: (transaction) => rotateVaultKey(transaction, granting.workspace, "main", change),
  });
  await paused.expectBlocking(rotated);
  await paused.commit();
  await rotated;
  expect(await ask({ purpose: "other" })).toBe("GRANTED");
});

test("a denial by a switch is in the audit with the switch's name", async () => {
  const engaged = await granting.engage({ kind: "WORKSPACE" });
  await ask();
  const { rows } = await database.pool.query<{ reason: string; detail: object }>(
    "select reason, detail from holdfast.audit_events where workspace_id = $1 and disposition = 'DENIED'",
    [granting.workspace],
  );
  expect(rows).toEqual([
    { reason: "KILL_SWITCH", detail: expect.objectContaining({ kill_switch: engaged.killSwitchId }) },
  ]);
});
