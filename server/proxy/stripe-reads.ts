import { STRIPE_ENDPOINTS } from "@holdfast/sdk/stripe-vendor";

/** Whether a read shows the one object that it names, or what belongs to everybody who shares the account. */
export type ReadKind = "retrieve" | "list";

// What no write stands beneath. Left out on purpose: files from other hosts, and a card's number.
const byHand: Readonly<Record<ReadKind, string>> = {
  retrieve: `
    /v1/balance/history/:id, /v1/balance_transactions/:id, /v1/billing/credit_balance_transactions/:id,
    /v1/confirmation_tokens/:id, /v1/customers/:id/cash_balance, /v1/customers/:id/cash_balance_transactions/:id,
    /v1/customers/:id/payment_methods/:id, /v1/entitlements/active_entitlements/:id, /v1/events/:id, /v1/files/:id,
    /v1/financial_connections/sessions/:id, /v1/financial_connections/transactions/:id, /v1/forwarding/requests/:id,
    /v1/identity/verification_reports/:id, /v1/invoice_payments/:id, /v1/issuer_fraud_records/:id,
    /v1/issuing/physical_bundles/:id, /v1/mandates/:id, /v1/order_returns/:id, /v1/payment_attempt_records/:id,
    /v1/radar/early_fraud_warnings/:id, /v1/reporting/report_runs/:id, /v1/sigma/scheduled_query_runs/:id,
    /v1/tax/calculations/:id, /v1/tax/locations/:id, /v1/tax/transactions/:id, /v1/test_helpers/test_clocks/:id,
    /v1/tokens/:id, /v1/treasury/credit_reversals/:id, /v1/treasury/debit_reversals/:id,
    /v1/treasury/financial_accounts/:id/features, /v1/treasury/received_credits/:id, /v1/treasury/received_debits/:id,
    /v1/treasury/transaction_entries/:id, /v1/treasury/transactions/:id, /v2/commerce/product_catalog/imports/:id,
    /v2/core/account_tokens/:id, /v2/core/accounts/:id/person_tokens/:id, /v2/core/events/:id,
    /v2/money_management/adjustments/:id, /v2/money_management/financial_addresses/:id,
    /v2/money_management/inbound_transfers/:id, /v2/money_management/received_credits/:id,
    /v2/money_management/transaction_entries/:id
  `,
  list: `
    /v1/account, /v1/apps/secrets, /v1/apps/secrets/find, /v1/balance, /v1/balance/history, /v1/balance_settings,
    /v1/balance_transactions, /v1/billing/credit_balance_summary, /v1/billing/credit_balance_transactions,
    /v1/billing/meters/:id/event_summaries, /v1/charges/search, /v1/checkout/sessions/:id/line_items,
    /v1/climate/products, /v1/climate/products/:id, /v1/climate/suppliers, /v1/climate/suppliers/:id,
    /v1/country_specs, /v1/country_specs/:id, /v1/credit_notes/:id/lines, /v1/credit_notes/preview,
    /v1/credit_notes/preview/lines, /v1/customers/:id/cash_balance_transactions, /v1/customers/:id/payment_methods,
    /v1/customers/search, /v1/entitlements/active_entitlements, /v1/events, /v1/exchange_rates, /v1/exchange_rates/:id,
    /v1/files, /v1/financial_connections/accounts/:id/owners, /v1/financial_connections/transactions,
    /v1/forwarding/requests, /v1/identity/verification_reports, /v1/invoice_payments, /v1/invoices/search,
    /v1/invoices/upcoming, /v1/invoices/upcoming/lines, /v1/issuer_fraud_records, /v1/issuing/physical_bundles,
    /v1/order_returns, /v1/payment_attempt_records, /v1/payment_intents/:id/amount_details_line_items,
    /v1/payment_intents/search, /v1/payment_links/:id/line_items, /v1/prices/search, /v1/products/search,
    /v1/quotes/:id/computed_upfront_line_items, /v1/quotes/:id/line_items, /v1/radar/early_fraud_warnings,
    /v1/reporting/report_runs, /v1/reporting/report_types, /v1/reporting/report_types/:id, /v1/setup_attempts,
    /v1/sigma/scheduled_query_runs, /v1/sources/:id/source_transactions,
    /v1/subscription_items/:id/usage_record_summaries, /v1/subscriptions/search, /v1/tax/associations/find,
    /v1/tax/calculations/:id/line_items, /v1/tax/locations, /v1/tax/settings, /v1/tax/transactions/:id/line_items,
    /v1/tax_codes, /v1/tax_codes/:id, /v1/test_helpers/test_clocks, /v1/treasury/credit_reversals,
    /v1/treasury/debit_reversals, /v1/treasury/received_credits, /v1/treasury/received_debits,
    /v1/treasury/transaction_entries, /v1/treasury/transactions, /v2/commerce/product_catalog/imports,
    /v2/core/events, /v2/money_management/adjustments, /v2/money_management/financial_addresses,
    /v2/money_management/inbound_transfers, /v2/money_management/payout_methods_bank_account_spec,
    /v2/money_management/received_credits, /v2/money_management/transaction_entries
  `,
};

function listed(text: string): string[] {
  return text
    .split(",")
    .map((path) => path.trim())
    .filter((path) => path !== "");
}

/** Every write that is known, for example "POST /v1/charges/:id/capture". */
export const stripeWrites: readonly string[] = Object.values(STRIPE_ENDPOINTS).flatMap(listed);

/** What a write acts on can be read: the object with its id, and the collection before it. */
function beneathWrites(): Map<string, ReadKind> {
  const kinds = new Map<string, ReadKind>();
  for (const endpoint of stripeWrites) {
    if (!/ \/v[12]\//.test(endpoint) || endpoint.includes("/test_helpers/")) continue;
    const segments = endpoint.slice(endpoint.indexOf("/")).split("/");
    for (const [at, segment] of segments.entries()) {
      if (segment !== ":id") continue;
      kinds.set(`GET ${segments.slice(0, at).join("/")}`, "list");
      kinds.set(`GET ${segments.slice(0, at + 1).join("/")}`, "retrieve");
    }
  }
  return kinds;
}

const reads = beneathWrites();
for (const kind of ["retrieve", "list"] as const) {
  for (const path of listed(byHand[kind])) reads.set(`GET ${path}`, kind);
}

/** Every read that is known, for example "GET /v1/charges/:id". */
export const stripeReads: readonly string[] = [...reads.keys()];

/** What a read shows. @throws RangeError on what is not in `stripeReads`. */
export function readKind(endpoint: string): ReadKind {
  const kind = reads.get(endpoint);
  if (kind === undefined) throw new RangeError(`"${endpoint}" is no read of Stripe`);
  return kind;
}
