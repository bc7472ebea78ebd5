import { CapWindow } from "@holdfast/api/holdfast/v1/cap_pb";
import { LeaseOutcome } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { afterEach, describe, expect, test } from "vitest";
import { readConfig } from "../../server/config.ts";
import { createObservation } from "../../server/observation.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";
import { scrape } from "../support/scrape.ts";
import { startTestServer, type TestServer } from "../support/server.ts";
import { dollar } from "../injection/spend-call.ts";

const closers: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const closer of closers.splice(0).toReversed()) await closer();
});
const metricsPort = { host: "127.0.0.1", port: 0, maxAgeMs: 0 };

async function start(config = {}): Promise<TestServer> {
  const server = await startTestServer({ config: { metricsPort, ...config } });
  closers.push(() => server.close());
  return server;
}

const look = (server: TestServer) => scrape(server.apps[0]?.metricsUrl);

describe("the metrics of a server", () => {
  test("say what was decided and why, how batches went, what caps leave, and which calls were refused", async () => {
    const server = await start();
    const token = await server.vaultKey("billing");
    await server.cap("all", "10");
    await server.admin.createCap({ capId: "few", cap: { spendCountLimit: 20n, window: CapWindow.LIFETIME } });
    const spends = server.spend(token);
    const same = dollar("c1");
    for (const request of [same, same, dollar("c2")]) await spends.authorizeSpend(request);
    const { authorization } = await spends.authorizeSpend(dollar("c3"));
    await spends.authorizeSpend({
      ...dollar("c4"),
      spend: { ...dollar("c4").spend, amount: { currency: "usd", amount: "8" } },
    });
    await spends
      .authorizeSpend({ ...same, spend: { ...same.spend, amount: { currency: "usd", amount: "2" } } })
      .catch(() => undefined);
    await spends.authorizeSpend({ ...dollar("c5"), dryRun: true });
    const charged = { amount: { currency: "usd", amount: "12" }, vendorReference: "ch_1" };
    await spends.commitSpend({ authorization: authorization?.name ?? "", ...charged });
    await server
      .spend("vk_default_billing_wrong")
      .authorizeSpend(dollar("c6"))
      .catch(() => undefined);

    const seen = await look(server);
    const decided = (labels: Record<string, string>) => seen.value("holdfast_authorize_decisions_total", labels);
    expect(decided({ holdfast_disposition: "GRANTED" })).toBe(4);
    expect(decided({ holdfast_disposition: "DENIED", holdfast_denial_rule: "CAP_HEADROOM" })).toBe(1);
    expect(decided({ holdfast_disposition: "REFUSED", holdfast_error_reason: "SPEND_MISMATCH" })).toBe(1);
    expect(decided({})).toBe(6);
    expect(seen.value("holdfast_batch_size_sum", { holdfast_batch_name: "authorize" })).toBe(6);
    expect(seen.value("holdfast_batch_size_sum", { holdfast_batch_name: "commit" })).toBe(1);
    expect(seen.value("holdfast_batch_wait_count", { holdfast_batch_name: "authorize" })).toBe(6);
    expect(seen.value("holdfast_batch_duration_count")).toBe(7);
    expect(seen.value("holdfast_over_commits_total")).toBe(1);
    expect(seen.value("holdfast_cap_headroom", { holdfast_cap: "all", holdfast_currency: "usd" })).toBe(-4);
    expect(seen.value("holdfast_cap_headroom_ratio", { holdfast_cap: "all" })).toBeCloseTo(-0.4);
    expect(seen.value("holdfast_cap_headroom", { holdfast_cap: "few", holdfast_currency: "" })).toBe(17);
    const calls = (method: string, code: string) =>
      seen.value("rpc_server_call_duration_count", {
        rpc_method: `holdfast.v1.SpendControlService/${method}`,
        rpc_status_code: code,
      });
    expect(calls("AuthorizeSpend", "OK")).toBe(6);
    expect(calls("AuthorizeSpend", "UNAUTHENTICATED")).toBe(1);
    expect(seen.value("db_client_connection_max")).toBe(10);
  });

  test("show each cap in its current window, and leases by what they are now", async () => {
    const server = await start();
    const token = await server.vaultKey("billing", { billingPeriods: ["2026-11", "2026-12"] });
    await server.clock.set("2026-11-30T12:00:00Z");
    await server.cap("daily", "4", { window: CapWindow.DAY });
    await server.cap("period", "8", { window: CapWindow.BILLING_PERIOD });
    const spends = server.spend(token);
    await spends.authorizeSpend(dollar("c1"));
    await spends.acquireBillingLease({ lease: "a", billingPeriod: "2026-11", holderId: "one", ttl: { seconds: 60n } });
    const b = { lease: "b", billingPeriod: "2026-11", holderId: "one" };
    const { billingLease } = await spends.acquireBillingLease({ ...b, ttl: { seconds: 60n } });
    const { fencingToken = 0n } = billingLease ?? {};
    await spends.releaseBillingLease({ ...b, fencingToken, outcome: LeaseOutcome.COMPLETED });
    const ratio = async (cap: string) =>
      (await look(server)).value("holdfast_cap_headroom_ratio", { holdfast_cap: cap });
    const leases = async (state: string) =>
      (await look(server)).value("holdfast_leases", { holdfast_lease_state: state });
    expect(await ratio("daily")).toBe(0.75);
    expect(await ratio("period")).toBe(0.875);
    expect(await leases("held")).toBe(1);
    const next = dollar("c2");
    await server.clock.set("2026-12-01T12:00:00Z");
    expect(await ratio("daily")).toBe(1);
    await spends.authorizeSpend({ ...next, spend: { ...next.spend, billingPeriod: "2026-12" } });
    await spends.authorizeSpend({
      ...next,
      spend: { ...next.spend, billingPeriod: "2026-12", customerId: "c3" },
      attemptId: "b".repeat(32),
    });
    expect(await ratio("period")).toBe(0.75);
    expect(await leases("held")).toBe(0);
    expect(await leases("free")).toBe(1);
    expect(await leases("completed")).toBe(1);
  });

  test("go to a path of a port of their own, and to nobody by default", async () => {
    const server = await start();
    const url = new URL(server.apps[0]?.metricsUrl ?? "");
    expect(url.pathname).toBe("/metrics");
    const answer = await fetch(url);
    expect(answer.headers.get("content-type")).toBe("text/plain; version=0.0.4; charset=utf-8");
    expect((await fetch(new URL("/", url))).status).toBe(404);
    expect((await fetch(url, { method: "POST", body: "x" })).status).toBe(405);
    expect(await (await fetch(url, { method: "HEAD" })).text()).toBe("");
    await server.close();
    await expect(fetch(url)).rejects.toThrow();
    expect((await start({ metricsPort: undefined })).apps[0]?.metricsUrl).toBeUndefined();
  });

  test("still come while the database does not answer, without what only it knows", async () => {
    const server = await start();
    await server.cap("all", "10");
    expect((await look(server)).names.has("holdfast_cap_headroom")).toBe(true);
    await server.database.pool.query("alter function holdfast.in_doubt_since rename to in_doubt_since_away");
    const seen = await look(server);
    expect(seen.names.has("holdfast_cap_headroom")).toBe(false);
    expect(seen.value("db_client_connection_max")).toBe(10);
    expect((await look(server)).value("holdfast_observations_total", { holdfast_outcome: "failed" })).toBeGreaterThan(
      0,
    );
    await server.database.pool.query("alter function holdfast.in_doubt_since_away rename to in_doubt_since");
    expect((await look(server)).names.has("holdfast_cap_headroom")).toBe(true);
  });
});

test("a sweep that fails is counted apart", async () => {
  const server = await start({ sweepIntervalMs: 100 });
  const rounds = async (outcome: string) =>
    (await look(server)).value("holdfast_sweeps_total", { holdfast_outcome: outcome });
  await expect.poll(() => rounds("ok"), { timeout: 30_000 }).toBeGreaterThan(0);
  expect(await rounds("failed")).toBe(0);
  await server.database.pool.query("alter function holdfast.sweep_expired rename to sweep_expired_away");
  await expect.poll(() => rounds("failed"), { timeout: 30_000 }).toBeGreaterThan(0);
});

async function manyCaps(database: TestDatabase, caps: number): Promise<void> {
  await database.pool.query(
    `insert into holdfast.caps (workspace_id, cap_id, currency, limit_micros, cap_window, time_zone, per_customer, direction,
       scope_customer_id, refunds_restore_headroom, create_time, update_time)
     select 'default', 'cap-' || n, 'usd', 1000000 * n::bigint, case when n % 2 = 0 then 'MONTH' else 'LIFETIME' end, 'UTC',
       false, 'SPEND', 'nobody', false, t.now, t.now
     from generate_series(1, $1::integer) n cross join (select holdfast.clock() as now) t`,
    [caps],
  );
}

describe("the number of series is bounded", () => {
  test("with 10,000 caps and 1,000 vault keys, and those with least headroom are shown", async () => {
    const server = await start();
    await manyCaps(server.database, 10_000);
    const token = await server.vaultKey("billing");
    await server.database.pool.query(
      `insert into holdfast.vault_keys select (jsonb_populate_record(k, jsonb_build_object('vault_key_id', 'key' || n,
         'request_id', null, 'request_sha256', null))).*
       from holdfast.vault_keys k cross join generate_series(1, 1000) n where k.vault_key_id = 'billing'`,
    );
    await server.database.pool.query(
      `insert into holdfast.counters (workspace_id, cap_id, window_label, subject, held_micros)
       select 'default', 'cap-' || n, '', '', 900000 * n::bigint from generate_series(1, 301, 2) n`,
    );
    await server.database.pool.query("analyze holdfast.caps, holdfast.counters");
    await Promise.all(
      Array.from({ length: 50 }, (_, n) =>
        server
          .spend(token)
          .authorizeSpend(dollar(`customer-${n}`))
          .catch(() => undefined),
      ),
    );
    const seen = await look(server);
    const shown = seen.samples.filter(({ name }) => name === "holdfast_cap_headroom_ratio");
    expect(shown).toHaveLength(200);
    expect(seen.value("holdfast_cap_headroom_unshown", { holdfast_reason: "too_many" })).toBe(9_800);
    const named = new Set(shown.map(({ labels }) => labels["holdfast_cap"]));
    for (let n = 1; n <= 301; n += 2) expect(named).toContain(`cap-${n}`);
    expect(seen.samples.length).toBeLessThan(800);
    expect(seen.text).not.toMatch(/customer-\d|key\d/);
  });

  test("also when other caps have least headroom each time: a cap that is not among them any more is not shown", async () => {
    const server = await start();
    await manyCaps(server.database, 600);
    const sets: Set<string | undefined>[] = [];
    for (const first of [1, 201, 401]) {
      await server.database.pool.query("delete from holdfast.counters");
      await server.database.pool.query(
        `insert into holdfast.counters (workspace_id, cap_id, window_label, subject, held_micros)
         select c.workspace_id, c.cap_id, holdfast.window_label(c, '', holdfast.clock()), '', 500000
         from holdfast.caps c where c.limit_micros between $1::bigint * 1000000 and ($1::bigint + 199) * 1000000`,
        [first],
      );
      const shown = (await look(server)).samples.filter(({ name }) => name === "holdfast_cap_headroom");
      expect(shown).toHaveLength(200);
      sets.push(new Set(shown.map(({ labels }) => labels["holdfast_cap"])));
    }
    const [before, , after] = sets;
    expect([...(before ?? [])].filter((cap) => after?.has(cap))).toEqual([]);
  });
});

describe("looking at the figures", () => {
  test("costs the database one read in the time that they are kept, however many look and also while it fails", async () => {
    const database = await createTestDatabase();
    closers.push(() => database.close());
    let reads = 0;
    let told = 0;
    let nowMs = 0;
    let broken = false;
    const counted = {
      query: (query: { text: string; values: unknown[] }) => {
        if (query.text.includes("read_reconciliation_figures")) reads += 1;
        return broken ? Promise.reject(new Error("away")) : database.pool.query(query);
      },
    };
    const pool = { totalCount: 1, idleCount: 1, waitingCount: 0 };
    const producer = createObservation({
      database: counted as never,
      pool,
      poolMax: 1,
      maxAgeMs: 1_000,
      nowMs: () => nowMs,
      onError: () => (told += 1),
    });
    await Promise.all(Array.from({ length: 20 }, () => producer.collect()));
    nowMs = 999;
    await producer.collect();
    expect(reads).toBe(1);
    nowMs = 1_000;
    broken = true;
    for (let n = 0; n < 5; n += 1) expect((await producer.collect()).errors).toHaveLength(1);
    expect(reads).toBe(2);
    expect(told).toBe(1);
    broken = false;
    nowMs = 2_000;
    expect((await producer.collect()).errors).toEqual([]);
    expect(reads).toBe(3);
  });
});

describe("the settings of the port", () => {
  test("leave it closed, and on this machine only", () => {
    expect(readConfig({}, []).metricsPort).toBeUndefined();
    expect(readConfig({ HOLDFAST_METRICS_PORT: "9464", HOLDFAST_HOST: "localhost" }, []).metricsPort).toEqual({
      host: "127.0.0.1",
      port: 9464,
      maxAgeMs: 10_000,
    });
  });

  test("open it to other machines only with TLS, or where clear text is allowed", () => {
    const env = { HOLDFAST_METRICS_PORT: "9464", HOLDFAST_METRICS_HOST: "0.0.0.0" };
    expect(() => readConfig(env, [])).toThrow(/HOLDFAST_METRICS_HOST is "0\.0\.0\.0".*without TLS/);
    expect(readConfig({ ...env, HOLDFAST_ALLOW_PLAINTEXT: "true" }, []).metricsPort?.host).toBe("0.0.0.0");
    expect(
      readConfig({ ...env, HOLDFAST_TLS_CERT_FILE: "/c", HOLDFAST_TLS_KEY_FILE: "/k" }, []).metricsPort?.host,
    ).toBe("0.0.0.0");
  });

  test.each([
    ["HOLDFAST_METRICS_PORT", "http"],
    ["HOLDFAST_METRICS_MAX_AGE_MS", "-1"],
  ])("%s=%s is refused", (name, value) => {
    expect(() => readConfig({ HOLDFAST_METRICS_PORT: "0", [name]: value }, [])).toThrow(name);
  });
});
