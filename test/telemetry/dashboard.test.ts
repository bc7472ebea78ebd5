import { execFileSync, spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { AuthorizationState, Disposition } from "@holdfast/api/holdfast/v1/spend_pb";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { parse } from "yaml";
import { metric } from "@holdfast/server/telemetry-metrics";
import { dollar } from "../injection/spend-call.ts";
import { type Scrape, scrape } from "../support/scrape.ts";
import { charge, startVendorWorld, type VendorWorld } from "../vendor/world.ts";
import { labelsOf, metricsOf } from "./promql.ts";

const root = join(import.meta.dirname, "../..");

interface Panel {
  readonly title: string;
  readonly targets?: readonly { readonly expr: string }[];
}
const dashboard = JSON.parse(readFileSync(join(root, "deploy/grafana/holdfast.json"), "utf8")) as {
  readonly panels: readonly Panel[];
};
const rulesFile = join(root, "deploy/prometheus/alerts.yaml");
const { groups } = parse(readFileSync(rulesFile, "utf8")) as {
  readonly groups: readonly { readonly rules: readonly { readonly alert: string; readonly expr: string }[] }[];
};

/** Every expression, by who asks for it. */
const asked = [
  ...dashboard.panels.flatMap(({ title, targets = [] }) =>
    targets.map(({ expr }) => [`panel ${title}`, expr] as const),
  ),
  ...groups.flatMap(({ rules }) => rules.map(({ alert, expr }) => [alert, expr] as const)),
];
/** Made by Prometheus itself. */
const own = new Set(["up"]);
/** What stays as it was set. */
const constant = new Set(["db_client_connection_max", "holdfast_database_hidden_sessions"]);
const named = [...new Set(asked.flatMap(([, expr]) => metricsOf(expr)))].filter((name) => !own.has(name));

let world: VendorWorld;
const scrapes: Scrape[] = [];
const url = (): string | undefined => world.server.apps[0]?.metricsUrl;
const look = async (): Promise<Scrape> => {
  const seen = await scrape(url());
  scrapes.push(seen);
  return seen;
};

beforeAll(async () => {
  world = await startVendorWorld({
    config: {
      metricsPort: { host: "127.0.0.1", port: 0, maxAgeMs: 0 },
      stripeProxy: { host: "127.0.0.1", port: 0, names: [] },
      sweepIntervalMs: 100,
      poolSize: 2,
      // Nobody listens there.
      otlpEndpoint: "http://127.0.0.1:9",
      metricIntervalMs: 1_000,
    },
  });
  await look();
});
afterAll(() => world.close());

async function proxied(customer: string): Promise<number> {
  const body = new URLSearchParams({ amount: "100", currency: "usd", source: "tok_visa" });
  const response = await fetch(`${world.server.apps[0]?.stripeProxyUrl}/v1/charges`, {
    method: "POST",
    body,
    headers: {
      authorization: `Bearer ${world.token}`,
      "idempotency-key": customer,
      "holdfast-spend": `customer=${customer}; period=2026-11; purpose=proxied`,
    },
  });
  await response.text();
  return response.status;
}

describe("what the dashboard and the alerts ask for", () => {
  test("is there and moves, as a server shows it that grants, denies, doubts, reconciles, leases, proxies and is in trouble", async () => {
    const { server, token } = world;
    const spends = server.spend(token);
    await server.cap("each", "900", { perCustomer: true });
    expect((await spends.authorizeSpend(dollar("c1"))).disposition).toBe(Disposition.GRANTED);
    expect((await spends.authorizeSpend({ ...dollar("c2"), endpoint: "POST /v1/refunds" })).disposition).toBe(
      Disposition.DENIED,
    );
    await server
      .spend(`${token}x`)
      .authorizeSpend(dollar("c3"))
      .catch(() => undefined);
    await spends.acquireBillingLease({
      lease: "job",
      billingPeriod: "2026-11",
      holderId: "one",
      ttl: { seconds: 60n },
    });
    const lost = await world.doubted({ charged: 990_000 });
    await world.advance(60_000);
    const doubtful = await look();
    expect(doubtful.value("holdfast_in_doubt_count")).toBe(1);
    expect(doubtful.value("holdfast_in_doubt_oldest_age")).toBeGreaterThanOrEqual(60);
    expect(doubtful.value("holdfast_reconcile_lag")).toBeGreaterThanOrEqual(60);

    await world.store();
    await world.becomes(lost.name, AuthorizationState.COMMITTED);
    const second = await charge({ plain: world.plain, authorization: lost, amount: 100, key: "second" });
    const again = { authorization: lost.name, amount: { currency: "usd", amount: "1" }, vendorReference: second.id };
    await spends.commitSpend(again).catch(() => undefined);
    expect((await look()).value("holdfast_contradictions_open")).toBe(1);

    // The cap is used up by what was charged above what was held, so there has to be a higher one.
    await server.admin.updateCap({
      cap: { name: "caps/all", limit: { currency: "usd", amount: "100000" } },
      updateMask: { paths: ["limit"] },
    });
    expect(await proxied("p1")).toBe(200);
    const { pool } = server.database;
    await pool.query("alter function holdfast.record_proxy_events rename to record_proxy_events_away");
    expect(await proxied("p2")).toBe(200);
    await pool.query("alter function holdfast.record_proxy_events_away rename to record_proxy_events");

    const carried = await look();
    const forwarded = { holdfast_vendor: "stripe", holdfast_disposition: "FORWARDED", holdfast_status_class: "2xx" };
    expect(carried.value("holdfast_proxy_requests_total", forwarded)).toBe(2);
    expect(carried.value("holdfast_proxy_unrecorded_total")).toBe(1);
    const upstream = { http_request_method: "POST", http_response_status_code: "200" };
    expect(carried.value("http_client_request_duration_count", upstream)).toBe(2);

    const reader = await pool.connect();
    await reader.query("begin isolation level repeatable read; select 1");
    await server.cap("meanwhile", "1");
    const kept = await look();
    expect(kept.value("holdfast_database_oldest_transaction_age")).toBeGreaterThan(0);
    expect(kept.value("holdfast_database_oldest_snapshot_lag")).toBeGreaterThan(0);
    await reader.query("rollback");
    reader.release();

    // Two connections, both held up, and more who want one.
    const holder = await pool.connect();
    await holder.query("begin");
    await holder.query("lock table holdfast.workspaces, holdfast.caps in access exclusive mode");
    const stuck = ["s1", "s2", "s3", "s4", "s5"].map((id) =>
      server.admin.getCap({ name: `caps/${id}` }).catch(() => undefined),
    );
    await expect.poll(async () => (await look()).value("db_client_connection_pending_requests")).toBeGreaterThan(0);
    await holder.query("rollback");
    holder.release();
    await Promise.all(stuck);

    await expect
      .poll(async () => (await look()).value("holdfast_telemetry_dropped_total"), { timeout: 60_000, interval: 500 })
      .toBeGreaterThan(0);
    await expect
      .poll(async () => (await look()).value("holdfast_observations_total", { holdfast_outcome: "ok" }), {
        timeout: 60_000,
      })
      .toBeGreaterThan(3);

    const missing = named.filter((name) => !scrapes.some(({ names }) => names.has(name)));
    expect(missing).toEqual([]);
    const moved = new Set(
      [
        ...Map.groupBy(
          scrapes.flatMap(({ samples }) => samples),
          ({ name, labels }) => `${name} ${JSON.stringify(labels)}`,
        ),
      ]
        .filter(([, its]) => its.length < scrapes.length || new Set(its.map(({ value }) => value)).size > 1)
        .map(([series]) => series.split(" ")[0]),
    );
    const still = named.filter((name) => !moved.has(name));
    expect(still.filter((name) => !constant.has(name))).toEqual([]);
  }, 240_000);

  test("selects by labels that the server sets, and shows every metric but what should never happen", () => {
    const labels = new Map<string, readonly string[]>(
      Object.values(metric).map(({ name, labels: its }) => [
        name.replaceAll(".", "_"),
        its.map((one) => one.replaceAll(".", "_")),
      ]),
    );
    const base = (name: string): string =>
      name.replace(/_(total|bucket|sum|count)$/, (suffix) => (labels.has(name) ? suffix : ""));
    for (const [who, expr] of asked) {
      const known = new Set(metricsOf(expr).flatMap((name) => labels.get(base(name)) ?? []));
      const unknown = labelsOf(expr).filter((one) => !known.has(one) && !["le", "instance", "job"].includes(one));
      expect(unknown, who).toEqual([]);
    }
    const shown = new Set(named.map(base));
    expect([...labels.keys()].filter((name) => !shown.has(name))).toEqual(["holdfast_pool_destroyed"]);
  });
});

const promtool = spawnSync("promtool", ["--version"]).status === 0;

test.skipIf(!promtool)("promtool accepts the rules, and the dashboard's expressions as rules", () => {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-rules-"));
  try {
    execFileSync("promtool", ["check", "rules", rulesFile]);
    const rules = asked.map(([, expr], n) => ({
      record: `panel:${n}`,
      expr: expr.replaceAll("$__rate_interval", "5m").replaceAll("$workspace", ".*"),
    }));
    const file = join(folder, "panels.yaml");
    writeFileSync(file, JSON.stringify({ groups: [{ name: "panels", rules }] }));
    execFileSync("promtool", ["check", "rules", file]);
  } finally {
    rmSync(folder, { recursive: true });
  }
});
