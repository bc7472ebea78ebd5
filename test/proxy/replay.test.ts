import { createHash } from "node:crypto";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { startApp } from "../../server/app.ts";
import { charge, payment, proxyConfig, type ProxyWorld, startProxyWorld } from "./world.ts";

let world: ProxyWorld;

beforeAll(async () => {
  world = await startProxyWorld();
});

afterAll(async () => {
  await world.close();
});

const hourMs = 3_600_000;
const derived = {
  billingPeriods: ["2026-11"],
  proxy: {
    identities: [{ endpoint: "POST /v1/charges", customer: "body.metadata[customer]", purpose: "fixed:subscription" }],
  },
};

const keyed = (key: string) => ({ "idempotency-key": key });

describe("a repeat", () => {
  test("after 25 hours and a restart is answered with what was answered first, and the vendor is not asked", async () => {
    const token = await world.key("later");
    const first = await world.ask("POST", "/v1/charges", { token, fields: charge, headers: keyed("1") });
    world.simulator.advance(25 * hourMs);
    await world.server.clock.advance(25 * hourMs);
    const restarted = await startApp(proxyConfig(world.simulator.url), {
      connection: world.server.database.connection,
      fsyncOff: "allowed",
    });
    try {
      const sent = world.simulator.requests().length;
      const response = await fetch(`${restarted.stripeProxyUrl}/v1/charges`, {
        method: "POST",
        headers: { authorization: `Bearer ${token}`, ...keyed("1") },
        body: new URLSearchParams(charge),
      });
      expect(await response.text()).toBe(first.text);
      expect(response.headers.get("idempotent-replayed")).toBe("true");
      expect(world.simulator.requests()).toHaveLength(sent);
    } finally {
      await restarted.close();
    }
  });

  test("whose answer is no longer kept is answered with the object, and charges nothing", async () => {
    const token = await world.key("emptied");
    const first = await world.ask("POST", "/v1/charges", { token, fields: charge, headers: keyed("1") });
    await world.server.database.pool.query(
      `update holdfast.proxied_requests set key_id = null, nonce = null, ciphertext = null, answer_omitted = true
       where vault_key_id = 'emptied'`,
    );
    const before = world.charges();
    const again = await world.ask("POST", "/v1/charges", { token, fields: charge, headers: keyed("1") });
    expect(again).toMatchObject({ status: 200, body: { id: first.body.id } });
    expect(world.charges()).toBe(before);
  });

  test("of what was refused by a cap may be another request: nothing was sent for it", async () => {
    const token = await world.key("denied", derived);
    await world.server.cap("tiny", "10", { scope: { vaultKey: "vaultKeys/denied" } });
    const fields = { ...charge, "metadata[customer]": "c-denied" };
    const denied = await world.ask("POST", "/v1/charges", { token, fields });
    expect(denied).toMatchObject({ status: 403, code: "spend_cap_exceeded" });
    const smaller = await world.ask("POST", "/v1/charges", { token, fields: { ...fields, amount: "900" } });
    expect(smaller).toMatchObject({ status: 200, body: { amount: 900 } });
    const drifted = await world.ask("POST", "/v1/charges", { token, fields: { ...fields, amount: "901" } });
    expect(drifted).toMatchObject({ status: 400, body: { error: { type: "idempotency_error" } } });
  });

  test("of a request that died before it asked may be another one after a minute", async () => {
    const token = await world.key("abandoned", derived);
    const identity = ["spend", "POST /v1/charges", "/v1/charges", "c-abandoned", "2026-11", "subscription"];
    const requestKey = createHash("sha256").update(JSON.stringify(identity)).digest();
    // As if the process had been killed between its claim and its grant.
    await world.server.database.pool.query(
      "select holdfast.claim_proxied_request('default', 'abandoned', $1, 'POST /v1/charges', $2, $2, null, null, null, $3)",
      [requestKey, Buffer.alloc(32), "0".repeat(32)],
    );
    const fields = { ...charge, "metadata[customer]": "c-abandoned" };
    expect((await world.ask("POST", "/v1/charges", { token, fields })).status).toBe(400);
    await world.server.clock.advance(61_000);
    expect(await world.ask("POST", "/v1/charges", { token, fields })).toMatchObject({ status: 200 });
  });

  test("of a request that the vendor called malformed may be corrected", async () => {
    const token = await world.key("corrected", derived);
    const fields = { ...charge, "metadata[customer]": "c-corrected" };
    world.simulator.fault({ mode: "bad_request_400", match: { path: "/v1/charges", method: "POST" } });
    const wrong = await world.ask("POST", "/v1/charges", { token, fields: { ...fields, description: "wrong" } });
    expect(wrong).toMatchObject({ status: 400, body: { error: { type: "invalid_request_error" } } });
    world.simulator.clearFaults();
    const before = world.charges();
    const right = await world.ask("POST", "/v1/charges", { token, fields });
    expect(right).toMatchObject({ status: 200, body: { paid: true } });
    expect(world.charges() - before).toBe(1);
  });
});

describe("a decline under a derived identity", () => {
  test("is tried again when the policy's time has come, and not before", async () => {
    const token = await world.key("waiting", {
      ...derived,
      proxy: { ...derived.proxy, retryDeclinedAfter: { seconds: 3600n } },
    });
    const fields = { ...charge, source: "tok_chargeDeclined", "metadata[customer]": "c-waiting" };
    const attempts = () => world.simulator.requests().filter(({ path }) => path === "/v1/charges").length;
    const first = await world.ask("POST", "/v1/charges", { token, fields });
    expect(first.status).toBe(402);
    const before = attempts();
    await world.server.clock.advance(0.9 * hourMs);
    expect((await world.ask("POST", "/v1/charges", { token, fields })).text).toBe(first.text);
    expect(attempts()).toBe(before);
    await world.server.clock.advance(0.2 * hourMs);
    const answers = await Promise.all([1, 2, 3].map(() => world.ask("POST", "/v1/charges", { token, fields })));
    expect(answers.map(({ status }) => status)).toEqual([402, 402, 402]);
    expect(attempts() - before).toBe(1);
  });
});

describe("a payment in steps", () => {
  test("is one spend, whatever key each step comes with", async () => {
    const token = await world.key("steps");
    const { confirm: _, ...created } = payment;
    const intent = await world.ask("POST", "/v1/payment_intents", {
      token,
      fields: { ...created, capture_method: "manual" },
      headers: keyed("1"),
    });
    const path = `/v1/payment_intents/${intent.body.id}`;
    const confirmed = await world.ask("POST", `${path}/confirm`, { token, fields: {}, headers: keyed("2") });
    expect(confirmed.body).toMatchObject({ status: "requires_capture" });
    const captured = await world.ask("POST", `${path}/capture`, { token, fields: {} });
    expect(captured.body).toMatchObject({ status: "succeeded" });
    const moved = world.simulator.movements().filter(({ payment_intent: of }) => of === intent.body.id);
    expect(moved.map(({ amount }) => amount)).toEqual([4900]);
    const listed = await world.server.admin.listAuthorizations({ vaultKey: "vaultKeys/steps" });
    expect(listed.authorizations).toHaveLength(1);
    const refund = await world.ask("POST", "/v1/refunds", {
      token,
      fields: { payment_intent: intent.body.id as string },
      headers: keyed("3"),
    });
    expect(refund.body).toMatchObject({ object: "refund", amount: 4900 });
  });

  test("cannot be raised above the cap after the grant", async () => {
    const token = await world.key("raised");
    await world.server.cap("fifty", "50", { scope: { vaultKey: "vaultKeys/raised" } });
    const { confirm: _, ...created } = payment;
    const intent = await world.ask("POST", "/v1/payment_intents", { token, fields: created, headers: keyed("1") });
    const path = `/v1/payment_intents/${intent.body.id}`;
    const raised = await world.ask("POST", path, { token, fields: { amount: "9900" }, headers: keyed("2") });
    expect(raised).toMatchObject({ status: 403, code: "spend_cap_exceeded" });
    expect((await world.ask("GET", path, { token })).body).toMatchObject({ amount: 4900 });
  });
});

describe("without any identity", () => {
  test("only where the policy names the endpoint, and the answer says so", async () => {
    const token = await world.key("agent", { proxy: { keylessEndpoints: ["POST /v1/charges"] } });
    const before = world.charges();
    for (let n = 0; n < 2; n += 1) {
      const answer = await world.ask("POST", "/v1/charges", { token, fields: charge });
      expect(answer.status).toBe(200);
      expect(answer.headers.get("holdfast-idempotency")).toBe("none");
    }
    expect(world.charges() - before).toBe(2);
  });
});
