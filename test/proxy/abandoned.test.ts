import http from "node:http";
import { afterAll, beforeAll, describe, expect, test, vi } from "vitest";
import { charge, payment, type ProxyWorld, startProxyWorld } from "./world.ts";

let world: ProxyWorld;

beforeAll(async () => {
  world = await startProxyWorld({ servers: 2 });
});

afterAll(async () => {
  await world.close();
});

const derived = {
  billingPeriods: ["2026-11"],
  proxy: {
    identities: [{ endpoint: "POST /v1/charges", customer: "body.metadata[customer]", purpose: "fixed:subscription" }],
  },
};

describe("another card after a decline", () => {
  test("may be another one again where the first died before it was asked for", async () => {
    const token = await world.key("cards", derived);
    const fields = { ...charge, source: "tok_chargeDeclined", "metadata[customer]": "c-cards" };
    expect((await world.ask("POST", "/v1/charges", { token, fields })).status).toBe(402);
    // As if the process had been killed between the opening for another card and its grant.
    await world.server.database.pool.query(
      `update holdfast.proxied_requests set state = 'OPEN', claim_id = $1, reopened_sha256 = $2, generation = 2
       where vault_key_id = 'cards'`,
      ["0".repeat(32), Buffer.alloc(32)],
    );
    const third = { ...fields, source: "tok_visa" };
    expect((await world.ask("POST", "/v1/charges", { token, fields: third })).status).toBe(400);
    await world.server.clock.advance(61_000);
    expect(await world.ask("POST", "/v1/charges", { token, fields: third })).toMatchObject({ status: 200 });
  });
});

describe("another card for a declined payment that is kept", () => {
  /** A spend whose first card was declined and which was opened for a second one by a process that was killed. */
  async function reopened(vaultKey: string) {
    const token = await world.key(vaultKey, { proxy: { keepDeclined: true } });
    const pay = (card: string, by = token) =>
      world.ask("POST", "/v1/payment_intents", {
        token: by,
        fields: { ...payment, payment_method: card },
        headers: { "holdfast-spend": `customer=${vaultKey}; period=2026-11; purpose=kept` },
      });
    const first = await pay("pm_card_chargeDeclined");
    expect(first.status).toBe(402);
    const probe = await world.key(`${vaultKey}probe`);
    await pay("pm_card_mastercard", probe);
    await world.server.database.pool.query(
      `update holdfast.proxied_requests p set state = 'OPEN', claim_id = $1, generation = 2,
         open_time = holdfast.clock(), reopened_sha256 = o.body_sha256
       from holdfast.proxied_requests o where p.vault_key_id = $2 and o.vault_key_id = $3`,
      ["0".repeat(32), vaultKey, `${vaultKey}probe`],
    );
    return { first, pay };
  }

  test("is tried at once by a repeat with the same card", async () => {
    const { pay } = await reopened("again");
    expect(await pay("pm_card_mastercard")).toMatchObject({ status: 200, body: { status: "succeeded" } });
    expect(await pay("pm_card_visa")).toMatchObject({ status: 400, body: { error: { type: "idempotency_error" } } });
  });

  test("may be a third one after a minute, while the object waits for one", async () => {
    const { first, pay } = await reopened("third");
    for (const card of ["pm_card_visa", "pm_card_chargeDeclined"]) expect((await pay(card)).status).toBe(400);
    await world.server.clock.advance(61_000);
    expect((await pay("pm_card_chargeDeclined")).text).toBe(first.text);
    const before = world.charges();
    expect(await pay("pm_card_visa")).toMatchObject({ status: 200, body: { status: "succeeded" } });
    expect(world.charges() - before).toBe(1);
    expect(await pay("pm_card_mastercard")).toMatchObject({
      status: 400,
      body: { error: { type: "idempotency_error" } },
    });
  });

  test("stays the only one while its confirmation may be on its way", async () => {
    const { pay } = await reopened("sent");
    await world.server.database.pool.query(
      "update holdfast.authorizations set vendor_state = '', follow_until_time = null where vault_key_id = 'sent'",
    );
    await world.server.clock.advance(61_000);
    expect((await pay("pm_card_visa")).status).toBe(400);
  });
});

describe("a claim that was given up while its owner was slow", () => {
  test("charges once, and nobody gets the answer of the other request", async () => {
    const token = await world.key("slow", derived);
    const fields = { ...charge, "metadata[customer]": "c-slow" };
    const ask = (description: string, server: number) =>
      world.ask("POST", "/v1/charges", { token, fields: { ...fields, description }, server });
    const before = world.charges();
    const client = await world.server.database.pool.connect();
    let answers;
    try {
      // Every grant of the key waits for this.
      await client.query("begin");
      await client.query("select from holdfast.vault_keys where vault_key_id = 'slow' for update");
      const first = ask("first", 0);
      await claimed(1);
      await world.server.clock.advance(61_000);
      const { now } = Date;
      vi.spyOn(Date, "now").mockImplementation(() => now() + 61_000);
      const second = ask("second", 1);
      await claimed(2);
      await client.query("commit");
      answers = await Promise.all([first, second]);
    } finally {
      vi.restoreAllMocks();
      client.release();
    }
    expect(world.charges() - before).toBe(1);
    const [first, second] = answers;
    expect(first).toMatchObject({ status: 400, body: { error: { type: "idempotency_error" } } });
    expect(second).toMatchObject({ status: 200, body: { description: "second" } });
  }, 60_000);
});

describe("a step of an object whose answer is no longer kept", () => {
  test("is answered with the object, and not taken once more when the vendor has forgotten its key", async () => {
    const token = await world.key("lines", {
      allowedEndpoints: ["POST /v1/invoices", "POST /v1/invoices/:id/add_lines", "POST /v1/customers"],
    });
    const customer = await world.ask("POST", "/v1/customers", { token, fields: { name: "x" } });
    const invoice = await world.ask("POST", "/v1/invoices", {
      token,
      fields: { customer: customer.body.id as string, auto_advance: "false" },
      headers: { "holdfast-spend": "customer=c-lines; period=p; purpose=x; up_to=90.00 usd" },
    });
    expect(invoice.status).toBe(200);
    const add = () =>
      world.ask("POST", `/v1/invoices/${invoice.body.id}/add_lines`, {
        token,
        fields: { "lines[0][amount]": "1000" },
        headers: { "idempotency-key": "add-1" },
      });
    expect(await add()).toMatchObject({ status: 200, body: { total: 1000 } });
    await world.server.database.pool.query(
      `update holdfast.proxied_requests set key_id = null, nonce = null, ciphertext = null, answer_omitted = true
       where vault_key_id = 'lines' and ciphertext is not null`,
    );
    world.simulator.advance(25 * 3_600_000);
    await world.server.clock.advance(25 * 3_600_000);
    expect(await add()).toMatchObject({ status: 200, body: { id: invoice.body.id, total: 1000 } });
  });
});

describe("a write that needs no grant", () => {
  test("is not sent when the key was revoked while its body came", async () => {
    const token = await world.key("tardy");
    const sent = world.simulator.requests().length;
    const answer = await new Promise<number>((resolve, reject) => {
      const request = http.request(
        `${world.url}/v1/customers`,
        {
          method: "POST",
          headers: {
            authorization: `Bearer ${token}`,
            "content-type": "application/x-www-form-urlencoded",
            expect: "100-continue",
          },
        },
        (response) => resolve(response.resume().statusCode ?? 0),
      );
      request.on("error", reject);
      // The head was judged by now.
      request.on("continue", () => {
        void world.server.admin
          .revokeVaultKey({ name: "vaultKeys/tardy", reason: "gone" })
          .then(() => request.end("name=x"), reject);
      });
      request.flushHeaders();
    });
    expect(answer).toBe(401);
    expect(world.simulator.requests()).toHaveLength(sent);
  });
});

describe("a declined payment that is kept", () => {
  test("is confirmed with another card by the key that has made it", async () => {
    const token = await world.key("kept", { proxy: { keepDeclined: true } });
    const declined = await world.ask("POST", "/v1/payment_intents", {
      token,
      fields: { ...payment, payment_method: "pm_card_chargeDeclined" },
      headers: { "idempotency-key": "1" },
    });
    expect(declined.status).toBe(402);
    const id = (declined.body as { error: { payment_intent: { id: string } } }).error.payment_intent.id;
    const confirmed = await world.ask("POST", `/v1/payment_intents/${id}/confirm`, {
      token,
      fields: { payment_method: "pm_card_visa" },
      headers: { "idempotency-key": "2" },
    });
    expect(confirmed).toMatchObject({ status: 200, body: { id, status: "succeeded" } });
  });
});

/** Resolves when that many bodies have had the claim. */
async function claimed(nth: number): Promise<void> {
  for (;;) {
    const { rows } = await world.server.database.pool.query<{ claim_id: string }>(
      "select claim_id from holdfast.proxied_requests where vault_key_id = 'slow'",
    );
    const [row] = rows;
    if (row !== undefined) seen.add(row.claim_id);
    if (seen.size >= nth) return;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

const seen = new Set<string>();
