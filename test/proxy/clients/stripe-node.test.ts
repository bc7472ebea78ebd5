import { randomBytes } from "node:crypto";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import pg from "pg";
import type Stripe from "stripe";
import { pino } from "pino";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { ProxyListener } from "../../../server/proxy/listener.ts";
import { startProxy } from "../../../server/proxy/start-proxy.ts";
import { createStripeProxy } from "../../../server/proxy/stripe-proxy.ts";
import { createAuthenticator } from "../../../server/rpc/auth.ts";
import { createCredentialCipher } from "../../../server/store/credential-cipher.ts";
import { vaultKeySecrets } from "../../../server/store/vault-key.ts";
import { type ProxyWorld, startProxyWorld } from "../world.ts";
import { majors, realClient } from "./stripe-node.ts";

let world: ProxyWorld;
// Newer majors write down an id for their telemetry, in the user's folder.
const home = mkdtempSync(join(tmpdir(), "holdfast-stripe-home-"));

beforeAll(async () => {
  process.env["XDG_CONFIG_HOME"] = home;
  world = await startProxyWorld({ cap: "100000" });
});

afterAll(async () => {
  await world.close();
  delete process.env["XDG_CONFIG_HOME"];
  rmSync(home, { recursive: true, force: true });
  console.log(`real clients: ran stripe-node ${majors.map(([major]) => major).join(", ")}`);
});

const CHARGE = { amount: 4900, currency: "usd", source: "tok_visa" } as const;
const PAYMENT = { amount: 4900, currency: "usd", payment_method: "pm_card_visa" } as const;

/** What the client threw. */
async function thrown(work: Promise<unknown>): Promise<Stripe.errors.StripeError> {
  return work.then(
    () => Promise.reject(new Error("The client got an answer.")),
    (error: unknown) => error as Stripe.errors.StripeError,
  );
}

async function eventsOf(key: string): Promise<number> {
  return (await world.events()).filter(({ actor_id: id }) => id === key).length;
}

describe.each(majors)("stripe-node %s", (major, Client) => {
  const id = (what: string): string => `${what}${major}`;
  const open = async (what: string, policy = {}, retries = 2) =>
    realClient(Client, { url: world.url, token: await world.key(id(what), policy), retries });

  test("charges once, and a repeat gets the same charge, marked as one", async () => {
    const { stripe, attempts } = await open("charge");
    const before = world.charges();
    const options = { idempotencyKey: "order-1" };
    const first = await stripe.charges.create(CHARGE, options);
    const again = await stripe.charges.create(CHARGE, options);
    expect(first).toMatchObject({ object: "charge", paid: true, amount: 4900 });
    expect(again.id).toBe(first.id);
    expect(first.lastResponse.headers["idempotent-replayed"]).toBeUndefined();
    expect(again.lastResponse.headers["idempotent-replayed"]).toBe("true");
    expect(again.lastResponse.requestId).not.toBe(first.lastResponse.requestId);
    expect([world.charges() - before, attempts()]).toEqual([1, 2]);
  });

  test("pays with a PaymentIntent, at once and in steps, reads it and refunds it", async () => {
    const { stripe } = await open("intent");
    const before = world.charges();
    const paid = await stripe.paymentIntents.create({ ...PAYMENT, confirm: true });
    expect(paid.status).toBe("succeeded");
    const { id: intent } = await stripe.paymentIntents.create({ ...PAYMENT, capture_method: "manual" });
    expect((await stripe.paymentIntents.confirm(intent)).status).toBe("requires_capture");
    expect((await stripe.paymentIntents.capture(intent)).status).toBe("succeeded");
    expect((await stripe.paymentIntents.retrieve(intent)).amount_received).toBe(4900);
    const refund = await stripe.refunds.create({ payment_intent: intent, amount: 900 });
    expect(refund).toMatchObject({ object: "refund", amount: 900, payment_intent: intent });
    expect(world.charges() - before).toBe(1);
    expect(world.simulator.movements().filter(({ payment_intent: of }) => of === intent)).toMatchObject([
      { kind: "capture", amount: 4900 },
      { kind: "refund", amount: 900 },
    ]);
  });

  test("throws a StripeCardError at a decline, after one attempt", async () => {
    const { stripe, attempts } = await open("decline");
    const declined = { ...PAYMENT, payment_method: "pm_card_chargeDeclined", confirm: true };
    const error = await thrown(stripe.paymentIntents.create(declined));
    expect(error).toMatchObject({
      type: "StripeCardError",
      statusCode: 402,
      code: "card_declined",
      decline_code: "generic_decline",
    });
    expect(error).toBeInstanceOf(Client.errors.StripeCardError);
    expect(attempts()).toBe(1);
  });

  test("throws a StripePermissionError at a full cap, after exactly one attempt", async () => {
    const { stripe, attempts } = await open("capped");
    await world.server.cap(id("small"), "50", { scope: { vaultKey: `vaultKeys/${id("capped")}` } });
    await stripe.charges.create(CHARGE);
    const sent = world.simulator.requests().length;
    const error = await thrown(stripe.charges.create(CHARGE));
    expect(error).toMatchObject({ type: "StripePermissionError", statusCode: 403, code: "spend_cap_exceeded" });
    expect(error.message).toContain("50");
    expect(error.requestId).toMatch(/^hf_[0-9a-f]{32}$/);
    expect([attempts(), await eventsOf(id("capped"))]).toEqual([2, 2]);
    expect(world.simulator.requests()).toHaveLength(sent);
  });

  test("throws a StripeAuthenticationError with a key that was revoked, after one attempt", async () => {
    const { stripe, attempts } = await open("revoked");
    await world.server.admin.revokeVaultKey({ name: `vaultKeys/${id("revoked")}`, reason: "gone" });
    const error = await thrown(stripe.charges.create(CHARGE));
    expect(error).toMatchObject({ type: "StripeAuthenticationError", statusCode: 401, code: "vault_key_revoked" });
    expect(attempts()).toBe(1);
  });

  test("throws a StripeInvalidRequestError at a malformed parameter, after one attempt", async () => {
    const { stripe, attempts } = await open("malformed");
    const sent = world.simulator.requests().length;
    const error = await thrown(stripe.charges.create({ ...CHARGE, amount: 49.5 }));
    expect(error).toMatchObject({
      type: "StripeInvalidRequestError",
      statusCode: 400,
      code: "malformed_parameter",
      param: "amount",
    });
    expect(attempts()).toBe(1);
    expect(world.simulator.requests()).toHaveLength(sent);
  });

  test("throws a StripeIdempotencyError at a key that was used for another amount", async () => {
    const { stripe, attempts } = await open("drift");
    await stripe.charges.create(CHARGE, { idempotencyKey: "one" });
    const error = await thrown(stripe.charges.create({ ...CHARGE, amount: 5000 }, { idempotencyKey: "one" }));
    expect(error).toMatchObject({ type: "StripeIdempotencyError", statusCode: 400 });
    expect(attempts()).toBe(2);
  });

  test("is not disturbed by what it tells about itself", async () => {
    const { stripe, headers } = await open("telemetry");
    await stripe.charges.create(CHARGE);
    await stripe.charges.create(CHARGE);
    const names = headers.map(([name]) => name.toLowerCase());
    expect(names).toEqual(expect.arrayContaining(["x-stripe-client-user-agent", "x-stripe-client-telemetry"]));
    expect(names).toContain("stripe-version");
  });
});

describe("while a twin of it is under way", () => {
  let impatient: ProxyListener;
  let pool: pg.Pool;

  // The same proxy on the same database, but with little patience: whoever meets a twin is told so at once.
  beforeAll(async () => {
    pool = new pg.Pool({ ...world.server.database.connection, max: 4 });
    const log = pino({ level: "silent" });
    const handler = createStripeProxy({
      database: pool,
      cipher: createCredentialCipher({ current: Buffer.alloc(32, 7), previous: undefined }, randomBytes),
      authenticate: createAuthenticator({
        lookupToken: async (_, workspace, keyId) => ({
          role: "vault_key",
          secrets: await vaultKeySecrets(pool, workspace, keyId),
        }),
        log,
      }),
      transport: world.server.apps[0]?.inProcess as NonNullable<(typeof world.server.apps)[0]>["inProcess"],
      origin: world.simulator.url,
      random: () => randomBytes(16).toString("hex"),
      onError: () => {},
      limits: { timeoutMs: 1_000 },
    });
    impatient = await startProxy({ settings: { host: "127.0.0.1", port: 0, names: [] }, handler, tls: undefined, log });
  });

  afterAll(async () => {
    await impatient.close(10_000);
    await pool.end();
  });

  test.each(majors)("stripe-node %s is told 409, waits, and gets the twin's charge", async (major, Client) => {
    const token = await world.key(`twin${major}`);
    const options = { idempotencyKey: "order-1" };
    const before = world.charges();
    const held = world.simulator.fault({ mode: "hold", match: { method: "POST", path: "/v1/charges" } });
    const first = realClient(Client, { url: world.url, token }).stripe.charges.create(CHARGE, options);
    await held.arrivals();
    const twin = realClient(Client, { url: impatient.url, token, retries: 100 });
    const second = twin.stripe.charges.create(CHARGE, options);
    await twin.answered(409);
    held.release();
    expect((await second).id).toBe((await first).id);
    expect(twin.statuses.at(-1)).toBe(200);
    expect(twin.attempts()).toBeGreaterThan(1);
    expect(world.charges() - before).toBe(1);
  });
});

describe("while Holdfast's database is away", () => {
  /** Ends every session of the servers and lets none in until `work` is over. */
  async function withoutDatabase(work: () => Promise<void>): Promise<void> {
    const { connection } = world.server.database;
    const client = new pg.Client({ ...connection, database: "postgres" });
    await client.connect();
    const name = client.escapeIdentifier(connection.database);
    try {
      await client.query(`alter database ${name} with allow_connections false`);
      await client.query("select pg_terminate_backend(pid) from pg_stat_activity where datname = $1", [
        connection.database,
      ]);
      await work();
    } finally {
      await client.query(`alter database ${name} with allow_connections true`);
      await client.end();
    }
  }

  test("clients try again, then throw a StripeAPIError; nothing was sent, and later the same call charges once", async () => {
    const clients = await Promise.all(
      majors.map(async ([major, Client]) =>
        realClient(Client, { url: world.url, token: await world.key(`away${major}`) }),
      ),
    );
    // A pool without a listener ends the process when its sessions are ended.
    world.server.database.pool.on("error", () => {});
    const sent = world.simulator.requests().length;
    const before = world.charges();
    const charge = ({ stripe }: (typeof clients)[number]) => stripe.charges.create(CHARGE, { idempotencyKey: "1" });
    await withoutDatabase(async () => {
      for (const error of await Promise.all(clients.map((client) => thrown(charge(client))))) {
        expect(error).toMatchObject({ type: "StripeAPIError", statusCode: 503, code: "holdfast_unavailable" });
      }
    });
    expect(clients.map((client) => client.attempts())).toEqual([3, 3, 3]);
    expect(world.simulator.requests()).toHaveLength(sent);
    await expect
      .poll(() => Promise.all(clients.map(async (client) => (await charge(client)).paid)))
      .toEqual([true, true, true]);
    expect(world.charges() - before).toBe(3);
  });
});
