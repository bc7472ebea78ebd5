import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { openProxiedRequest, type ProxyEvent, proxyKeyState, recordProxyEvents } from "../../server/store/proxy.ts";
import { replaceClock, type TestClock } from "../support/clock.ts";
import { endpoint, type Granting, openGranting } from "../support/granting.ts";
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
});

describe("a request of the proxy is one event", () => {
  const traceId = "0af7651916cd43dd8448eb211c80319c";
  const eventOf = (more: Partial<ProxyEvent> = {}): ProxyEvent => ({
    vaultKeyId: "main",
    disposition: "FORWARDED",
    reason: "",
    traceId,
    spendKey: undefined,
    detail: { endpoint, status: 200, account: "acct_1", requestId: "hf_1" },
    ...more,
  });
  const recorded = async () => {
    const { rows } = await database.pool.query<Record<string, unknown>>(
      `select e.kind, e.actor_kind || ' ' || e.actor_id as actor, e.disposition, e.reason, e.trace_id, e.spend_key,
         e.generation, e.customer_id, e.amount_micros::text as amount, e.detail, e.xid::text as xid, e.n
       from holdfast.audit_events e where e.workspace_id = $1 and e.kind = 'proxy.request' order by e.xid, e.n`,
      [granting.workspace],
    );
    return rows;
  };

  test("with the authorization that it was about", async () => {
    const { spendKey, generation } = await granting.grant({ customerId: "cust_7" });
    await recordProxyEvents(database.pool, granting.workspace, [eventOf({ spendKey })]);
    expect(await recorded()).toEqual([
      {
        kind: "proxy.request",
        actor: "vault_key main",
        disposition: "FORWARDED",
        reason: "",
        trace_id: traceId,
        spend_key: spendKey,
        generation,
        customer_id: "cust_7",
        amount: "10000000",
        detail: {
          endpoint,
          status: 200,
          account: "acct_1",
          request_id: "hf_1",
          authorization: `authorizations/${spendKey}-${generation}`,
        },
        xid: expect.any(String) as string,
        n: 0,
      },
    ]);
  });

  test("several at once are written in their order, in one transaction", async () => {
    const detail = { endpoint: "", status: 403, account: "", requestId: "hf_2", healed: true, suppressed: 12 };
    await recordProxyEvents(database.pool, granting.workspace, [
      eventOf({ disposition: "REFUSED", reason: "endpoint_not_allowed", detail }),
      eventOf({
        vaultKeyId: "other",
        disposition: "REPLAYED",
        spendKey: "0".repeat(36),
      }),
      eventOf({ disposition: "PASSED" }),
    ]);
    const rows = await recorded();
    expect(rows.map(({ disposition, actor, n }) => [disposition, actor, n])).toEqual([
      ["REFUSED", "vault_key main", 0],
      ["REPLAYED", "vault_key other", 1],
      ["PASSED", "vault_key main", 2],
    ]);
    expect(new Set(rows.map(({ xid }) => xid)).size).toBe(1);
    expect(rows[0]).toMatchObject({
      reason: "endpoint_not_allowed",
      spend_key: null,
      detail: { endpoint: "", status: 403, healed: true, suppressed: 12 },
    });
    // There is no authorization of what nobody granted.
    expect(rows[1]).toMatchObject({ spend_key: null, customer_id: null });
    expect(rows[1]?.["detail"]).not.toHaveProperty("authorization");
  });

  test("and none is none", async () => {
    await recordProxyEvents(database.pool, granting.workspace, []);
    expect(await recorded()).toEqual([]);
  });
});

describe("what a request is judged by is read in one look:", () => {
  const open = (vaultKeyId = "main", vendor = "stripe") =>
    openProxiedRequest(database.pool, granting.workspace, { vaultKeyId, vendor });

  test("nothing of a key that does not exist", async () => {
    expect(await open("nobody")).toBeUndefined();
  });

  test("the policy of the key, with the defaults of what it does not say, and no credential where none is stored", async () => {
    const { proxy, ...opened } = (await open()) ?? {};
    expect(opened).toMatchObject({ vendor: "stripe", rule: undefined, credential: undefined });
    expect(proxy).toMatchObject({ objectAccess: "OWN", allowLists: false });
  });

  test("the sealed credential of that vendor, and of no other", async () => {
    await database.pool.query(
      `insert into holdfast.vendor_credentials (
         workspace_id, vendor_credential_id, vendor, vendor_account_id, masked_secret, key_id, nonce, ciphertext,
         create_time
       ) values ($1, 'main', 'stripe', 'acct_1', 'sk_…c', $2, $3, $4, holdfast.clock())`,
      [granting.workspace, "ab".repeat(8), Buffer.alloc(12, 1), Buffer.alloc(40, 2)],
    );
    const sealed = { keyId: "ab".repeat(8), nonce: Buffer.alloc(12, 1), ciphertext: Buffer.alloc(40, 2) };
    expect((await open())?.credential).toEqual({ vendorCredentialId: "main", sealed });
    const asked = { vaultKeyId: "main", vendor: "stripe", customerId: "" };
    const { credential } = await proxyKeyState(database.pool, granting.workspace, asked);
    expect(credential).toEqual({ vendorCredentialId: "main", sealed });
    expect((await open("main", "twilio"))?.credential).toBeUndefined();
  });

  test("why the key may send nothing", async () => {
    await database.pool.query(
      "update holdfast.vault_keys set state = 'SUSPENDED', suspend_time = holdfast.clock() where workspace_id = $1",
      [granting.workspace],
    );
    expect((await open())?.rule).toBe("VAULT_KEY_SUSPENDED");
  });
});

describe("right before money moves a key", () => {
  const look = (vaultKeyId = "main", customerId = "cust_1", vendor = "stripe") =>
    proxyKeyState(database.pool, granting.workspace, { vaultKeyId, vendor, customerId });
  const state = async (...asked: Parameters<typeof look>) => (await look(...asked)).rule;

  test("that is active may", async () => {
    expect(await state()).toBeUndefined();
    expect(await state("main", "")).toBeUndefined();
  });

  test("that is suspended, resumed, revoked or unknown is told so", async () => {
    await granting.suspend("main");
    expect(await state()).toBe("VAULT_KEY_SUSPENDED");
    await granting.resume("main");
    expect(await state()).toBeUndefined();
    await granting.revoke("main");
    expect(await state()).toBe("VAULT_KEY_REVOKED");
    expect(await state("nobody")).toBe("VAULT_KEY_REVOKED");
  });

  test("may until its end, and not from then on", async () => {
    const expireTime = BigInt(Date.parse("2026-11-15T12:01:00Z")) * 1000n;
    await granting.vaultKey("ending", { expireTime });
    await clock.set("2026-11-15T12:00:59.999999Z");
    expect(await state("ending")).toBeUndefined();
    await clock.set("2026-11-15T12:01:00Z");
    expect(await state("ending")).toBe("VAULT_KEY_EXPIRED");
  });

  test.each([
    [{ kind: "WORKSPACE" }, ["KILL_SWITCH", "KILL_SWITCH", "KILL_SWITCH"]],
    [{ kind: "VENDOR", vendor: "stripe" }, ["KILL_SWITCH", "KILL_SWITCH", undefined]],
    [{ kind: "CUSTOMER", customerId: "cust_1" }, ["KILL_SWITCH", undefined, "KILL_SWITCH"]],
  ] as const)("is stopped by the kill switch %j until it is released", async (target, expected) => {
    const all = async () => [await state(), await state("main", ""), await state("main", "cust_1", "twilio")];
    const killSwitch = await granting.engage(target);
    expect(await all()).toEqual(expected);
    const named = { killSwitchId: killSwitch.killSwitchId, targetKind: target.kind };
    expect((await look()).killSwitch).toEqual(named);
    const isForAll = target.kind !== "CUSTOMER";
    const asked = { vaultKeyId: "main", vendor: "stripe" };
    expect((await openProxiedRequest(database.pool, granting.workspace, asked))?.killSwitch).toEqual(
      isForAll ? named : undefined,
    );
    await granting.suspend("main");
    expect(await look()).toMatchObject({ rule: "VAULT_KEY_SUSPENDED", killSwitch: undefined });
    await granting.resume("main");
    await granting.release(killSwitch);
    expect(await all()).toEqual([undefined, undefined, undefined]);
  });
});
