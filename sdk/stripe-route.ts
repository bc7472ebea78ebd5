import { SpendUnsupportedError } from "./errors.ts";
import type { DecimalMoney } from "./money.ts";
import { findStripeEndpoint, unsupported } from "./stripe-endpoints.ts";
import { fieldValue, type FormField, moneyOf, parseForm } from "./stripe-request.ts";

/** What the guard does with one request. */
export type StripeRoute =
  | { readonly kind: "pass" }
  | {
      readonly kind: "two_step" | "one_call";
      readonly endpoint: string;
      readonly fields: readonly FormField[];
      readonly money: DecimalMoney;
    };

const PAYMENT_INTENTS = "POST /v1/payment_intents";
const CHARGES = "POST /v1/charges";

/** Decides by method, path and body alone. Throws a SpendUnsupportedError on what must not be sent. */
export function routeStripeRequest(method: string, target: string, body: unknown): StripeRoute {
  if (method === "GET" || method === "HEAD") return { kind: "pass" };
  const [path = "", query] = target.split("?", 2);
  const found = findStripeEndpoint(method, path);
  if (found?.effect === "none") return { kind: "pass" };
  if (found?.endpoint !== PAYMENT_INTENTS && found?.endpoint !== CHARGES) throw unsupported(found, method, path);
  const { endpoint } = found;
  if (query !== undefined || typeof body !== "string") {
    throw new SpendUnsupportedError(endpoint, "has parameters outside its form body", "Send them in the body.");
  }
  const fields = parseForm(endpoint, body);
  if (fields.some(({ key }) => key === "metadata" || key === "metadata[holdfast_authorization]")) {
    throw new SpendUnsupportedError(
      endpoint,
      "sets metadata that the guard needs",
      "Leave holdfast_authorization out.",
    );
  }
  refuseManualCapture(endpoint, fields);
  if (endpoint === PAYMENT_INTENTS) requireConfirm(endpoint, fieldValue(fields, "confirm"));
  return {
    kind: endpoint === PAYMENT_INTENTS ? "two_step" : "one_call",
    endpoint,
    fields,
    money: moneyOf(endpoint, fields),
  };
}

function requireConfirm(endpoint: string, confirm: string | undefined): void {
  if (confirm === "true") return;
  throw new SpendUnsupportedError(
    endpoint,
    "without confirm: true lets a browser charge later, which is not supported yet",
    "Pass confirm: true with a payment_method, or create it with a client that is not guarded, on purpose.",
  );
}

function refuseManualCapture(endpoint: string, fields: readonly FormField[]): void {
  const capture = fieldValue(fields, "capture");
  const manual = fields.some(
    ({ key, value }) => (key === "capture_method" || key.endsWith("[capture_method]")) && value.startsWith("manual"),
  );
  if (manual || (capture !== undefined && capture !== "true")) {
    throw new SpendUnsupportedError(
      endpoint,
      "separates authorization and capture, which is not supported yet",
      "Leave capture and capture_method at their defaults.",
    );
  }
}
