import { AuthorizationState, VoidEvidence } from "@holdfast/api/holdfast/v1/spend_pb";
import {
  SpendAlreadyFailedError,
  SpendInDoubtError,
  SpendMismatchError,
  SpendUnsupportedError,
  SpendInProgressError,
} from "@holdfast/sdk";
import Stripe from "stripe";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import type { StripeHttpClient } from "../../sdk/stripe-http.ts";
import { FAMILIES } from "../../sdk/stripe-object.ts";
import { CHARGE, PAYMENT, rejection, SPEND, startWorld, type World } from "./setup.ts";

let world: World;
beforeEach(async () => {
  world = await startWorld();
});
afterEach(() => world.close());

const DAY_MS = 86_400_000;
const MANUAL = { ...PAYMENT, capture_method: "manual" } as const;

/** Both clocks: the control plane's and the vendor's. */
async function laterBy(ms: number): Promise<void> {
  await world.time.advance(ms);
  world.simulator.advance(ms);
}

function charged(): number {
  return world.simulator
    .movements()
    .filter(({ kind }) => kind === "charge" || kind === "capture")
    .reduce((sum, { amount }) => sum + amount, 0);
}

/** What was decided must be what happened, whoever came first. */
function expectTruth(): void {
  for (const { state, committedAmount } of world.plane.authorizations()) {
    expect(state).not.toBe(AuthorizationState.IN_DOUBT);
    if (charged() > 0) expect(state).toBe(AuthorizationState.COMMITTED);
    if (charged() > 0) expect(Number(committedAmount?.amount) * 100).toBe(charged());
    else expect(state).not.toBe(AuthorizationState.COMMITTED);
  }
}

async function openInvoice(amount = 4900): Promise<string> {
  const { id: customer } = await world.plain.customers.create({
    invoice_settings: { default_payment_method: "pm_card_visa" },
  });
  const invoice = await world.plain.invoices.create({ customer, auto_advance: false });
  await world.plain.invoiceItems.create({ customer, invoice: invoice.id, amount, currency: "usd" });
  await world.plain.invoices.finalizeInvoice(invoice.id, { auto_advance: false });
  return invoice.id;
}

const settled = (promises: readonly Promise<unknown>[]) => Promise.allSettled(promises);

describe("two processes on one object", () => {
  it.each([1, 2, 3])("confirm and cancel (%i)", async () => {
    const intent = await world.stripe().paymentIntents.create({ ...PAYMENT, confirm: false }, { spend: SPEND });
    await settled([
      world.stripe().paymentIntents.confirm(intent.id),
      world.stripe().paymentIntents.cancel(intent.id),
      world.stripe().paymentIntents.confirm(intent.id),
    ]);
    expectTruth();
    expect(charged()).toBeLessThanOrEqual(4900);
  });

  it.each([1, 2, 3])("capture, capture and cancel (%i)", async () => {
    const intent = await world.stripe().paymentIntents.create({ ...MANUAL }, { spend: SPEND });
    await settled([
      world.stripe().paymentIntents.capture(intent.id, { amount_to_capture: 3000 }),
      world.stripe().paymentIntents.cancel(intent.id),
      world.stripe().paymentIntents.capture(intent.id),
    ]);
    expectTruth();
  });

  it("increment and capture", async () => {
    const intent = await world.stripe().paymentIntents.create({ ...MANUAL }, { spend: SPEND });
    await settled([
      world.stripe().paymentIntents.incrementAuthorization(intent.id, { amount: 6000 }),
      world.stripe().paymentIntents.capture(intent.id),
      world.stripe().paymentIntents.incrementAuthorization(intent.id, { amount: 7000 }),
    ]);
    await world.stripe().paymentIntents.capture(intent.id);
    expectTruth();
  });

  it.each([1, 2, 3])("pay, void and pay (%i)", async () => {
    const id = await openInvoice();
    const pay = () => world.stripe().invoices.pay(id, {}, { spend: SPEND });
    await settled([pay(), world.stripe().invoices.voidInvoice(id), pay()]);
    await pay().catch(() => undefined);
    for (const { state } of world.plane.authorizations()) {
      expect(state).toBe(charged() > 0 ? AuthorizationState.COMMITTED : AuthorizationState.VOIDED);
    }
  });

  it.each([1, 2, 3])("two spends that pay one invoice (%i)", async () => {
    const id = await openInvoice();
    const pay = (purpose: string) => world.stripe().invoices.pay(id, {}, { spend: { ...SPEND, purpose } });
    const answers = await Promise.allSettled([pay("one"), pay("other")]);
    for (const answer of answers) {
      if (answer.status === "rejected") expect(answer.reason).toBeInstanceOf(SpendInProgressError);
    }
    await settled([pay("one"), pay("other")]);
    expect(answers.some(({ status }) => status === "fulfilled")).toBe(true);
    const states = world.plane.authorizations().map(({ state }) => state);
    // What was not paid by the one spend was not sent by the other: nothing is in doubt.
    expect(states.filter((state) => state === AuthorizationState.COMMITTED)).toHaveLength(1);
    expect(states).not.toContain(AuthorizationState.IN_DOUBT);
    expect(states).not.toContain(AuthorizationState.HELD);
  });

  it("the customer and the server", async () => {
    const intent = await world.stripe().paymentIntents.create({ ...PAYMENT, confirm: false }, { spend: SPEND });
    const { simulator } = world;
    const confirm = world.stripe().paymentIntents.confirm(intent.id);
    try {
      simulator.confirmFromBrowser(intent.id);
    } catch {
      // The server was first.
    }
    await settled([confirm]);
    await world.stripe().paymentIntents.create({ ...PAYMENT }, { spend: SPEND });
    expectTruth();
    expect(charged()).toBe(4900);
  });
});

describe("a process that ends after any request, and the same code later", () => {
  const writes = [/payment_intents$/, /confirm$/, /cancel$/];
  const waits = [1_000, 15 * 60_000, 25 * 3_600_000, 8 * DAY_MS];
  it.each(writes.flatMap((path) => waits.map((ms) => [path, ms] as const)))(
    "charges once when the answers to %s are lost, and %i ms pass",
    async (path, ms) => {
      world.simulator.fault({ mode: "drop_after_execute", match: { path }, times: 50 });
      const pay = () => world.stripe().paymentIntents.create({ ...PAYMENT }, { spend: SPEND });
      await pay().catch(() => undefined);
      world.simulator.clearFaults();
      await laterBy(ms);
      await pay().catch(() => undefined);
      await laterBy(ms);
      expect((await pay()).status).toBe("succeeded");
      expect(charged()).toBe(4900);
      expect(world.plane.authorizations().filter(({ state }) => state === AuthorizationState.COMMITTED)).toHaveLength(
        1,
      );
    },
  );

  it.each(waits)("captures a legacy charge once when its answer is lost and %i ms pass", async (ms) => {
    const charge = await world.stripe().charges.create({ ...CHARGE, capture: false }, { spend: SPEND });
    world.simulator.fault({ mode: "drop_after_execute", match: { path: /capture$/ }, times: 50 });
    await world
      .stripe()
      .charges.capture(charge.id)
      .catch(() => undefined);
    world.simulator.clearFaults();
    await laterBy(ms);
    await world
      .stripe()
      .charges.capture(charge.id)
      .catch(() => undefined);
    expect(charged()).toBe(4900);
    expect(world.plane.authorization().state).toBe(AuthorizationState.COMMITTED);
  });

  it.each([1_000, 15 * 60_000, 25 * 3_600_000])("refunds once when the answer is lost and %i ms pass", async (ms) => {
    const charge = await world.plain.charges.create({ ...CHARGE });
    world.simulator.fault({ mode: "drop_after_execute", match: { path: /refunds$/ }, times: 50 });
    const refund = () => world.stripe().refunds.create({ charge: charge.id, amount: 1000 }, { spend: SPEND });
    await refund().catch(() => undefined);
    world.simulator.clearFaults();
    await laterBy(ms);
    await refund().catch(() => undefined);
    await refund().catch(() => undefined);
    const refunds = world.simulator.movements().filter(({ kind }) => kind === "refund");
    expect(refunds.map(({ amount }) => amount)).toEqual([1000]);
  });
});

describe("an invoice whose spend an operator has voided", () => {
  it("is paid under the next generation, and not under the voided one", async () => {
    const id = await openInvoice();
    world.simulator.fault({ mode: "declined_402", match: { path: /pay$/ }, times: 1 });
    const pay = (spend: object = {}) => world.stripe().invoices.pay(id, {}, { spend: { ...SPEND, ...spend } });
    await rejection(pay());
    Object.assign(world.plane.authorization(), {
      state: AuthorizationState.VOIDED,
      voidEvidence: VoidEvidence.OPERATOR,
      vendorState: "",
    });
    expect(await rejection(pay())).toBeInstanceOf(SpendAlreadyFailedError);
    expect(await rejection(pay({ purpose: "other", retryAfterGeneration: 1 }))).toBeInstanceOf(SpendAlreadyFailedError);
    expect((await pay({ retryAfterGeneration: 1 })).status).toBe("paid");
    expect(world.plane.authorization()).toMatchObject({ generation: 2, state: AuthorizationState.COMMITTED });
    expect(charged()).toBe(4900);
  });
});

describe("a reader whose card was declined", () => {
  it("asks for a card again, and charges once", async () => {
    const intent = await world
      .stripe()
      .paymentIntents.create(
        { ...PAYMENT, confirm: false, payment_method: "pm_card_chargeDeclined" },
        { spend: SPEND },
      );
    const reader = world.simulator.place({ object: "terminal.reader" });
    const present = () =>
      world.stripe().terminal.readers.processPaymentIntent(reader.id, { payment_intent: intent.id });
    expect((await present()).action).toMatchObject({ status: "failed" });
    await world.stripe().paymentIntents.update(intent.id, { payment_method: "pm_card_visa" });
    world.simulator.fault({ mode: "drop_after_execute", match: { path: /process_payment_intent$/, nth: 2 }, times: 1 });
    expect((await present()).action).toMatchObject({ status: "succeeded" });
    await present().catch(() => undefined);
    expect(charged()).toBe(4900);
    expectTruth();
  });
});

describe("a step whose object cannot be read", () => {
  it("does not confirm an amount that was not looked at", async () => {
    const intent = await world.stripe().paymentIntents.create({ ...PAYMENT, confirm: false }, { spend: SPEND });
    await world.plain.paymentIntents.update(intent.id, { amount: 9900 });
    world.plane.capMajor = 60;
    world.simulator.fault({ mode: "html_502", match: { method: "GET", path: /payment_intents/ }, times: 3 });
    expect(await rejection(world.stripe().paymentIntents.confirm(intent.id))).toBeInstanceOf(SpendInDoubtError);
    expect(charged()).toBe(0);
  });

  it("leaves a new object bound, so that the next call can settle it", async () => {
    const { id: customer } = await world.plain.customers.create({
      invoice_settings: { default_payment_method: "pm_card_visa" },
    });
    const items = [
      {
        price_data: {
          currency: "usd",
          product: "prod_1",
          recurring: { interval: "month" as const },
          unit_amount: 4900,
        },
      },
    ];
    const create = () => world.stripe().subscriptions.create({ customer, items }, { spend: SPEND });
    world.simulator.fault({ mode: "html_502", match: { method: "GET", path: /subscriptions\// }, times: 3 });
    const subscription = await create();
    expect(world.plane.authorization().state).not.toBe(AuthorizationState.COMMITTED);
    await laterBy(2 * DAY_MS);
    expect((await create()).id).toBe(subscription.id);
    expect(world.plane.authorization()).toMatchObject({
      state: AuthorizationState.COMMITTED,
      committedAmount: { amount: "49.00" },
    });
    expect(charged()).toBe(4900);
  });
});

describe("a subscription that has been renewed", () => {
  it("is not judged by what its renewal came to", () => {
    const judge = (latest: object) =>
      FAMILIES.subscription.judge({
        status: "active",
        currency: "usd",
        latest_invoice: { currency: "usd", ...latest },
      });
    expect(judge({ status: "void", billing_reason: "subscription_cycle" }).kind).toBe("unclear");
    expect(judge({ status: "paid", amount_paid: 9900, billing_reason: "subscription_cycle" }).kind).toBe("unclear");
    expect(judge({ status: "paid", amount_paid: 4900, billing_reason: "subscription_create" }).kind).toBe("charged");
  });
});

describe("a currency that does not fit", () => {
  it("of a refund is refused before it is asked for", async () => {
    const charge = await world.plain.charges.create({ ...CHARGE });
    const refund = world
      .stripe()
      .refunds.create({ charge: charge.id, amount: 1000, currency: "jpy" }, { spend: SPEND });
    expect(await rejection(refund)).toBeInstanceOf(SpendUnsupportedError);
    expect(world.plane.authorizations()).toEqual([]);
  });

  it("of a link closes it", async () => {
    const create = world.stripe().paymentLinks.create(
      {
        line_items: [{ price_data: { currency: "eur", product: "prod_1", unit_amount: 4900 }, quantity: 1 }],
        restrictions: { completed_sessions: { limit: 1 } },
      },
      { spend: { ...SPEND, upTo: { amount: "49.00", currency: "usd" } } },
    );
    expect(await rejection(create)).toBeInstanceOf(SpendMismatchError);
    const request = world.simulator.requests().find(({ path }) => /payment_links\/plink/.test(path));
    expect(request?.params).toMatchObject({ active: "false" });
  });
});

/** The plain client, with something in front of each of its requests. */
function watched(before: (timeoutMs: number) => void, timeout = 80_000): Stripe {
  const inner = world.plain.getApiField("httpClient") as unknown as StripeHttpClient;
  const client: StripeHttpClient = {
    getClientName: () => inner.getClientName(),
    async makeRequest(...args) {
      before(args[7]);
      return inner.makeRequest(...args);
    },
  };
  const { host, port } = world.simulator;
  const httpClient = client as unknown as Stripe.HttpClient;
  return new Stripe("sk_test_1", { host, port, protocol: "http", telemetry: false, timeout, httpClient });
}

describe("a client without a time limit of its own", () => {
  it("is not taken for one that waits for nothing", async () => {
    const limits: number[] = [];
    const stripe = world.holdfast().stripe(watched((timeoutMs) => limits.push(timeoutMs), 0));
    await stripe.charges.create({ ...CHARGE }, { spend: SPEND });
    expect(Math.min(...limits)).toBeGreaterThan(500);
  });
});

describe("a lease that is lost after the first send", () => {
  it("ends the sending", async () => {
    const holdfast = world.holdfast({ vendorDeadlineMs: 150_000, timeoutMs: 150_000 });
    let sends = 0;
    const stripe = holdfast.stripe(
      watched(() => {
        sends += 1;
        world.time.jump(60_000);
        throw Object.assign(new Error("reset"), { code: "ECONNRESET" });
      }),
    );
    await holdfast.withBillingLease({ lease: "nightly-billing", billingPeriod: "2026-11", ttlMs: 30_000 }, async () => {
      expect(await rejection(stripe.charges.create({ ...CHARGE }, { spend: SPEND }))).toBeInstanceOf(SpendInDoubtError);
    });
    expect(sends).toBe(1);
  });
});

describe("a card that is declined while the invoice is still a draft", () => {
  it("gives Stripe's own error, and the invoice can be paid by another card", async () => {
    const { id: customer } = await world.plain.customers.create({});
    const { id } = await world.plain.invoices.create({ customer, auto_advance: false });
    await world.plain.invoiceItems.create({ customer, invoice: id, amount: 4900, currency: "usd" });
    const pay = (payment_method: string) => world.stripe().invoices.pay(id, { payment_method }, { spend: SPEND });
    expect(await rejection(pay("pm_card_chargeDeclined"))).toBeInstanceOf(Stripe.errors.StripeCardError);
    expect((await pay("pm_card_visa")).status).toBe("paid");
    expectTruth();
  });

  it("is finalized once when the answer is lost, and gives Stripe's refusal when it cannot be", async () => {
    const { id: customer } = await world.plain.customers.create({
      invoice_settings: { default_payment_method: "pm_card_visa" },
    });
    const { id } = await world.plain.invoices.create({ customer, auto_advance: false });
    await world.plain.invoiceItems.create({ customer, invoice: id, amount: 4900, currency: "usd" });
    const pay = () => world.stripe().invoices.pay(id, {}, { spend: SPEND });
    world.simulator.fault({ mode: "bad_request_400", match: { path: /finalize$/ }, times: 1 });
    expect(await rejection(pay())).toBeInstanceOf(Stripe.errors.StripeInvalidRequestError);
    expect(world.plane.authorization()).toMatchObject({ state: AuthorizationState.HELD, vendorState: "draft" });
    world.simulator.fault({ mode: "drop_after_execute", match: { path: /finalize$/ }, times: 1 });
    expect((await pay()).status).toBe("paid");
    expectTruth();
  });
});
