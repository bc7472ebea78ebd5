import { SpendUnsupportedError } from "./errors.ts";
import { isHarmless } from "./stripe-edit.ts";
import { findStripeEndpoint, type StripeEndpoint, unknownWrite } from "./stripe-endpoints.ts";
import { type Plan, planOf } from "./stripe-plan.ts";
import { fieldValue, type FormField, parseBody } from "./stripe-request.ts";

/** A write, and what the guard does with it. */
export interface Route {
  readonly endpoint: StripeEndpoint;
  readonly plan: Plan;
  readonly path: string;
  readonly query: string;
  readonly fields: readonly FormField[];
}

/** Decides by method, path and parameters alone. Throws a SpendUnsupportedError on what must not be sent. */
export function routeStripeRequest(
  method: string,
  target: string,
  data: unknown,
  allow: ReadonlySet<string> = new Set(),
): Route {
  const [path = "", ...queries] = target.split("?");
  const endpoint = findStripeEndpoint(method, path);
  if (endpoint === undefined) throw unknownWrite(method, path);
  const query = queries.length === 0 ? "" : `?${queries.join("?")}`;
  const plan: Plan = allow.has(endpoint.endpoint) ? { flow: "pass" } : planOf(endpoint);
  const marked = !allow.has(endpoint.endpoint) && isOfMarked(endpoint.endpoint, path);
  if (plan.flow === "pass" && !marked) return { endpoint, plan, path, query, fields: [] };
  const fields = parametersOf(endpoint.endpoint, method, query, data);
  if (marked) checkMark(endpoint.endpoint, fields);
  if (plan.flow === "pass" || isHarmless(endpoint.endpoint, fields))
    return { endpoint, plan: { flow: "pass" }, path, query, fields };
  if (plan.flow === "named") throw notAllowed(endpoint.endpoint);
  checkFields(endpoint.endpoint, fields);
  return { endpoint, plan, path, query, fields };
}

function parametersOf(endpoint: string, method: string, query: string, data: unknown): readonly FormField[] {
  const body = data === null || data === undefined ? "" : data;
  if (typeof body !== "string" || (query !== "" && (method !== "DELETE" || body !== ""))) {
    throw new SpendUnsupportedError(endpoint, "has parameters outside its body", "Send them in the body.");
  }
  return parseBody(endpoint, query === "" ? body : query.slice(1));
}

function notAllowed(endpoint: string): SpendUnsupportedError {
  return new SpendUnsupportedError(
    endpoint,
    "can redirect or trigger money and has no amount that could be held",
    `If the application needs it, let it past the guard by name: holdfast.stripe(client, { allow: ["${endpoint}"] }).`,
  );
}

/** Whether the write changes an object of a kind that the guard puts its metadata on. */
function isOfMarked(endpoint: string, path: string): boolean {
  if (!/^POST .*\/:id$/.test(endpoint)) return false;
  const collection = findStripeEndpoint("POST", path.slice(0, path.lastIndexOf("/")));
  const plan = collection === undefined ? undefined : planOf(collection);
  return plan?.flow === "intent" || (plan?.flow === "one_call" && plan.metadata);
}

// An empty parent clears all metadata, that of the guard with it.
const MARK = /^(?:invoice_)?metadata(?:\[holdfast_authorization\].*)?$/;

/** Throws a SpendUnsupportedError on what would take away or forge the metadata by which an object is found again. */
function checkMark(endpoint: string, fields: readonly FormField[]): void {
  if (fields.some(({ key }) => MARK.test(key))) {
    throw new SpendUnsupportedError(
      endpoint,
      "sets metadata that the guard needs",
      "Leave holdfast_authorization out, and clear metadata key by key.",
    );
  }
}

/** Throws a SpendUnsupportedError on parameters that the guard could not make safe. */
function checkFields(endpoint: string, fields: readonly FormField[]): void {
  checkMark(endpoint, fields);
  const restricts = fields.some(({ key }) => key.startsWith("restrictions"));
  if (endpoint === "POST /v1/payment_links" || (endpoint === "POST /v1/payment_links/:id" && restricts)) {
    requireLimit(endpoint, fields);
  }
  if (endpoint === "POST /v1/checkout/sessions") refuseRecovery(endpoint, fields);
}

/** A recovered session is a new one, which can be paid when the hold of the expired one was given back. */
function refuseRecovery(endpoint: string, fields: readonly FormField[]): void {
  const enabled = fieldValue(fields, "after_expiration[recovery][enabled]");
  if (enabled === undefined || enabled === "false") return;
  throw new SpendUnsupportedError(
    endpoint,
    "with a recovery can be paid after it has expired",
    "Leave after_expiration.recovery out, and create a new session for a customer who comes back.",
  );
}

/** A link without a limit can be paid any number of times, which no hold covers. */
function requireLimit(endpoint: string, fields: readonly FormField[]): void {
  const limit = fieldValue(fields, "restrictions[completed_sessions][limit]");
  if (limit !== undefined && /^[1-9][0-9]*$/.test(limit)) return;
  throw new SpendUnsupportedError(
    endpoint,
    "without a limit can be paid any number of times",
    "Set restrictions: { completed_sessions: { limit: … } }, and upTo to what all of them may bring in.",
  );
}
