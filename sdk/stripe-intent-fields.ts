import { fieldValue, type FormField, isExpand, newField } from "./stripe-request.ts";

// Stripe takes these only together with a confirmation.
const CONFIRM_ONLY = new Set([
  "confirmation_token",
  "error_on_requires_action",
  "mandate",
  "mandate_data",
  "off_session",
  "return_url",
  "use_stripe_sdk",
]);

function baseName(key: string): string {
  return key.split("[", 1)[0] ?? key;
}

/**
 * The caller's fields for the creation of the unconfirmed object, with our metadata.
 *
 * Manual confirmation keeps a browser from confirming the object. It is added only where the caller's own fields say
 * that no browser takes part (fixed payment method types, and either off-session or no action allowed): elsewhere it
 * would change how a customer's authentication ends. With `always` it is set whatever the fields say.
 */
export function createFields(
  fields: readonly FormField[],
  authorization: string,
  always = false,
): readonly FormField[] {
  const kept = fields.filter(
    ({ key }) =>
      key !== "confirm" &&
      !CONFIRM_ONLY.has(baseName(key)) &&
      !isExpand(key) &&
      !(always && key === "confirmation_method"),
  );
  const noBrowser = ["off_session", "error_on_requires_action"].some((name) => fieldValue(fields, name) === "true");
  const fixedTypes = fields.some(({ key }) =>
    ["payment_method_types", "allowed_payment_method_types"].includes(baseName(key)),
  );
  const chosen = fields.some(({ key }) => ["confirmation_method", "automatic_payment_methods"].includes(baseName(key)));
  const manual = always || (noBrowser && fixedTypes && !chosen) ? [newField("confirmation_method", "manual")] : [];
  return [...kept, ...manual, newField("metadata[holdfast_authorization]", authorization)];
}

/** The caller's fields for the confirmation. Another card is named only where an earlier one was declined. */
export function confirmFields(
  fields: readonly FormField[],
  options: { readonly withPaymentMethod: boolean },
): readonly FormField[] {
  return fields.filter(
    ({ key }) =>
      CONFIRM_ONLY.has(baseName(key)) || isExpand(key) || (options.withPaymentMethod && key === "payment_method"),
  );
}
