import { invalidRequest, noSuchObject } from "./errors.ts";
import { emit } from "./events.ts";
import { recordMovement } from "./movements.ts";
import type { Metadata } from "./objects.ts";
import { amountParam, currencyParam, mergedMetadata, requiredParam, textParam } from "./params.ts";
import { type Context, type Endpoint, type Routes, type Stored, collectionOf, keep, newId } from "./state.ts";

/** A shop asks whether one of the account's own cards may pay. */
interface Authorization extends Stored {
  object: "issuing.authorization";
  amount: number;
  approved: boolean;
  card: string | null;
  currency: string;
  livemode: false;
  metadata: Metadata;
  pending_request: { amount: number; currency: string; is_amount_controllable: boolean } | null;
  status: "pending" | "closed" | "expired" | "reversed";
}

/** POST /v1/test_helpers/issuing/authorizations: here the shop always waits for an answer. */
const requestAuthorization: Endpoint = (context) => {
  const { params } = context;
  const amount = requiredParam(amountParam(params, "amount"), "amount");
  const currency = currencyParam(params, "currency") ?? "usd";
  return {
    run: () => {
      const authorization: Authorization = {
        id: newId("iauth"),
        object: "issuing.authorization",
        amount: 0,
        approved: false,
        card: textParam(params, "card") ?? null,
        created: context.clock.seconds(),
        currency,
        livemode: false,
        metadata: {},
        pending_request: { amount, currency, is_amount_controllable: true },
        status: "pending",
      };
      keep(context.account, authorization);
      emit(context, "issuing_authorization.request", authorization);
      return authorization;
    },
  };
};

/** POST /v1/issuing/authorizations/{id}/approve: `amount`, or what was asked for. */
const approve: Endpoint = (context) => {
  const authorization = authorizationOf(context);
  const amount = amountParam(context.params, "amount");
  const metadata = mergedMetadata(context.params, authorization.metadata);
  return {
    lock: authorization.id,
    run: () => {
      const asked = takeRequest(authorization);
      const { id, currency } = authorization;
      authorization.amount = amount ?? asked;
      authorization.approved = true;
      authorization.metadata = metadata;
      recordMovement(context, {
        kind: "issuing_approval",
        id,
        amount: authorization.amount,
        currency,
        customer: null,
        metadata,
      });
      emit(context, "issuing_authorization.updated", authorization);
      return authorization;
    },
  };
};

const decline: Endpoint = (context) => {
  const authorization = authorizationOf(context);
  return {
    lock: authorization.id,
    run: () => {
      takeRequest(authorization);
      authorization.status = "closed";
      emit(context, "issuing_authorization.updated", authorization);
      return authorization;
    },
  };
};

function takeRequest(authorization: Authorization): number {
  const { pending_request: request } = authorization;
  if (request === null) throw invalidRequest("This authorization is not waiting for an answer.");
  authorization.pending_request = null;
  return request.amount;
}

function authorizationOf(context: Context): Authorization {
  const id = context.ids[0] ?? "";
  const found = collectionOf<Authorization>(context.account, "issuing.authorization").get(id);
  if (found === undefined) throw noSuchObject("issuing.authorization", id);
  return found;
}

export const issuingRoutes: Routes = [
  ["POST", "/v1/test_helpers/issuing/authorizations", requestAuthorization],
  ["POST", "/v1/issuing/authorizations/:id/approve", approve],
  ["POST", "/v1/issuing/authorizations/:id/decline", decline],
];
