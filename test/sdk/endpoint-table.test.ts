import { createClient } from "@connectrpc/connect";
import { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { Settlement } from "@holdfast/api/holdfast/v1/spend_pb";
import { createHoldfast, stableKey } from "@holdfast/sdk";
import { describe, expect, it } from "vitest";
import { STRIPE_ENDPOINTS } from "../../sdk/stripe-endpoint-table.ts";
import { createFakeControlPlane, type FakeControlPlane } from "../support/fake-control-plane.ts";
import { createStubVendor, type StubRequest } from "./stub-vendor.ts";

const SPEND = { customerId: "cust_123", billingPeriod: "2026-11", purpose: "row" };
const KEY = stableKey(SPEND.customerId, SPEND.billingPeriod, SPEND.purpose);
const UP_TO = { amount: "60.00", currency: "usd" };

// What a request of an endpoint needs so that the guard has something to judge.
const MONEY = { amount: 5000, currency: "usd" };
const PARAMS: Readonly<Record<string, object>> = {
  "POST /v1/billing/credit_grants": { amount: { type: "monetary", monetary: { value: 5000, currency: "usd" } } },
  "POST /v1/payment_links": { restrictions: { completed_sessions: { limit: 1 } } },
  "POST /v1/refunds": { charge: "obj_1" },
  "POST /v1/payment_intents": { ...MONEY, confirm: true },
  "POST /v1/payment_intents/:id": { amount: 5500 },
  "POST /v1/payment_intents/:id/increment_authorization": { amount: 5500 },
  "POST /v1/credit_notes": { invoice: "obj_1" },
  "POST /v1/customers/:id": { source: "tok_visa" },
  "POST /v1/subscriptions": { customer: "cus_1", items: [{ price: "price_1" }] },
  "POST /v1/subscriptions/:id": { items: [{ price: "price_1" }] },
  "POST /v1/terminal/readers/:id/collect_payment_method": { payment_intent: "obj_2" },
  "POST /v1/terminal/readers/:id/confirm_payment_intent": { payment_intent: "obj_2" },
  "POST /v1/terminal/readers/:id/process_payment_intent": { payment_intent: "obj_2" },
  "POST /v1/terminal/readers/:id/refund_payment": { payment_intent: "obj_2" },
  "POST /v1/treasury/credit_reversals": { received_credit: "obj_1" },
  "POST /v1/treasury/debit_reversals": { received_debit: "obj_1" },
  "DELETE /v1/subscriptions/:id": { invoice_now: true },
  "DELETE /v1/customers/:id/subscriptions/:id": { invoice_now: true },
};

// How far the object is, where the write needs that.
const UNCONFIRMED = { payment_intents: { status: "requires_confirmation", amount_received: 0 } };
const BEFORE: Readonly<Record<string, Readonly<Record<string, object>>>> = {
  "POST /v1/payment_intents/:id/confirm": UNCONFIRMED,
  "POST /v1/terminal/readers/:id/collect_payment_method": UNCONFIRMED,
  "POST /v1/terminal/readers/:id/confirm_payment_intent": UNCONFIRMED,
  "POST /v1/terminal/readers/:id/process_payment_intent": UNCONFIRMED,
  "POST /v1/charges/:id/capture": { charges: { status: "succeeded", captured: false, payment_intent: null } },
};

/** How the request names its spend: in the call with `upTo` or without, not at all, or by an object that belongs to one. */
type Naming = "named" | "unpriced" | "unnamed" | "bound";

interface Seen {
  readonly refusal: string | undefined;
  readonly rpcs: readonly string[];
  readonly vendor: readonly StubRequest[];
}

/** Sends one request through the guard and tells what came of it. */
async function send(endpoint: string, naming: Naming): Promise<Seen> {
  const [method = "", path = ""] = endpoint.split(" ");
  const vendor = createStubVendor(BEFORE[endpoint]);
  const plane = createFakeControlPlane();
  const holdfast = createHoldfast({
    baseUrl: "http://127.0.0.1:1",
    vaultKey: "vk_main_k_s",
    transport: plane.transport,
  });
  const stripe = holdfast.stripe(vendor.stripe);
  let ids = 0;
  const target = path.replaceAll(":id", () => `obj_${(ids += 1)}`);
  if (naming === "bound") await bindObject(plane, endpoint.includes("/readers/") ? "obj_2" : "obj_1");
  plane.calls.length = 0;
  const params = path.startsWith("/v2/") ? { amount: { value: 5000, currency: "usd" } } : (PARAMS[endpoint] ?? MONEY);
  const query = new URLSearchParams(params as Record<string, string>);
  const call = () =>
    method === "DELETE"
      ? stripe.rawRequest(method, PARAMS[endpoint] === undefined ? target : `${target}?${query.toString()}`)
      : stripe.rawRequest(method, target, params as Record<string, unknown>);
  let refusal: string | undefined;
  try {
    if (naming === "named") await holdfast.withSpend({ ...SPEND, upTo: UP_TO }, call);
    else await (naming === "unpriced" ? holdfast.withSpend(SPEND, call) : call());
  } catch (error) {
    refusal = (error as { code?: string }).code ?? String(error);
  }
  await holdfast.close();
  return { refusal, rpcs: plane.names(), vendor: vendor.requests };
}

/** Makes the object that of an open spend, as a call before would have. */
async function bindObject(plane: FakeControlPlane, vendorReference: string): Promise<void> {
  const client = createClient(SpendControlService, plane.transport);
  const attemptId = "0".repeat(32);
  const { customerId, billingPeriod, purpose } = SPEND;
  const { authorization } = await client.authorizeSpend({
    spend: { customerId, billingPeriod, purpose, amount: { currency: "usd", amount: "50.00" } },
    vendor: "stripe",
    endpoint: "POST /v1/payment_intents",
    attemptId,
    settlement: Settlement.TWO_STEP,
  });
  const bound = { authorization: authorization?.name ?? "", attemptId, vendorReference, vendorState: "open" };
  await client.bindVendorReference(bound);
}

/** One line: what an observer between the guard, the control plane and the vendor sees. */
function describeSeen({ refusal, rpcs, vendor }: Seen): string {
  if (refusal !== undefined) return `refused: \`${refusal}\``;
  if (rpcs.length === 0) return "passes";
  const sent = vendor
    .filter(({ method }) => method !== "GET")
    .map(({ method, path, key }) => {
      const short = (path.split("?")[0] ?? "").replaceAll(/obj_\d+|new_\d+/g, ":id");
      return `${method} ${short} (${keyOf(key)})`;
    });
  const told = rpcs.filter((rpc) => rpc !== "get");
  return [told.join(", "), sent.join(", ")].filter((part) => part !== "").join("; ");
}

function keyOf(key: string | undefined): string {
  if (key === undefined) return "no key";
  if (key === KEY) return "stable key";
  const suffix = key.slice(KEY.length).replaceAll(/obj_\d+|new_\d+/g, ":id");
  return key.startsWith(KEY) ? `stable key, \`${suffix}\`` : "own key";
}

const ROWS = Object.entries(STRIPE_ENDPOINTS).flatMap(([effect, list]) =>
  list
    .split(",")
    .map((endpoint) => endpoint.trim())
    .filter((endpoint) => endpoint !== "")
    .map((endpoint) => ({ effect, endpoint })),
);

const TITLES: Readonly<Record<string, string>> = {
  charge: "Charges",
  payout: "Payouts",
  refund: "Refunds: drawn on caps of direction REFUND",
  credit: "Credits",
  commit: "Commitments: Stripe may charge for them later",
  mint: "Ways to pay, and credentials",
  config: "Settings that can redirect or trigger money",
};

/** Endpoints about an object that may belong to a spend already. */
const ABOUT_AN_OBJECT = /^(POST|DELETE) \/v1\/(payment_intents|charges|invoices|checkout\/sessions|payment_links)\/:id/;

function isAboutAnObject(endpoint: string): boolean {
  return ABOUT_AN_OBJECT.test(endpoint) || /readers\/:id\/(collect|confirm|process)_payment/.test(endpoint);
}

describe("every Stripe write of the table", () => {
  it("is handled as the documented table says", async () => {
    const sections: string[] = [];
    const passing: string[] = [];
    for (const effect of [...Object.keys(TITLES), "none"]) {
      const lines: string[] = [];
      for (const { endpoint } of ROWS.filter((row) => row.effect === effect)) {
        const unnamed = await send(endpoint, "unnamed");
        if (describeSeen(unnamed) === "passes") {
          passing.push(`\`${endpoint}\``);
          continue;
        }
        const named = await send(endpoint, "named");
        const bound = isAboutAnObject(endpoint) ? describeSeen(await send(endpoint, "bound")) : "";
        const upTo = named.refusal === undefined ? await needOfUpTo(endpoint) : "";
        lines.push(`| \`${endpoint}\` | ${upTo} | ${describeSeen(named)} | ${describeSeen(unnamed)} | ${bound} |`);
        // Nothing that moves money reaches the vendor without a grant.
        if (effect === "none") continue;
        expect(writes(unnamed), endpoint).toEqual([]);
        if (writes(named).length > 0) expect(named.rpcs, endpoint).toContain("authorize");
        if (effect === "charge" || effect === "payout" || effect === "refund")
          expect(named.refusal, endpoint).toBeUndefined();
      }
      if (lines.length > 0) {
        const title = TITLES[effect] ?? "Writes that end an object";
        const head = "| Endpoint | `upTo` | With a spend | Without one | On an object of an open spend |";
        sections.push(`## ${title}\n\n${head}\n| --- | --- | --- | --- | --- |\n${lines.toSorted().join("\n")}`);
      }
    }
    const page = [
      "# What the guard does with every Stripe write",
      "Written by `test/sdk/endpoint-table.test.ts` from what it saw between the guard, the control plane and the vendor: " +
        "one request is sent for each endpoint, with a spend (and `upTo`), without one, and on an object that belongs " +
        'to an open spend. `upTo` is "needed" where only the caller can say what the call may cost at most; elsewhere ' +
        "the guard takes the amount from the request, from the object or from Stripe's preview, and refuses the call if " +
        'that is more than a stated `upTo`. "own key" is the key of the application or of Stripe\'s client. A stable key with a suffix ' +
        "belongs to a later step of an object. What happens when an answer is lost, a card is declined or a process is " +
        "killed on the way is shown by the other tests of `test/sdk` and by `test/crash`.",
      ...sections,
      `## Writes that pass\n\nThey move no money.\n\n${passing.toSorted().join(", ")}`,
    ].join("\n\n");
    await expect(`${page}\n`).toMatchFileSnapshot("../../sdk/STRIPE-ENDPOINTS.md");
  }, 120_000);
});

/** Whether the call with a spend is refused unless it states `upTo`. */
async function needOfUpTo(endpoint: string): Promise<string> {
  const { refusal } = await send(endpoint, "unpriced");
  return refusal === undefined ? "" : "needed";
}

function writes({ vendor }: Seen): readonly StubRequest[] {
  return vendor.filter(({ method, path }) => method !== "GET" && !path.includes("create_preview"));
}
