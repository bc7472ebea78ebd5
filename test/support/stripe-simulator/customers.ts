import { noSuchObject } from "./errors.ts";
import { emit } from "./events.ts";
import type { Params } from "./form.ts";
import { retryPastDue } from "./invoice-pay.ts";
import { equalsParam, listPage } from "./lists.ts";
import type { Customer } from "./objects.ts";
import { integerParam, mergedMetadata, textParam } from "./params.ts";
import { type Context, type Endpoint, newId } from "./state.ts";

export const createCustomer: Endpoint = (context) => {
  const changes = changesOf(context.params);
  const metadata = mergedMetadata(context.params);
  return {
    run: () => {
      const customer: Customer = {
        id: newId("cus"),
        object: "customer",
        created: context.clock.seconds(),
        balance: 0,
        default_source: null,
        description: null,
        email: null,
        invoice_settings: { default_payment_method: null },
        livemode: false,
        name: null,
        ...changes,
        metadata,
      };
      context.account.customers.set(customer.id, customer);
      emit(context, "customer.created", customer);
      return customer;
    },
  };
};

/** POST /v1/customers/{id}. A new `source` makes Stripe charge what is past due. */
export const updateCustomer: Endpoint = (context) => {
  const customer = customerOf(context);
  const changes = changesOf(context.params);
  const metadata = mergedMetadata(context.params, customer.metadata);
  return {
    lock: customer.id,
    run: () => {
      customer.balance = integerParam(context.params, "balance") ?? customer.balance;
      Object.assign(customer, changes, { metadata });
      emit(context, "customer.updated", customer);
      if (changes.default_source !== undefined) retryPastDue(context, customer.id);
      return customer;
    },
  };
};

export const retrieveCustomer: Endpoint = (context) => ({ run: () => customerOf(context) });

/** GET /v1/customers: `email`, `created`. */
export const listCustomers: Endpoint = (context) => ({
  run: () =>
    listPage(context, context.account.customers.values(), {
      url: "/v1/customers",
      kind: "customer",
      lagMs: context.lag.lists,
      keep: equalsParam<Customer>(context.params, "email"),
    }),
});

function changesOf(params: Params): Partial<Customer> {
  const changes: Partial<Customer> = {};
  for (const name of ["description", "email", "name"] as const) {
    if (params[name] !== undefined) changes[name] = textParam(params, name) ?? null;
  }
  const source = textParam(params, "source");
  if (source !== undefined) changes.default_source = source;
  const settings = params["invoice_settings"];
  const method =
    typeof settings === "object" && !Array.isArray(settings)
      ? textParam(settings, "default_payment_method")
      : textParam(params, "payment_method");
  if (method !== undefined) changes.invoice_settings = { default_payment_method: method };
  return changes;
}

function customerOf(context: Context): Customer {
  const id = context.ids[0] ?? "";
  const customer = context.account.customers.get(id);
  if (customer === undefined) throw noSuchObject("customer", id);
  return customer;
}
