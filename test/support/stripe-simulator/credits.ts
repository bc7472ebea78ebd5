import { invalidRequest, noSuchObject } from "./errors.ts";
import { emit } from "./events.ts";
import { recordMovement } from "./movements.ts";
import type { Metadata } from "./objects.ts";
import {
  amountParam,
  currencyParam,
  groupParam,
  mergedMetadata,
  requiredParam,
  signedAmountParam,
  textParam,
} from "./params.ts";
import { type Context, type Endpoint, type Routes, type Stored, collectionOf, keep, newId } from "./state.ts";

interface BalanceTransaction extends Stored {
  object: "customer_balance_transaction";
  amount: number;
  credit_note: string | null;
  currency: string;
  customer: string;
  description: string | null;
  ending_balance: number;
  invoice: string | null;
  livemode: false;
  metadata: Metadata;
  type: string;
}

/** POST /v1/customers/{id}/balance_transactions: a negative amount is a credit towards future invoices. */
const adjustBalance: Endpoint = (context) => {
  const { params } = context;
  const customer = context.ids[0] ?? "";
  const amount = requiredParam(signedAmountParam(params, "amount"), "amount");
  const currency = requiredParam(currencyParam(params, "currency"), "currency");
  const metadata = mergedMetadata(params);
  return {
    lock: customer,
    run: () =>
      changeBalance(context, customer, {
        amount,
        currency,
        metadata,
        description: textParam(params, "description") ?? null,
        type: "adjustment",
      }),
  };
};

/** Changes what a customer has to their credit; only an adjustment or a credit note moves money. */
export function changeBalance(
  context: Context,
  customer: string,
  change: Pick<BalanceTransaction, "amount" | "currency" | "metadata" | "description" | "type"> & {
    readonly invoice?: string;
    readonly creditNote?: string;
  },
): BalanceTransaction {
  const owner = context.account.customers.get(customer);
  const ending = (owner?.balance ?? balanceOf(context, customer)) + change.amount;
  if (owner !== undefined) owner.balance = ending;
  const { amount, currency, metadata } = change;
  const transaction: BalanceTransaction = {
    id: newId("cbtxn"),
    object: "customer_balance_transaction",
    amount,
    created: context.clock.seconds(),
    credit_note: change.creditNote ?? null,
    currency,
    customer,
    description: change.description,
    ending_balance: ending,
    invoice: change.invoice ?? null,
    livemode: false,
    metadata,
    type: change.type,
  };
  keep(context.account, transaction);
  if (change.type !== "applied_to_invoice") {
    recordMovement(context, {
      kind: amount < 0 ? "credit" : "credit_return",
      id: transaction.id,
      amount: Math.abs(amount),
      currency,
      customer,
      metadata,
    });
  }
  emit(context, "customer.balance_transaction.created", transaction);
  return transaction;
}

/** The balance of a customer, also of one that was never made here: what their transactions come to. */
export function balanceOf(context: Context, customer: string): number {
  const owner = context.account.customers.get(customer);
  if (owner !== undefined) return owner.balance;
  const all = [...collectionOf<BalanceTransaction>(context.account, "customer_balance_transaction").values()];
  return all.filter((transaction) => transaction.customer === customer).reduce((sum, { amount }) => sum + amount, 0);
}

interface CreditGrant extends Stored {
  object: "billing.credit_grant";
  amount: { type: "monetary"; monetary: { value: number; currency: string } };
  applicability_config: object;
  category: string;
  customer: string;
  effective_at: number;
  expires_at: number | null;
  livemode: false;
  metadata: Metadata;
  name: string | null;
  priority: number;
  voided_at: number | null;
}

/** POST /v1/billing/credit_grants: `amount[monetary][value|currency]`. */
const createCreditGrant: Endpoint = (context) => {
  const { params } = context;
  const monetary = groupParam(groupParam(params, "amount"), "monetary");
  const value = requiredParam(amountParam(monetary, "value"), "amount[monetary][value]");
  const currency = requiredParam(currencyParam(monetary, "currency"), "amount[monetary][currency]");
  const customer = requiredParam(textParam(params, "customer"), "customer");
  const metadata = mergedMetadata(params);
  return {
    run: () => {
      const grant: CreditGrant = {
        id: newId("credgr"),
        object: "billing.credit_grant",
        amount: { type: "monetary", monetary: { value, currency } },
        applicability_config: { scope: { price_type: "metered" } },
        category: textParam(params, "category") ?? "paid",
        created: context.clock.seconds(),
        customer,
        effective_at: context.clock.seconds(),
        expires_at: null,
        livemode: false,
        metadata,
        name: textParam(params, "name") ?? null,
        priority: 50,
        voided_at: null,
      };
      keep(context.account, grant);
      recordMovement(context, { kind: "credit", id: grant.id, amount: value, currency, customer, metadata });
      emit(context, "billing.credit_grant.created", grant);
      return grant;
    },
  };
};

/** POST /v1/billing/credit_grants/{id}/void and /expire: what was granted is gone. */
function endCreditGrant(field: "voided_at" | "expires_at"): Endpoint {
  return (context) => {
    const id = context.ids[0] ?? "";
    const grant = collectionOf<CreditGrant>(context.account, "billing.credit_grant").get(id);
    if (grant === undefined) throw noSuchObject("billing.credit_grant", id);
    return {
      lock: id,
      run: () => {
        if (grant.voided_at !== null || grant.expires_at !== null) {
          throw invalidRequest("This credit grant has already ended.");
        }
        grant[field] = context.clock.seconds();
        const { value: amount, currency } = grant.amount.monetary;
        const { customer, metadata } = grant;
        recordMovement(context, { kind: "credit_return", id, amount, currency, customer, metadata });
        emit(context, "billing.credit_grant.updated", grant);
        return grant;
      },
    };
  };
}

export const creditRoutes: Routes = [
  ["POST", "/v1/customers/:id/balance_transactions", adjustBalance],
  ["POST", "/v1/billing/credit_grants", createCreditGrant],
  ["POST", "/v1/billing/credit_grants/:id/void", endCreditGrant("voided_at")],
  ["POST", "/v1/billing/credit_grants/:id/expire", endCreditGrant("expires_at")],
];
