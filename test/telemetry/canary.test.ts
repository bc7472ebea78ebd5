import { Writable } from "node:stream";
import pino from "pino";
import { afterAll, beforeAll, expect, test } from "vitest";
import { describeError } from "../../server/log-error.ts";
import { dollar } from "../injection/spend-call.ts";
import { type OtlpReceiver, startOtlpReceiver } from "../support/otlp-receiver.ts";
import { scrape } from "../support/scrape.ts";
import { secret, startVendorWorld, type VendorWorld } from "../vendor/world.ts";

/** What callers send, and nobody may find again where it does not belong. */
const canary = "canary7f3a9c";

let receiver: OtlpReceiver;
let world: VendorWorld;
const logged: string[] = [];

beforeAll(async () => {
  receiver = await startOtlpReceiver();
  const destination = new Writable({
    write(chunk: Buffer, _encoding, done) {
      logged.push(chunk.toString());
      done();
    },
  });
  world = await startVendorWorld({
    log: pino({ level: "trace", serializers: { err: describeError } }, destination),
    config: {
      otlpEndpoint: receiver.endpoint,
      metricIntervalMs: 1_000,
      metricsPort: { host: "127.0.0.1", port: 0, maxAgeMs: 0 },
      stripeProxy: { host: "127.0.0.1", port: 0, names: [] },
    },
  });
});
afterAll(async () => {
  await world.close();
  await receiver.close();
});

/** The audit and every other table, as text. */
async function everyRow(): Promise<string> {
  const { pool } = world.server.database;
  const { rows: tables } = await pool.query<{ name: string }>(
    "select relname as name from pg_class where relnamespace = 'holdfast'::regnamespace and relkind in ('r', 'p')",
  );
  const said: string[] = [];
  for (const { name } of tables) {
    const { rows } = await pool.query<{ row: string }>(`select t::text as row from holdfast.${name} t`);
    said.push(...rows.map(({ row }) => row));
  }
  return said.join("\n");
}

let asked = 0;

async function proxied(token: string, path: string, fields: Record<string, string>): Promise<void> {
  asked += 1;
  const response = await fetch(`${world.server.apps[0]?.stripeProxyUrl}${path}`, {
    method: "POST",
    headers: {
      authorization: `Bearer ${token}`,
      "idempotency-key": `key-${canary}-${asked}`,
      "holdfast-spend": `customer=c${asked}; period=2026-11; purpose=proxied`,
    },
    body: new URLSearchParams(fields),
  });
  await response.text();
}

test("no token, no vendor secret and nothing of a body is in a metric, a span, the log, the audit or another table, whatever goes wrong", async () => {
  const { server, token } = world;
  await world.store();
  const spends = server.spend(token);
  await spends.authorizeSpend(dollar("c1"));
  await spends.authorizeSpend({ ...dollar("c2"), endpoint: "POST /v1/refunds" });
  const wrong = `${token.slice(0, -canary.length)}${canary}`;
  for (const other of [wrong, `vk_default_billing_${canary}`, `op_default_test_${canary.repeat(4)}`, canary]) {
    await server
      .spend(other)
      .authorizeSpend(dollar("c3"))
      .catch(() => undefined);
    await proxied(other, "/v1/charges", { amount: "100" });
  }
  await proxied(token, "/v1/charges", { amount: "100", currency: "usd", source: "tok_visa", description: canary });
  await proxied(token, "/v1/charges", { amount: canary, currency: "usd", source: canary });
  await proxied(token, `/v1/${canary}`, { amount: "100" });
  world.simulator.fault({ mode: "html_502", times: 10 });
  await proxied(token, "/v1/charges", { amount: "200", currency: "usd", source: "tok_visa", description: canary });
  world.simulator.clearFaults();
  await server.database.pool.query("alter function holdfast.authorize_batch rename to authorize_batch_away");
  await spends.authorizeSpend(dollar(canary)).catch(() => undefined);
  await server.database.pool.query("alter function holdfast.authorize_batch_away rename to authorize_batch");

  const { text } = await scrape(server.apps[0]?.metricsUrl);
  await receiver.waitFor(({ name }) => name === "holdfast.upstream");
  const exported = (): string => receiver.bytes().toString("latin1");
  // Metrics are exported as well as scraped.
  await expect.poll(exported, { timeout: 30_000 }).toContain("holdfast.authorize.decisions");
  expect(logged.length).toBeGreaterThan(0);
  const stored = await everyRow();
  expect(stored).toContain("proxy.request");
  const secrets = [canary, token, token.split("_").at(-1) ?? "", server.operatorToken, secret];
  for (const one of secrets) {
    expect(text.includes(one), `a metric has ${one}`).toBe(false);
    expect(exported().includes(one), `an export has ${one}`).toBe(false);
    expect(logged.join("").includes(one), `the log has ${one}`).toBe(false);
    expect(stored.includes(one), `the database has ${one}`).toBe(false);
  }
}, 60_000);
