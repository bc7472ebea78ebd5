import { request as httpRequest } from "node:http";
import Stripe from "stripe";
import { afterEach, beforeEach, expect, test } from "vitest";
import { type StripeSimulator, startStripeSimulator } from "./stripe-simulator/index.ts";

let simulator: StripeSimulator;
beforeEach(async () => {
  simulator = await startStripeSimulator();
});
afterEach(() => simulator.close());

const day = 24 * 3_600_000;
const charge = "amount=4900&currency=usd&source=tok_visa&customer=cus_1";

interface Answer {
  readonly status: number;
  readonly headers: Headers;
  readonly body: { id?: string; error?: Record<string, string> };
}

/** A bare request, so that every header can be set and seen. */
async function post(path: string, body: string, key?: string, headers: Record<string, string> = {}): Promise<Answer> {
  const response = await fetch(simulator.url + path, {
    method: "POST",
    headers: {
      authorization: "Bearer sk_test_1",
      "content-type": "application/x-www-form-urlencoded",
      ...(key === undefined ? {} : { "idempotency-key": key }),
      ...headers,
    },
    body,
  });
  return { status: response.status, headers: response.headers, body: (await response.json()) as Answer["body"] };
}

test("a repeat under the same key gets the first answer, marked as a replay", async () => {
  const first = await post("/v1/charges", charge, "k");
  const again = await post("/v1/charges", "currency=usd&amount=4900&customer=cus_1&source=tok_visa", "k");
  expect(again.body).toEqual(first.body);
  expect(first.headers.get("idempotent-replayed")).toBeNull();
  expect(again.headers.get("idempotent-replayed")).toBe("true");
  expect(again.headers.get("idempotency-key")).toBe("k");
  expect(again.headers.get("original-request")).toBe(first.headers.get("request-id"));
  expect(again.headers.get("request-id")).not.toBe(first.headers.get("request-id"));
  expect(simulator.movements()).toHaveLength(1);
  expect(simulator.requests().map(({ executed, replayed }) => [executed, replayed])).toEqual([
    [true, false],
    [false, true],
  ]);
});

test("without a key every request is a charge", async () => {
  await post("/v1/charges", charge);
  await post("/v1/charges", charge);
  expect(simulator.movements()).toHaveLength(2);
});

test("a decline, an executed 400 and a 500 are saved like any other answer", async () => {
  const declined = await post("/v1/charges", "amount=1&currency=usd&source=tok_chargeDeclined", "k1");
  const intent = await post("/v1/payment_intents", "amount=1&currency=usd");
  const cancel = `/v1/payment_intents/${intent.body.id}/cancel`;
  await post(cancel, "");
  const refused = await post(cancel, "", "k2");
  simulator.fault({ mode: "error_500_after" });
  const failed = await post("/v1/charges", charge, "k3");
  expect([declined.status, refused.status, failed.status]).toEqual([402, 400, 500]);
  const repeats = [
    await post("/v1/charges", "amount=1&currency=usd&source=tok_chargeDeclined", "k1"),
    await post(cancel, "", "k2"),
    await post("/v1/charges", charge, "k3"),
  ];
  for (const [index, first] of [declined, refused, failed].entries()) {
    expect(repeats[index]?.body).toEqual(first.body);
    expect(repeats[index]?.status).toBe(first.status);
    expect(repeats[index]?.headers.get("idempotent-replayed")).toBe("true");
    expect(repeats[index]?.headers.get("stripe-should-retry")).toBe(first.headers.get("stripe-should-retry"));
  }
  expect(simulator.movements()).toHaveLength(1);
});

test("a refused validation leaves the key free", async () => {
  const bad = await post("/v1/charges", "amount=4.9&currency=usd&source=tok_visa", "k");
  expect(bad).toMatchObject({ status: 400, body: { error: { code: "parameter_invalid_integer", param: "amount" } } });
  expect(await post("/v1/charges", "currency=usd&source=tok_visa", "k")).toMatchObject({
    body: { error: { code: "parameter_missing" } },
  });
  expect(await post("/v1/payment_intents/pi_none/confirm", "", "k")).toMatchObject({ status: 404 });
  expect(await post("/v1/charges", charge, "k")).toMatchObject({ status: 200 });
});

test("the same key with other parameters or at another endpoint is refused", async () => {
  await post("/v1/charges", charge, "k");
  const other = await post("/v1/charges", `${charge}&metadata[a]=1`, "k");
  expect(other).toMatchObject({ status: 400, body: { error: { type: "idempotency_error" } } });
  expect(other.body.error?.["message"]).toBe(
    "Keys for idempotent requests can only be used with the same parameters they were first used with. " +
      "Try using a key other than 'k' if you meant to execute a different request.",
  );
  const elsewhere = await post("/v1/payment_intents", "amount=4900&currency=usd", "k");
  expect(elsewhere).toMatchObject({ status: 400, body: { error: { type: "idempotency_error" } } });
  expect(elsewhere.body.error?.["message"]).toContain(
    "can only be used for the same endpoint they were first used for ('/v1/payment_intents' vs '/v1/charges')",
  );
  const stripe = new Stripe("sk_test_1", {
    host: simulator.host,
    port: simulator.port,
    protocol: "http",
    telemetry: false,
  });
  await expect(
    stripe.charges.create({ amount: 1, currency: "usd", source: "tok_visa" }, { idempotencyKey: "k" }),
  ).rejects.toBeInstanceOf(Stripe.errors.StripeIdempotencyError);
  expect(simulator.movements()).toHaveLength(1);
});

test("of two concurrent requests with one key, one executes and the other is told 409", async () => {
  const held = simulator.fault({ mode: "hold" });
  const first = post("/v1/charges", charge, "k");
  await held.arrivals();
  const second = await post("/v1/charges", charge, "k");
  expect(second).toMatchObject({
    status: 409,
    body: { error: { type: "invalid_request_error", code: "idempotency_key_in_use" } },
  });
  expect(second.headers.get("stripe-should-retry")).toBe("true");
  expect(simulator.movements()).toEqual([]);
  held.release();
  const { status, body } = await first;
  expect(status).toBe(200);
  expect((await post("/v1/charges", charge, "k")).body.id).toBe(body.id);
  expect(simulator.movements()).toHaveLength(1);
});

test("executions that take time keep their key in use without any fault", async () => {
  const slow = await startStripeSimulator({ executionMs: 3_000 });
  try {
    const headers = {
      authorization: "Bearer sk_test_1",
      "content-type": "application/x-www-form-urlencoded",
      "idempotency-key": "k",
    };
    const send = () => fetch(`${slow.url}/v1/charges`, { method: "POST", headers, body: charge });
    const statuses = (await Promise.all([send(), send(), send()])).map(({ status }) => status);
    expect(statuses.toSorted((a, b) => a - b)).toEqual([200, 409, 409]);
    expect(slow.movements()).toHaveLength(1);
  } finally {
    await slow.close();
  }
});

test("two executions on one intent: the second is told lock_timeout, and that is saved", async () => {
  const { body } = await post("/v1/payment_intents", "amount=4900&currency=usd&payment_method=pm_card_visa");
  const held = simulator.fault({ mode: "hold", match: { path: /\/confirm$/ } });
  const confirm = post(`/v1/payment_intents/${body.id}/confirm`, "", "k-confirm-1");
  await held.arrivals();
  const cancel = await post(`/v1/payment_intents/${body.id}/cancel`, "", "k-cancel");
  expect(cancel).toMatchObject({ status: 429, body: { error: { code: "lock_timeout" } } });
  expect(cancel.headers.get("stripe-rate-limited-reason")).toBeNull();
  held.release();
  expect((await confirm).status).toBe(200);
  const again = await post(`/v1/payment_intents/${body.id}/cancel`, "", "k-cancel");
  expect(again.status).toBe(429);
  expect(again.headers.get("idempotent-replayed")).toBe("true");
});

test("a key is remembered for 24 hours; afterwards it is a new charge", async () => {
  const first = await post("/v1/charges", charge, "k");
  simulator.advance(day - 60_000);
  expect((await post("/v1/charges", charge, "k")).body.id).toBe(first.body.id);
  simulator.advance(60_000);
  const late = await post("/v1/charges", charge, "k");
  expect(late.status).toBe(200);
  expect(late.headers.get("idempotent-replayed")).toBeNull();
  expect(late.body.id).not.toBe(first.body.id);
  expect(simulator.movements().map(({ idempotency_key }) => idempotency_key)).toEqual(["k", "k"]);
});

test("keys belong to one account", async () => {
  await post("/v1/charges", charge, "k");
  await post("/v1/charges", charge, "k", { "stripe-account": "acct_connected" });
  expect(simulator.movements().map(({ account }) => account)).toEqual(["acct_simulator", "acct_connected"]);
});

test("a wrong credential is refused before anything is saved", async () => {
  const refused = await post("/v1/charges", charge, "k", { authorization: "Bearer nonsense" });
  expect(refused.status).toBe(401);
  const basic = `Basic ${Buffer.from("sk_test_1:").toString("base64")}`;
  expect((await post("/v1/charges", charge, "k", { authorization: basic })).status).toBe(200);
  expect((await post("/v1/charges", charge, "x".repeat(256))).status).toBe(400);
});

test("a body is decoded strictly, and what Stripe does not know is tolerated", async () => {
  for (const bad of ["a=%zz", "amount=4900", "a[b=1", "metadata=x&metadata[a]=1", "a[b][c][d][e][f][g][h][i]=1"]) {
    const refused = await post("/v1/charges", `${charge}&${bad}`, "k");
    expect(refused.status, bad).toBe(400);
    expect(refused.body.error?.["code"], bad).toBeUndefined();
  }
  expect((await post("/v1/charges", charge, "k", { "content-type": "application/json" })).status).toBe(400);
  const body = `${charge}&metadata[a]=x+y%26&metadata[__proto__]=z&expand[]=customer&shape[deep][0]=1`;
  const answer = await post("/v1/charges", body, "k");
  expect(answer.status).toBe(200);
  expect(simulator.movements()[0]?.metadata["a"]).toBe("x y&");
  expect(await post("/v1/nothing", "")).toMatchObject({ status: 404 });
});

test("a chunked body is read like any other", async () => {
  const status = await new Promise<number | undefined>((resolve, reject) => {
    const sent = httpRequest(`${simulator.url}/v1/charges`, {
      method: "POST",
      headers: { authorization: "Bearer sk_test_1", "content-type": "application/x-www-form-urlencoded" },
    });
    sent.on("error", reject).on("response", (response) => {
      response.resume();
      resolve(response.statusCode);
    });
    sent.write(charge.slice(0, 10));
    sent.end(charge.slice(10));
  });
  expect(status).toBe(200);
  expect(simulator.movements()).toHaveLength(1);
});
