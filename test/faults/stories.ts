import type { PlannedSpend, SpendClass } from "./evidence.ts";
import type { Call, Story } from "./story.ts";

type Tell = (story: Story) => Promise<void>;

const cents = (story: Story): number => story.random.whole(100, 9_000);

const intentSteps = ["", "-confirm-1", "-confirm-1", "-cancel"];

function intentCall(story: Story, spend: PlannedSpend, params: object): Call {
  return {
    call: "paymentIntents.create",
    args: [
      {
        amount: spend.amountMax,
        currency: "usd",
        customer: story.stripeCustomer,
        payment_method: "pm_card_visa",
        ...story.mark(spend),
        ...params,
      },
    ],
  };
}

const card = (story: Story): string => (story.random.chance(0.12) ? "pm_card_chargeDeclined" : "pm_card_visa");

const intent: Tell = async (story) => {
  const spend = story.plan("intent", cents(story), ["charge"]);
  await story.trouble(spend, intentSteps, "/v1/payment_intents/");
  const keeps = story.random.chance(0.15) ? { onDecline: "keep" as const } : {};
  const call = { ...intentCall(story, spend, { confirm: true, payment_method: card(story) }), ...keeps };
  for (let rounds = story.random.whole(1, 3); rounds > 0; rounds -= 1) await story.together(spend, call);
};

const intentLater: Tell = async (story) => {
  const spend = story.plan("intent_later", cents(story), ["charge"]);
  await story.trouble(spend, intentSteps, "/v1/payment_intents/");
  const create = intentCall(story, spend, { confirm: false });
  const id = await story.until(spend, create);
  if (id === undefined) return;
  const confirm = { call: "paymentIntents.confirm", args: [id], namesSpend: false } as const;
  const cancel = { call: "paymentIntents.cancel", args: [id], namesSpend: false } as const;
  const browser = () => story.act(`payment_intents/${id}/confirm`, id, spend);
  switch (story.random.weighted({ confirm: 4, browser: 2, cancel: 2, both: 1, against: 2 })) {
    case "confirm":
      await story.together(spend, confirm);
      break;
    case "browser":
      await browser();
      break;
    case "cancel":
      await story.together(spend, cancel);
      break;
    case "both":
      await Promise.all([browser(), story.together(spend, confirm)]);
      break;
    case "against":
      await Promise.all([story.together(spend, confirm, 2), story.together(spend, cancel, 1)]);
  }
  await story.together(spend, create);
};

const intentManual: Tell = async (story) => {
  const amount = cents(story);
  const raised = amount + 500;
  const spend = story.plan("intent_manual", raised, ["capture"]);
  const steps = ["", "-confirm-1", "-capture-1", "-capture-1", `-increment-${raised}-1`];
  await story.trouble(spend, steps, "/v1/payment_intents/");
  const create = intentCall(story, spend, { amount, confirm: true, capture_method: "manual" });
  const id = await story.until(spend, create);
  if (id === undefined) return;
  const step = (name: string, params: object = {}): Call => ({
    call: `paymentIntents.${name}`,
    args: [id, params],
    namesSpend: false,
  });
  if (story.random.chance(0.3)) await story.together(spend, step("incrementAuthorization", { amount: raised }));
  const part = story.random.chance(0.3) ? { amount_to_capture: Math.ceil(amount / 2) } : {};
  if (story.random.chance(0.75)) await story.together(spend, step("capture", part));
  if (story.random.chance(0.25)) {
    await Promise.all([story.together(spend, step("capture", part)), story.together(spend, step("cancel"), 1)]);
  }
  await story.together(spend, create);
};

const intentAction: Tell = async (story) => {
  const spend = story.plan("intent_action", cents(story), ["charge"]);
  await story.trouble(spend, intentSteps, "/v1/payment_intents/");
  const create = intentCall(story, spend, { confirm: true, payment_method: "pm_card_authenticationRequired" });
  const id = await story.until(spend, create);
  if (id === undefined) return;
  const act = story.random.weighted({ confirm: 5, fail: 2, nothing: 1 });
  if (act !== "nothing") await story.act(`payment_intents/${id}/${act}`, id, spend);
  await story.together(spend, create);
};

function chargeCall(story: Story, spend: PlannedSpend, params: object = {}): Call {
  const source = story.random.chance(0.1) ? "tok_chargeDeclined" : "tok_visa";
  return {
    call: "charges.create",
    args: [{ amount: spend.amountMax, currency: "usd", source, ...story.mark(spend), ...params }],
  };
}

const charge: Tell = async (story) => {
  const spend = story.plan("charge", cents(story), ["charge"]);
  await story.trouble(spend, [""], "/v1/charges/");
  const call = chargeCall(story, spend);
  for (let rounds = story.random.whole(1, 3); rounds > 0; rounds -= 1) await story.together(spend, call);
};

const chargeLater: Tell = async (story) => {
  const spend = story.plan("charge_later", cents(story), ["capture"]);
  await story.trouble(spend, ["", "-capture-1"], "/v1/charges/");
  const create = chargeCall(story, spend, { capture: false });
  const id = await story.until(spend, create);
  if (id === undefined) return;
  const part = story.random.chance(0.3) ? { amount: Math.ceil(spend.amountMax / 2) } : {};
  const capture = { call: "charges.capture", args: [id, part], namesSpend: false } as const;
  if (story.random.chance(0.85)) await story.together(spend, capture);
  await story.together(spend, create);
};

const invoice: Tell = async (story) => {
  const spend = story.plan("invoice", cents(story), ["charge"]);
  await story.trouble(spend, ["-pay-1"], "/v1/invoices/");
  const id = await draft(story, spend);
  await story.plain.invoices.finalizeInvoice(id, { auto_advance: false });
  const call = { call: "invoices.pay", args: [id, {}] };
  for (let rounds = story.random.whole(1, 3); rounds > 0; rounds -= 1) await story.together(spend, call);
};

const invoiceFinal: Tell = async (story) => {
  const spend = story.plan("invoice_final", cents(story), ["charge"]);
  await story.trouble(spend, ["-finalize-1", "-pay-1"], "/v1/invoices/");
  const id = await draft(story, spend);
  const upTo = spend.amountMax + 300;
  const finalize = { call: "invoices.finalizeInvoice", args: [id, { auto_advance: false }], upTo };
  await story.together(spend, finalize);
  const pay = { call: "invoices.pay", args: [id, {}], namesSpend: false } as const;
  const end = { call: "invoices.voidInvoice", args: [id, {}], namesSpend: false } as const;
  await story.together(spend, story.random.chance(0.75) ? pay : end);
  await story.together(spend, finalize, 1);
};

/** A draft of one line for a customer with a card. */
async function draft(story: Story, spend: PlannedSpend): Promise<string> {
  const customer = await payer(story);
  const { id } = await story.plain.invoices.create({ customer, auto_advance: false, ...story.mark(spend) });
  await story.plain.invoiceItems.create({ customer, invoice: id, amount: spend.amountMax, currency: "usd" });
  return id;
}

async function payer(story: Story): Promise<string> {
  const settings = { default_payment_method: "pm_card_visa" };
  return (await story.plain.customers.create({ invoice_settings: settings })).id;
}

const subscription: Tell = async (story) => {
  const amount = cents(story);
  const spend = story.plan("subscription", amount, ["charge"]);
  await story.trouble(spend, [""], "/v1/subscriptions/");
  const customer = await payer(story);
  // Of a year, so that no renewal falls into the run.
  const price = {
    currency: "usd",
    product: "prod_1",
    recurring: { interval: "year" as const },
    unit_amount: amount,
  };
  const call = {
    call: "subscriptions.create",
    args: [{ customer, items: [{ price_data: price }], ...story.mark(spend) }],
    ...(story.random.chance(0.5) ? { upTo: amount + 200 } : {}),
  };
  for (let rounds = story.random.whole(1, 2); rounds > 0; rounds -= 1) await story.together(spend, call);
};

function lineItems(amount: number): readonly object[] {
  return [{ quantity: 1, price_data: { currency: "usd", unit_amount: amount, product_data: { name: "seat" } } }];
}

const checkout: Tell = async (story) => {
  const amount = cents(story);
  const spend = story.plan("checkout", amount, ["charge"]);
  await story.trouble(spend, [""], "/v1/checkout/sessions/");
  const params = {
    mode: "payment",
    line_items: lineItems(amount),
    success_url: "https://x.test",
    ...story.mark(spend),
  };
  const create = { call: "checkout.sessions.create", args: [params], upTo: amount + 100 };
  const id = await story.until(spend, create);
  if (id === undefined) return;
  const expire = { call: "checkout.sessions.expire", args: [id], namesSpend: false } as const;
  const complete = () => story.act(`checkout_sessions/${id}/complete`, id, spend);
  const what = story.random.weighted({ complete: 5, expire: 2, both: 1, nothing: 1 });
  if (what === "complete") await complete();
  if (what === "expire") await story.together(spend, expire);
  if (what === "both") await Promise.all([complete(), story.together(spend, expire, 2)]);
  await story.together(spend, create);
};

const link: Tell = async (story) => {
  const amount = cents(story);
  const spend = story.plan("link", amount, ["charge"], { isObligation: true });
  await story.trouble(spend, [""], "/v1/payment_links/");
  const params = {
    line_items: lineItems(amount),
    restrictions: { completed_sessions: { limit: 1 } },
    ...story.mark(spend),
  };
  const create = { call: "paymentLinks.create", args: [params], upTo: amount + 100 };
  const id = await story.until(spend, create);
  if (id === undefined) return;
  if (story.random.chance(0.7)) await story.act(`payment_links/${id}/pay`, id, spend);
  const off = { call: "paymentLinks.update", args: [id, { active: false }], namesSpend: false } as const;
  if (story.random.chance(0.7)) await story.together(spend, off);
  await story.together(spend, create);
};

/** Two refunds of one charge: a part, and what is left of it. */
const refund: Tell = async (story) => {
  const total = cents(story);
  const isIntent = story.random.chance(0.5);
  const marked = { metadata: { faults_setup: "refund" } };
  const common = { amount: total, currency: "usd" };
  const base = isIntent
    ? await story.plain.paymentIntents.create({ ...common, payment_method: "pm_card_visa", confirm: true, ...marked })
    : await story.plain.charges.create({ ...common, source: "tok_visa", ...marked });
  const amount = story.random.chance(0.4) ? total : Math.ceil(total / 3);
  const about = isIntent ? { payment_intent: base.id } : { charge: base.id };
  const give = (part: number): [PlannedSpend, Call] => {
    const spend = story.plan("refund", part, ["refund"], { base: base.id });
    return [spend, { call: "refunds.create", args: [{ ...about, amount: part, ...story.mark(spend) }] }];
  };
  const [spend, call] = give(amount);
  await story.trouble(spend, [""], "/v1/refunds/");
  await story.together(spend, call);
  if (amount < total && story.random.chance(0.6)) {
    const [other, rest] = give(total - amount);
    await story.trouble(other, [""], "/v1/refunds/");
    await Promise.all([story.together(other, rest), story.together(spend, call)]);
  } else await story.together(spend, call);
};

const reversal: Tell = async (story) => {
  const total = cents(story);
  const marked = { metadata: { faults_setup: "transfer" } };
  const order = { amount: total, currency: "usd", destination: "acct_2", ...marked };
  const { id } = await story.plain.transfers.create(order);
  const amount = story.random.chance(0.5) ? total : Math.ceil(total / 2);
  const spend = story.plan("reversal", amount, ["transfer_reversal"], { base: id });
  await story.trouble(spend, [""], "/v1/transfers/");
  const call = { call: "transfers.createReversal", args: [id, { amount, ...story.mark(spend) }] };
  for (let rounds = story.random.whole(1, 2); rounds > 0; rounds -= 1) await story.together(spend, call);
};

const creditNote: Tell = async (story) => {
  const amount = cents(story);
  const customer = await payer(story);
  const marked = { metadata: { faults_setup: "invoice" } };
  const { id } = await story.plain.invoices.create({ customer, auto_advance: false, ...marked });
  await story.plain.invoiceItems.create({ customer, invoice: id, amount, currency: "usd" });
  await story.plain.invoices.finalizeInvoice(id, { auto_advance: false });
  await story.plain.invoices.pay(id);
  const part = Math.ceil(amount / 2);
  const spend = story.plan("credit_note", part, ["refund"], { base: id });
  await story.trouble(spend, [""], "/v1/credit_notes/");
  const params = { invoice: id, amount: part, refund_amount: part, ...story.mark(spend) };
  const call = { call: "creditNotes.create", args: [params] };
  for (let rounds = story.random.whole(1, 2); rounds > 0; rounds -= 1) await story.together(spend, call);
};

/** Ways of paying out and in that are one request. */
function oneRequest(
  spendClass: SpendClass,
  kind: string,
  method: string,
  collection: string,
  args: (spend: PlannedSpend, marked: object, story: Story) => readonly unknown[],
): Tell {
  return async (story) => {
    const spend = story.plan(spendClass, cents(story), [kind]);
    await story.trouble(spend, [""], collection);
    const call = { call: method, args: args(spend, story.mark(spend), story) };
    for (let rounds = story.random.whole(1, 3); rounds > 0; rounds -= 1) await story.together(spend, call);
  };
}

const money = ({ amountMax: amount }: PlannedSpend) => ({ amount, currency: "usd" });

const topup: Tell = async (story) => {
  const spend = story.plan("topup", cents(story), ["topup"]);
  await story.trouble(spend, [""], "/v1/topups/");
  const call = { call: "topups.create", args: [{ ...money(spend), description: "d", ...story.mark(spend) }] };
  const id = await story.until(spend, call);
  if (id !== undefined && story.random.chance(0.8)) {
    await story.act(`topups/${id}/settle`, id, spend, { outcome: "succeeded" });
  }
  await story.together(spend, call);
};

const plain: Tell = async (story) => {
  const spend = story.plan("plain", cents(story), ["message"]);
  const amount = (spend.amountMax / 100).toFixed(2);
  const what = { amount, currency: "usd", vendor: "messages", endpoint: "POST /messages" };
  const call = { call: "spend", args: [what, spend.amountMax] };
  for (let rounds = story.random.whole(1, 3); rounds > 0; rounds -= 1) await story.together(spend, call);
};

/** How a story of each class goes, and how often there is one. */
export const stories: Readonly<Record<SpendClass, { readonly tell: Tell; readonly weight: number }>> = {
  intent: { tell: intent, weight: 16 },
  intent_later: { tell: intentLater, weight: 8 },
  intent_manual: { tell: intentManual, weight: 8 },
  intent_action: { tell: intentAction, weight: 5 },
  charge: { tell: charge, weight: 12 },
  charge_later: { tell: chargeLater, weight: 5 },
  invoice: { tell: invoice, weight: 6 },
  invoice_final: { tell: invoiceFinal, weight: 4 },
  subscription: { tell: subscription, weight: 5 },
  checkout: { tell: checkout, weight: 5 },
  link: { tell: link, weight: 3 },
  refund: { tell: refund, weight: 7 },
  reversal: { tell: reversal, weight: 3 },
  credit_note: { tell: creditNote, weight: 3 },
  transfer: {
    tell: oneRequest("transfer", "transfer", "transfers.create", "/v1/transfers/", (spend, marked) => [
      { ...money(spend), destination: "acct_2", ...marked },
    ]),
    weight: 4,
  },
  payout: {
    tell: oneRequest("payout", "payout", "payouts.create", "/v1/payouts/", (spend, marked) => [
      { ...money(spend), ...marked },
    ]),
    weight: 4,
  },
  topup: { tell: topup, weight: 4 },
  credit: {
    tell: oneRequest(
      "credit",
      "credit",
      "customers.createBalanceTransaction",
      "/v1/customers/",
      ({ amountMax: amount }, marked, { stripeCustomer }) => [
        stripeCustomer,
        { amount: -amount, currency: "usd", ...marked },
      ],
    ),
    weight: 3,
  },
  v2: {
    tell: oneRequest("v2", "payout", "rawRequest", "/v2/money_management/", ({ amountMax: value }, marked) => [
      "POST",
      "/v2/money_management/outbound_payments",
      {
        from: { financial_account: "fa_1", currency: "usd" },
        to: { recipient: "acct_2" },
        amount: { value, currency: "usd" },
        ...marked,
      },
    ]),
    weight: 4,
  },
  plain: { tell: plain, weight: 6 },
};
