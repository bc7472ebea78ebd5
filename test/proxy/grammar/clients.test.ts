import type Stripe from "stripe";
import { expect, test } from "vitest";
import { stripeMajors } from "../../sdk/stripe-majors.ts";
import { formType, read, request, verdict } from "./requests.ts";

/** What one client of Stripe's sends, as its HTTP layer gets it. */
interface Sent {
  readonly method: string;
  readonly path: string;
  readonly headers: Readonly<Record<string, string | number>>;
  readonly body: string;
}

interface Answer {
  getStatusCode(): number;
  getHeaders(): Record<string, string>;
  getRawResponse(): unknown;
  toStream(): unknown;
  toJSON(): Promise<unknown>;
}

function recorder() {
  const sent: Sent[] = [];
  return {
    sent,
    getClientName: () => "recorder",
    // oxlint-disable-next-line max-params -- the interface is stripe-node's
    makeRequest(...[, , path, method, headers, body]: readonly unknown[]): Promise<Answer> {
      sent.push({ method, path, headers, body } as Sent);
      return Promise.resolve({
        getStatusCode: () => 200,
        getHeaders: () => ({}),
        getRawResponse: () => ({}),
        toStream: () => ({}),
        toJSON: () => Promise.resolve({ id: "x" }),
      });
    },
  };
}

/** Up to 20 it had a list that 23 has another name for. */
type Created = Parameters<Stripe["paymentIntents"]["create"]>[0] & { readonly payment_method_types: readonly string[] };

type Client = Pick<
  Stripe,
  "charges" | "paymentIntents" | "subscriptions" | "invoices" | "refunds" | "customers" | "rawRequest"
>;

async function callAll(client: Client): Promise<void> {
  const metadata = { "Order no": "5 & 6 = 11; 50%", "caf\u00e9": "\u00fc\n\u{1f600}" };
  await client.charges.create({ amount: 100, currency: "usd", source: "tok_1", capture: false, metadata });
  const created: Created = {
    amount: 100,
    currency: "usd",
    confirm: true,
    payment_method: "pm_1",
    payment_method_types: ["card", "link"],
    payment_method_options: { card: { request_three_d_secure: "any" } },
    transfer_data: { destination: "acct_1", amount: 5 },
    shipping: { name: "A", address: { line1: "1 & 2", country: "US" } },
    expand: ["customer", "latest_charge"],
  };
  await client.paymentIntents.create(created);
  await client.paymentIntents.capture("pi_1", { amount_to_capture: 5, final_capture: false });
  await client.subscriptions.create({
    customer: "cus_1",
    items: [
      { price: "price_1", quantity: 2 },
      { price_data: { currency: "usd", product: "prod_1", recurring: { interval: "month" }, unit_amount: 5 } },
    ],
  });
  await client.subscriptions.update("sub_1", { items: [], metadata: "", cancel_at_period_end: true });
  await client.subscriptions.cancel("sub_1", { prorate: true, cancellation_details: { comment: "too dear" } });
  await client.invoices.pay("in_1");
  await client.invoices.del("in_1");
  await client.refunds.create({ payment_intent: "pi_1", reason: "requested_by_customer" });
  await client.customers.retrieve("cus_1", { expand: ["default_source"] });
  await client.charges.list({ created: { gte: 5 }, limit: 3, expand: ["data.customer"] });
  await client.charges.search({ query: "amount>100 AND metadata['a']:'b'" });
  await client.rawRequest("POST", "/v2/billing/meter_events", {
    event_name: "calls",
    payload: { stripe_customer_id: "cus_1", value: "25" },
  });
}

test.each(stripeMajors)("what stripe-node %s sends is read", async (_, Client) => {
  client.sent.length = 0;
  await callAll(new Client("hf_token", { httpClient: client, telemetry: false }));
  expect(client.sent.length).toBe(13);
  for (const { method, path, headers, body } of client.sent) {
    const rawHeaders = Object.entries(headers).flatMap(([name, value]) => [name, String(value)]);
    const whole = { head: { method, target: path, rawHeaders }, body: Buffer.from(body) };
    expect(verdict(whole), `${method} ${path} ${body}`).toBe("accepted");
    const found = read(whole);
    expect(found.token).toBe("hf_token");
    if (path.startsWith("/v1/")) expect(found.body).toBe(body);
  }
});

const client = recorder() as ReturnType<typeof recorder> & NonNullable<Stripe.StripeConfig["httpClient"]>;

const charge = { amount: "100", currency: "usd" };

test.each([
  [
    "stripe-node 12",
    "amount=100&currency=usd&source=tok_visa&metadata[Order%20no]=5%20%26%206&expand[0]=customer",
    { ...charge, source: "tok_visa", "metadata[Order no]": "5 & 6", "expand[0]": "customer" },
  ],
  [
    "stripe-python 5",
    "amount=100&currency=usd&capture=False&metadata[order]=a+b&expand[0]=customer",
    { ...charge, capture: "false", "metadata[order]": "a b", "expand[0]": "customer" },
  ],
  [
    "stripe-python 15",
    "amount=100&currency=usd&capture=false&metadata[order]=caf%C3%A9",
    { ...charge, capture: "false", "metadata[order]": "caf\u00e9" },
  ],
  [
    "stripe-ruby",
    "amount=100&currency=usd&metadata[order%20no]=a%2Bb&expand[]=customer&expand[]=balance_transaction",
    { ...charge, "metadata[order no]": "a+b", "expand[]": "balance_transaction" },
  ],
  [
    "stripe-php",
    "amount=100&currency=usd&capture=true&metadata[a]=b+c&expand[0]=customer",
    { ...charge, capture: "true", "metadata[a]": "b c", "expand[0]": "customer" },
  ],
  [
    "stripe-java",
    "amount=100&currency=usd&metadata%5Bkey%5D=&expand%5B0%5D=customer",
    { ...charge, "metadata[key]": "", "expand[0]": "customer" },
  ],
  [
    "stripe-go",
    "amount=100&currency=usd&source[object]=card&source[number]=4242&source[exp_month]=1",
    { ...charge, "source[object]": "card", "source[number]": "4242", "source[exp_month]": "1" },
  ],
  [
    "curl -d",
    "amount=100&currency=usd&description=Caf\u00e9 no. 5, table #3",
    { ...charge, description: "Caf\u00e9 no. 5, table #3" },
  ],
  ["escapes in lower case", "%61mount=10%30&currency=usd&description=%c3%a9%2f", { ...charge, description: "\u00e9/" }],
  ["a card of old", "amount=100&currency=usd&card=tok_1", { ...charge, card: "tok_1" }],
  ["an application fee of old", "amount=100&currency=usd&application_fee=5", { ...charge, application_fee: "5" }],
])("a charge as %s sends it is read", (_, body, expected) => {
  const { fields, contentType } = read(request("POST", "/v1/charges", body));
  expect(Object.fromEntries(fields.map(({ key, value }) => [key, value]))).toEqual(expected);
  expect(contentType).toBe(formType);
});

test.each([
  ["/v1/subscriptions", "customer=cus_1&items[0][price]=price_1&items[0][quantity]=2&items[1][price]=price_2"],
  ["/v1/subscriptions", "customer=cus_1&items[0][price]=a&items[1][price]=b&items[0][quantity]=2"],
  ["/v1/subscriptions/sub_1", "metadata=&items=&trial_end=now&proration_behavior=none"],
  ["/v1/checkout/sessions", "line_items[0][price_data][product_data][metadata][2024]=x&line_items[0][quantity]=1"],
  ["/v1/payment_intents/pi_1", "application_fee_amount=&payment_method_types[]=card&transfer_data[amount]=5"],
  ["/v1/payment_intents/pi_1", "payment_method_types[0]=card&payment_method_types[1]=link"],
  ["/v1/invoices/in_1/lines/il_1", "amount=100&metadata[1]=a&metadata[0]=b"],
  ["/v1/billing/credit_grants", "amount[type]=monetary&amount[monetary][value]=5&amount[monetary][currency]=usd"],
  ["/v1/charges", "amount=100&currency=usd&destination[account]=acct_1&destination[amount]=0"],
  ["/v1/plans", "amount=0&currency=usd&interval=month&product[name]=Free"],
  ["/v1/invoiceitems", "customer=cus_1&unit_amount=5&quantity=3&currency=usd"],
])("to %s, %s is read", (target, body) => {
  const found = read(request("POST", target, body));
  expect(found.body).toBe(body);
});

test.each([
  ["GET", "/v1/charges?limit=3&created[gte]=1&expand[]=data.customer&expand[]=data.invoice"],
  ["GET", "/v1/charges?created%5Bgte%5D=1&ending_before=ch_1"],
  ["GET", "/v1/topups?amount[gte]=5"],
  ["GET", "/v2/core/events?object_id=a&include[0]=b"],
  ["DELETE", "/v1/subscriptions/sub_1?invoice_now=true&prorate=true"],
  ["DELETE", "/v1/invoiceitems/ii_1"],
])("%s %s is read", (method, target) => {
  expect(verdict(request(method, target))).toBe("accepted");
});
