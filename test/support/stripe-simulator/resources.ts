/** Groups of endpoints whose name is a part of their objects' kind: `checkout/sessions` → `checkout.session`. */
const namespaces = new Set(
  (
    "apps billing billing_portal checkout climate entitlements financial_connections forwarding identity issuing " +
    "product_catalog radar reporting tax terminal treasury"
  ).split(" "),
);

/** Collections whose objects are called something else than the collection. */
const kinds: Readonly<Record<string, string>> = {
  "account/bank_accounts": "bank_account",
  "account/capabilities": "capability",
  "account/external_accounts": "bank_account",
  "account/login_links": "login_link",
  "account/people": "person",
  "account/persons": "person",
  "accounts/bank_accounts": "bank_account",
  "accounts/capabilities": "capability",
  "accounts/external_accounts": "bank_account",
  "accounts/login_links": "login_link",
  "accounts/people": "person",
  "accounts/persons": "person",
  "apple_pay/domains": "apple_pay_domain",
  "application_fees/refunds": "fee_refund",
  "charges/refunds": "refund",
  "customers/balance_transactions": "customer_balance_transaction",
  "customers/bank_accounts": "bank_account",
  "customers/cards": "card",
  "customers/cash_balance": "cash_balance",
  "customers/funding_instructions": "funding_instructions",
  "customers/sources": "card",
  "customers/subscriptions": "subscription",
  "customers/tax_ids": "tax_id",
  "invoices/lines": "line_item",
  "oauth/token": "oauth_token",
  "oauth/deauthorize": "oauth_token",
  "products/features": "product_feature",
  "subscription_items/usage_records": "usage_record",
  "test_helpers/test_clocks": "test_helpers.test_clock",
  "three_d_secure/authentications": "three_d_secure_authentication",
  "transfers/reversals": "transfer_reversal",
  "3d_secure": "three_d_secure",
  balance_settings: "balance_settings",
  "tax/settings": "tax.settings",
};

/** How the ids of a kind begin. Others begin with the last part of their kind's name. */
const prefixes: Readonly<Record<string, string>> = {
  account: "acct",
  application_fee: "fee",
  balance_transaction: "txn",
  bank_account: "ba",
  "billing.alert": "alrt",
  "billing.credit_grant": "credgr",
  "billing.meter": "mtr",
  "billing.meter_event": "mtr_event",
  "billing_portal.configuration": "bpc",
  "billing_portal.session": "bps",
  "checkout.session": "cs_test",
  "climate.order": "climorder",
  credit_note: "cn",
  customer: "cus",
  customer_balance_transaction: "cbtxn",
  dispute: "dp",
  ephemeral_key: "ephkey",
  fee_refund: "fr",
  file: "file",
  file_link: "link",
  invoice: "in",
  invoice_payment: "inpay",
  invoiceitem: "ii",
  "issuing.authorization": "iauth",
  "issuing.card": "ic",
  "issuing.cardholder": "ich",
  "issuing.dispute": "idp",
  "issuing.transaction": "ipi",
  line_item: "il",
  mandate: "mandate",
  order: "or",
  payment_intent: "pi",
  payment_link: "plink",
  payment_method: "pm",
  payment_record: "pr",
  payout: "po",
  plan: "plan",
  price: "price",
  product: "prod",
  promotion_code: "promo",
  quote: "qt",
  refund: "re",
  setup_intent: "seti",
  shipping_rate: "shr",
  source: "src",
  subscription: "sub",
  subscription_item: "si",
  subscription_schedule: "sub_sched",
  tax_id: "txi",
  tax_rate: "txr",
  "terminal.connection_token": "pst",
  "terminal.location": "tml",
  "terminal.reader": "tmr",
  "test_helpers.test_clock": "clock",
  token: "tok",
  topup: "tu",
  transfer: "tr",
  transfer_reversal: "trr",
  "treasury.credit_reversal": "credrev",
  "treasury.debit_reversal": "debrev",
  "treasury.financial_account": "fa",
  "treasury.inbound_transfer": "ibt",
  "treasury.outbound_payment": "obp",
  "treasury.outbound_transfer": "obt",
  "treasury.received_credit": "rc",
  "treasury.received_debit": "rd",
  "v2.money_management.inbound_transfer": "ibt",
  "v2.money_management.outbound_payment": "obp",
  "v2.money_management.payout_intent": "pyi",
  webhook_endpoint: "we",
};

/** The kind of object that a collection holds, from the literal segments of its path without the version. */
export function kindOf(path: string): string {
  const [version = "", ...segments] = path.split("/").filter((segment) => segment !== "" && segment !== ":id");
  const names = version.startsWith("v") || version === "oauth" ? segments : [version, ...segments];
  if (version === "oauth") names.unshift(version);
  if (version === "v2") return ["v2", ...names.slice(0, -1), singular(names.at(-1) ?? "")].join(".");
  const named = kinds[names.join("/")];
  if (named !== undefined) return named;
  const [first = "", ...rest] = names;
  if (first === "test_helpers") return kindOf(`/v1/${rest.join("/")}`);
  if (namespaces.has(first) && rest.length > 0) return `${first}.${singular(rest.at(-1) ?? "")}`;
  return singular(names.at(-1) ?? "");
}

/** Whether the last name below an object names a collection of its own, and not something done to that object. */
export function isCollectionBelow(parent: string, name: string): boolean {
  return `${parent}/${name}` in kinds || name === "person_tokens" || name === "persons";
}

export function idPrefixOf(kind: string): string {
  return prefixes[kind] ?? kind.split(".").at(-1) ?? kind;
}

function singular(name: string): string {
  if (name.endsWith("ies")) return `${name.slice(0, -3)}y`;
  if (name.endsWith("sses")) return name.slice(0, -2);
  return name.endsWith("s") && !name.endsWith("ss") ? name.slice(0, -1) : name;
}
