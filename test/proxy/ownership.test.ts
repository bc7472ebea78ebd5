import { ObjectAccess } from "@holdfast/api/holdfast/v1/vault_key_pb";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { proxiedStripe } from "../../server/proxy/stripe-proxied.ts";
import type { ProxyRequest } from "../../server/proxy/vendor.ts";
import { charge, payment, type ProxyWorld, secret, startProxyWorld, writes } from "./world.ts";

let world: ProxyWorld;

beforeAll(async () => {
  world = await startProxyWorld();
});

afterAll(async () => {
  await world.close();
});

const keyed = (key: string) => ({ "idempotency-key": key });

/** A charge that no vault key has made. */
async function chargeOfOthers(): Promise<string> {
  const response = await fetch(`${world.simulator.url}/v1/charges`, {
    method: "POST",
    headers: { authorization: `Bearer ${secret}` },
    body: new URLSearchParams(charge),
  });
  return ((await response.json()) as { id: string }).id;
}

async function expectClosed(token: string, id: string): Promise<void> {
  const sent = world.simulator.requests().length;
  expect(await world.ask("GET", `/v1/charges/${id}`, { token })).toMatchObject({ code: "resource_missing" });
  const refund = await world.ask("POST", "/v1/refunds", { token, fields: { charge: id }, headers: keyed("refund") });
  expect(refund).toMatchObject({ status: 404, code: "resource_missing" });
  expect(world.simulator.requests()).toHaveLength(sent);
}

describe("a key does not come to an object of others", () => {
  test("by giving its id to an object of its own", async () => {
    const id = await chargeOfOthers();
    const token = await world.key("named", {
      allowedEndpoints: [...writes, "POST /v1/coupons", "GET /v1/coupons/:id", "POST /v1/products"],
    });
    for (const path of ["/v1/coupons", "/v1/products"]) {
      const made = await world.ask("POST", path, { token, fields: { id, name: "x" } });
      expect(made).toMatchObject({ status: 200, body: { id } });
    }
    await expectClosed(token, id);
    expect(await world.ask("GET", `/v1/coupons/${id}`, { token })).toMatchObject({ status: 200, body: { id } });
  });

  test("by binding it to a spend of its own", async () => {
    const id = await chargeOfOthers();
    const token = await world.key("bound");
    const spend = world.server.spend(token);
    const { authorization } = await spend.authorizeSpend({
      spend: { customerId: "c", billingPeriod: "p", purpose: "x", amount: { currency: "usd", amount: "1" } },
      vendor: "stripe",
      endpoint: "POST /v1/payment_intents",
      attemptId: "1".repeat(32),
      settlement: 1,
    });
    await spend.bindVendorReference({
      authorization: authorization?.name ?? "",
      attemptId: "1".repeat(32),
      vendorReference: id,
    });
    await expectClosed(token, id);
  });

  test("by naming it within a group of parameters", async () => {
    const token = await world.key("grouped", {
      allowedEndpoints: [...writes, "POST /v1/quotes", "POST /v1/credit_notes", "POST /v1/billing_portal/sessions"],
    });
    const sent = world.simulator.requests().length;
    for (const [path, fields] of [
      ["/v1/quotes", { "from_quote[quote]": "qt_other" }],
      ["/v1/credit_notes", { "refunds[0][refund]": "re_other" }],
      [
        "/v1/billing_portal/sessions",
        {
          customer: "cus_1",
          "flow_data[type]": "subscription_cancel",
          "flow_data[subscription_cancel][subscription]": "sub_o",
        },
      ],
    ] as const) {
      const headers = { "holdfast-spend": "customer=c; period=p; purpose=x; up_to=1.00 usd" };
      expect(await world.ask("POST", path, { token, fields, headers })).toMatchObject({ code: "resource_missing" });
    }
    expect(world.simulator.requests()).toHaveLength(sent);
  });
});

test("the mark of a spend cannot be made up for an invoice by the lines that are added to it", async () => {
  const token = await world.key("marked", {
    allowedEndpoints: [...writes, "POST /v1/invoices/:id/add_lines"],
    proxy: { objectAccess: ObjectAccess.ANY },
  });
  const sent = world.simulator.requests().length;
  for (const name of ["invoice_metadata[holdfast_authorization]", "lines[0][metadata][holdfast_authorization]"]) {
    const answer = await world.ask("POST", "/v1/invoices/in_1/add_lines", {
      token,
      fields: { [name]: "0123456789abcdef0123456789abcdef-1", "lines[0][amount]": "100" },
      headers: { "holdfast-spend": "customer=c; period=p; purpose=x; up_to=1.00 usd" },
    });
    expect(answer).toMatchObject({ status: 400, code: "reserved_parameter" });
  }
  expect(world.simulator.requests()).toHaveLength(sent);
});

test("the mark of a spend cannot be cleared, alone or with all other metadata", async () => {
  const token = await world.key("clearing", { allowedEndpoints: [...writes, "POST /v1/charges/:id"] });
  const made = async (path: string, fields: Readonly<Record<string, string>>): Promise<string> => {
    const answer = await world.ask("POST", path, { token, fields, headers: { "idempotency-key": path } });
    expect(answer.status).toBe(200);
    return `${path}/${answer.body.id as string}`;
  };
  for (const path of [await made("/v1/payment_intents", payment), await made("/v1/charges", charge)]) {
    const sent = world.simulator.requests().length;
    const clear = (fields: Readonly<Record<string, string>>) => world.ask("POST", path, { token, fields });
    expect(await clear({ metadata: "" })).toMatchObject({ status: 403, code: "unsupported_request" });
    const one = { "metadata[holdfast_authorization]": "" };
    expect(await clear(one)).toMatchObject({ status: 400, code: "reserved_parameter" });
    expect(world.simulator.requests()).toHaveLength(sent);
    const { status, body } = await clear({ "metadata[mine]": "" });
    expect([status, body.metadata]).toEqual([200, { holdfast_authorization: expect.any(String) as string }]);
  }
});

describe("ids in a JSON body", () => {
  const stripe = proxiedStripe({ resendSafeForMs: 1, carry: () => Promise.reject(new Error()), close: async () => {} });
  const request = (body: object): ProxyRequest => ({
    method: "POST",
    endpoint: "POST /v2/money_management/payout_intents",
    path: "/v2/money_management/payout_intents",
    ids: [],
    query: [],
    token: undefined,
    idempotencyKey: undefined,
    spend: undefined,
    apiVersion: undefined,
    account: "",
    contentType: "application/json",
    expectsContinue: false,
    takesBody: true,
    fields: [],
    body: JSON.stringify(body),
  });

  test("are those of objects that must be the key's own, at any depth, but for what is the client's own", () => {
    const body = {
      from: { legs: [{ payout: "po_1" }, { payout: "po_2" }], refund: "re_1" },
      charge: "ch_1",
      metadata: { invoice: "in_1" },
      deep: { metadata: { invoice: "in_2" } },
    };
    expect(stripe.objectsIn(request(body)).toSorted()).toEqual(["ch_1", "po_1", "po_2", "re_1"]);
  });

  test("are not taken for objects that the request has made", () => {
    const answer = JSON.stringify({ id: "pi_1", charge: "ch_1", refund: "re_2" });
    expect(stripe.objectsOf(request({ a: { charge: "ch_1" } }), answer)).toEqual(["pi_1", "re_2"]);
  });
});

test("the items of an own subscription are own", () => {
  const stripe = proxiedStripe({ resendSafeForMs: 1, carry: () => Promise.reject(new Error()), close: async () => {} });
  const request = { endpoint: "GET /v1/subscriptions/:id", fields: [], body: "" } as unknown as ProxyRequest;
  const items = { data: [{ id: "si_1" }, { id: "si_2" }] };
  expect(stripe.objectsOf(request, JSON.stringify({ id: "sub_1", object: "subscription", items }))).toEqual([
    "sub_1",
    "si_1",
    "si_2",
  ]);
  expect(stripe.objectsOf(request, JSON.stringify({ id: "x_1", object: "other", items }))).toEqual(["x_1"]);
});
