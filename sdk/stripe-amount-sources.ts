import { readObject, type StripeCall } from "./stripe-call.ts";
import { minor, text } from "./stripe-object.ts";
import { fieldValue } from "./stripe-request.ts";
import { isRecord } from "./stripe-send.ts";

/** What an object at Stripe says about a write on it. */
export interface FoundAmount {
  /** In Stripe's integer unit. */
  readonly minor: bigint | undefined;
  readonly currency: string;
  readonly refundOf?: string;
}

type Source = (call: StripeCall) => Promise<FoundAmount | undefined>;
type StripeObject = Readonly<Record<string, unknown>>;

/** Reads the amount of the object that a write is about; undefined if it cannot be read or the write names none. */
export async function sourceOf(call: StripeCall): Promise<FoundAmount | undefined> {
  return SOURCES[call.endpoint]?.(call);
}

async function read(call: StripeCall, path: string, query?: string): Promise<StripeObject | undefined> {
  const answer = await readObject(call, path, { expand: false, ...(query === undefined ? {} : { query }) });
  return isRecord(answer?.body) ? answer.body : undefined;
}

function idOf(value: unknown): string {
  return typeof value === "string" ? value : isRecord(value) ? text(value, "id") : "";
}

function less(whole: bigint | undefined, part: bigint | undefined): bigint | undefined {
  return whole === undefined ? undefined : whole - (part ?? 0n);
}

/** An object under `collection` with the first id of the path. */
function inPath(collection: string, amounts: readonly string[], options: { refund?: boolean; given?: string } = {}) {
  return async (call: StripeCall): Promise<FoundAmount | undefined> => {
    const id = call.ids[0] ?? "";
    const object = await read(call, `${collection}/${encodeURIComponent(id)}`);
    if (object === undefined) return undefined;
    const whole = minor(object, ...amounts);
    const left = options.given === undefined ? whole : less(whole, minor(object, options.given));
    return {
      minor: left,
      currency: text(object, "currency"),
      ...(options.refund === true ? { refundOf: id } : {}),
    };
  };
}

/** A refund: of a charge or PaymentIntent named in the body or, in the old form, in the path. */
const refund: Source = async (call) => {
  const intentId = fieldValue(call.fields, "payment_intent");
  const chargeId = fieldValue(call.fields, "charge") ?? (call.endpoint.includes("/charges/") ? call.ids[0] : undefined);
  const charge =
    intentId === undefined
      ? await read(call, `/v1/charges/${encodeURIComponent(chargeId ?? "")}`)
      : await latestCharge(call, intentId);
  if (charge === undefined) return undefined;
  const ofIntent = intentId ?? idOf(charge["payment_intent"]);
  return {
    minor: less(minor(charge, "amount_captured", "amount"), minor(charge, "amount_refunded")),
    currency: text(charge, "currency"),
    refundOf: ofIntent === "" ? text(charge, "id") : ofIntent,
  };
};

async function latestCharge(call: StripeCall, intentId: string): Promise<StripeObject | undefined> {
  const intent = await read(call, `/v1/payment_intents/${encodeURIComponent(intentId)}`, "expand[]=latest_charge");
  const charge = intent?.["latest_charge"];
  if (isRecord(charge)) return charge;
  const id = idOf(charge);
  return id === "" ? undefined : read(call, `/v1/charges/${encodeURIComponent(id)}`);
}

/** A transfer without an amount moves the whole charge it is paid from. */
const transfer: Source = async (call) => {
  if (fieldValue(call.fields, "amount") !== undefined) return { minor: undefined, currency: "" };
  const from = fieldValue(call.fields, "source_transaction");
  if (from === undefined) return undefined;
  const charge = await read(call, `/v1/charges/${encodeURIComponent(from)}`);
  return charge === undefined
    ? undefined
    : { minor: minor(charge, "amount_captured", "amount"), currency: text(charge, "currency") };
};

const creditNote: Source = async (call) => {
  const invoice = fieldValue(call.fields, "invoice");
  if (invoice === undefined) return undefined;
  const fields = call.fields.filter(({ key }) => !key.startsWith("metadata") && !key.startsWith("expand"));
  const preview = await read(call, "/v1/credit_notes/preview", fields.map(({ raw }) => raw).join("&"));
  return preview === undefined
    ? undefined
    : { minor: minor(preview, "amount", "total"), currency: text(preview, "currency"), refundOf: invoice };
};

/** An object whose id is a field of the request. */
function inField(field: string, collection: string): Source {
  return async (call) => {
    const id = fieldValue(call.fields, field);
    if (id === undefined) return undefined;
    const object = await read(call, `${collection}/${encodeURIComponent(id)}`);
    return object === undefined
      ? undefined
      : { minor: minor(object, "amount"), currency: text(object, "currency"), refundOf: id };
  };
}

const SOURCES: Readonly<Record<string, Source>> = {
  "POST /v1/refunds": refund,
  "POST /v1/charges/:id/refund": refund,
  "POST /v1/charges/:id/refunds": refund,
  "POST /v1/terminal/readers/:id/refund_payment": refund,
  "POST /v1/credit_notes": creditNote,
  "POST /v1/transfers": transfer,
  "POST /v1/transfers/:id/reversals": inPath("/v1/transfers", ["amount"], { refund: true, given: "amount_reversed" }),
  "POST /v1/application_fees/:id/refunds": inPath("/v1/application_fees", ["amount"], {
    refund: true,
    given: "amount_refunded",
  }),
  "POST /v1/application_fees/:id/refund": inPath("/v1/application_fees", ["amount"], {
    refund: true,
    given: "amount_refunded",
  }),
  "POST /v1/payouts/:id/reverse": inPath("/v1/payouts", ["amount"], { refund: true }),
  "POST /v1/payouts/:id/cancel": inPath("/v1/payouts", ["amount"], { refund: true }),
  "POST /v1/topups/:id/cancel": inPath("/v1/topups", ["amount"], { refund: true }),
  "POST /v1/treasury/credit_reversals": inField("received_credit", "/v1/treasury/received_credits"),
  "POST /v1/treasury/debit_reversals": inField("received_debit", "/v1/treasury/received_debits"),
  "POST /v1/issuing/authorizations/:id/approve": inPath("/v1/issuing/authorizations", ["amount"]),
  "POST /v1/quotes/:id/accept": inPath("/v1/quotes", ["amount_total"]),
  "POST /v1/disputes/:id/close": inPath("/v1/disputes", ["amount"]),
  "POST /v1/refunds/:id/cancel": inPath("/v1/refunds", ["amount"]),
  "POST /v1/credit_notes/:id/void": inPath("/v1/credit_notes", ["amount", "total"]),
};
