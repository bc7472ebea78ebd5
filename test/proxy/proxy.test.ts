import { once } from "node:events";
import { connect } from "node:net";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { charge, payment, type ProxyWorld, secret, startProxyWorld } from "./world.ts";

let world: ProxyWorld;

beforeAll(async () => {
  world = await startProxyWorld({ servers: 2 });
});

afterAll(async () => {
  await world.close();
});

describe("an idempotency key of the client's own", () => {
  test("is one spend: a repeat gets the first answer, from any replica", async () => {
    const token = await world.key("own");
    const before = world.charges();
    const headers = { "idempotency-key": "order-1" };
    const first = await world.ask("POST", "/v1/charges", { token, fields: charge, headers });
    expect(first.body).toMatchObject({ object: "charge", paid: true, amount: 4900 });
    const again = await world.ask("POST", "/v1/charges", { token, fields: charge, headers, server: 1 });
    expect(again.text).toBe(first.text);
    expect(again.headers.get("idempotent-replayed")).toBe("true");
    expect(again.headers.get("original-request")).toBe(first.headers.get("request-id"));
    expect(world.charges() - before).toBe(1);
  });

  test("with another amount is refused, and nothing is sent", async () => {
    const token = await world.key("drift");
    const headers = { "idempotency-key": "order-1" };
    await world.ask("POST", "/v1/charges", { token, fields: charge, headers });
    const sent = world.simulator.requests().length;
    const other = await world.ask("POST", "/v1/charges", { token, fields: { ...charge, amount: "5000" }, headers });
    expect(other).toMatchObject({ status: 400, body: { error: { type: "idempotency_error" } } });
    expect(world.simulator.requests()).toHaveLength(sent);
  });

  test("of another vault key is another spend", async () => {
    const [a, b] = [await world.key("tenanta"), await world.key("tenantb")];
    const headers = { "idempotency-key": "the-same" };
    const one = await world.ask("POST", "/v1/charges", { token: a, fields: charge, headers });
    const two = await world.ask("POST", "/v1/charges", { token: b, fields: charge, headers });
    expect(two.status).toBe(200);
    expect(two.body.id).not.toBe(one.body.id);
  });

  test("is needed where money moves", async () => {
    const token = await world.key("keyless");
    const sent = world.simulator.requests().length;
    const answer = await world.ask("POST", "/v1/charges", { token, fields: charge });
    expect(answer).toMatchObject({ status: 400, code: "idempotency_key_required" });
    expect(world.simulator.requests()).toHaveLength(sent);
  });
});

describe("a derived identity", () => {
  const policy = {
    billingPeriods: ["2026-11"],
    proxy: {
      identities: [{ endpoint: "POST /v1/payment_intents", customer: "body.customer", purpose: "fixed:subscription" }],
    },
  };

  test("heals a client that makes a key per attempt: one charge, however often and from wherever it is asked", async () => {
    const token = await world.key("healed", policy);
    const before = world.charges();
    const fields = { ...payment, customer: "cus_derived1" };
    const answers = await Promise.all(
      [0, 1, 0, 1, 0, 1].map((server) =>
        world.ask("POST", "/v1/payment_intents", {
          token,
          fields,
          headers: { "idempotency-key": crypto.randomUUID() },
          server,
        }),
      ),
    );
    expect(new Set(answers.map(({ status }) => status))).toEqual(new Set([200]));
    expect(new Set(answers.map(({ body }) => (body as { id: string }).id)).size).toBe(1);
    expect(world.charges() - before).toBe(1);
  });
});

describe("a cap", () => {
  test("stops what does not fit, in Stripe's shape, and is not retried", async () => {
    const token = await world.key("capped", {});
    await world.server.cap("small", "50", { scope: { vaultKey: "vaultKeys/capped" } });
    const first = await world.ask("POST", "/v1/charges", {
      token,
      fields: charge,
      headers: { "idempotency-key": "1" },
    });
    expect(first.status).toBe(200);
    const second = await world.ask("POST", "/v1/charges", {
      token,
      fields: charge,
      headers: { "idempotency-key": "2" },
    });
    expect(second).toMatchObject({
      status: 403,
      body: { error: { type: "invalid_request_error", code: "spend_cap_exceeded" } },
    });
    expect(second.headers.get("stripe-should-retry")).toBe("false");
    expect(second.headers.get("request-id")).toMatch(/^hf_[0-9a-f]{32}$/);
  });
});

describe("a key that is dead", () => {
  test("sends nothing, on any replica, and says so", async () => {
    const token = await world.key("dead");
    const fields = charge;
    const ok = await world.ask("POST", "/v1/charges", { token, fields, headers: { "idempotency-key": "1" } });
    expect(ok.status).toBe(200);
    await world.server.admin.revokeVaultKey({ name: "vaultKeys/dead", reason: "gone" });
    const sent = world.simulator.requests().length;
    for (const server of [0, 1]) {
      for (const key of ["1", "2"]) {
        const headers = { "idempotency-key": key };
        const answer = await world.ask("POST", "/v1/charges", { token, fields, headers, server });
        expect(answer).toMatchObject({ status: 401, code: "vault_key_revoked" });
      }
      expect(await world.ask("POST", "/v1/customers", { token, fields: { name: "x" }, server })).toMatchObject({
        status: 401,
      });
    }
    expect(world.simulator.requests()).toHaveLength(sent);
  });
});

describe("objects of others", () => {
  test("cannot be read, charged, refunded or listed by a key that has not made them", async () => {
    const [owner, other] = [await world.key("owner"), await world.key("other")];
    const made = await world.ask("POST", "/v1/charges", {
      token: owner,
      fields: charge,
      headers: { "idempotency-key": "1" },
    });
    const id = made.body.id as string;
    const path = `/v1/charges/${id}`;
    expect((await world.ask("GET", path, { token: owner })).body).toMatchObject({ id });
    const sent = world.simulator.requests().length;
    expect(await world.ask("GET", path, { token: other })).toMatchObject({ status: 404, code: "resource_missing" });
    const headers = { "idempotency-key": "2" };
    const refund = await world.ask("POST", "/v1/refunds", { token: other, fields: { charge: id }, headers });
    expect(refund).toMatchObject({ status: 404, code: "resource_missing" });
    expect(await world.ask("GET", "/v1/charges", { token: other })).toMatchObject({
      status: 403,
      code: "lists_not_allowed",
    });
    expect(world.simulator.requests()).toHaveLength(sent);
  });
});

describe("a decline", () => {
  const policy = {
    billingPeriods: ["2026-11"],
    proxy: {
      identities: [{ endpoint: "POST /v1/payment_intents", customer: "body.customer", purpose: "fixed:plan" }],
    },
  };

  test("is answered again without another try, until another card or the time has come", async () => {
    const token = await world.key("declined", policy);
    const fields = { ...payment, payment_method: "pm_card_chargeDeclined", customer: "cus_declined1" };
    const ask = (changes = {}) =>
      world.ask("POST", "/v1/payment_intents", {
        token,
        fields: { ...fields, ...changes },
        headers: { "idempotency-key": crypto.randomUUID() },
      });
    const first = await ask();
    expect(first.status).toBe(402);
    const sent = world.simulator.requests().length;
    const again = await ask();
    expect(again).toMatchObject({ status: 402, text: first.text });
    expect(world.simulator.requests()).toHaveLength(sent);
    const paid = await ask({ payment_method: "pm_card_visa" });
    expect(paid).toMatchObject({ status: 200, body: { status: "succeeded" } });
    expect(await ask({ payment_method: "pm_card_visa" })).toMatchObject({ status: 200, body: { id: paid.body.id } });
  });
});

describe("the audit", () => {
  test("has one event for every request, allowed or refused, and no secret is in it", async () => {
    const token = await world.key("audited");
    await world.ask("POST", "/v1/charges", { token, fields: charge, headers: { "idempotency-key": "1" } });
    await world.ask("POST", "/v1/charges", { token, fields: charge, headers: { "idempotency-key": "1" } });
    await world.ask("POST", "/v1/topups", { token, fields: charge, headers: { "idempotency-key": "2" } });
    await world.ask("POST", "/v1//charges", { token, fields: charge });
    await world.ask("POST", "/v1/customers", { token, fields: { name: "x" } });
    const events = (await world.events()).filter(({ actor_id: id }) => id === "audited");
    expect(events.map(({ disposition, reason }) => [disposition, reason])).toEqual([
      ["FORWARDED", ""],
      ["REPLAYED", ""],
      ["REFUSED", "endpoint_not_allowed"],
      ["REFUSED", "invalid_target"],
      ["PASSED", ""],
    ]);
    expect(JSON.stringify(events)).not.toContain(secret);
    expect(JSON.stringify(events)).not.toContain(token);
  });

  test("an unknown token is refused before anything is read of the request", async () => {
    const sent = world.simulator.requests().length;
    for (const token of [
      undefined,
      "vk_default_nobody_x",
      `vk_default_nobody_${"x".repeat(43)}`,
      world.server.operatorToken,
    ]) {
      const answer = await world.ask("POST", "/v1/charges", {
        ...(token === undefined ? {} : { token }),
        fields: charge,
        headers: { "idempotency-key": "1" },
      });
      expect(answer.status).toBe(401);
    }
    expect(world.simulator.requests()).toHaveLength(sent);
  });
});

describe("a request whose framing could be read in two ways", () => {
  test("is refused before it is judged, and is in the audit of the key that it came with", async () => {
    const token = await world.key("framed");
    const { port } = new URL(world.url);
    const socket = connect(Number(port), "127.0.0.1");
    socket.write(
      `POST /v1/charges HTTP/1.1\r\nHost: a\r\nHost: b\r\nAuthorization: Bearer ${token}\r\nContent-Length: 0\r\n\r\n`,
    );
    const [answer] = (await once(socket, "data")) as [Buffer];
    socket.destroy();
    expect(answer.toString("latin1")).toMatch(/^HTTP\/1\.1 400 /);
    const [event] = (await world.events()).filter(({ actor_id: id }) => id === "framed");
    expect(event).toMatchObject({ disposition: "REFUSED", detail: { status: 400 } });
  });
});
