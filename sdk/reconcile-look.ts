import type { DecimalMoney } from "./money.ts";
import type { Found, StripeReader } from "./reconcile-stripe.ts";
import { findStripeEndpoint } from "./stripe-endpoints.ts";
import { FAMILIES, type ObjectFamily, text } from "./stripe-object.ts";
import { planOf } from "./stripe-plan.ts";
import { isRecord } from "./stripe-send.ts";

type StripeObject = Readonly<Record<string, unknown>>;

/** What a reconciliation has to know of an authorization. */
export interface Reconcilable {
  /** The last part of its name, "05e0…29f5-1": what our metadata carries. */
  readonly mark: string;
  /** Method and path template. */
  readonly endpoint: string;
  /** A connected account, or empty. */
  readonly vendorAccount: string;
  /** The bound or committed object, or empty. */
  readonly vendorReference: string;
  readonly idempotencyKey: string;
  readonly held: DecimalMoney | undefined;
  /** Seconds since 1970, on the control plane's clock. */
  readonly grantedAtS: number;
  /** An earlier, complete look has shown nothing. */
  readonly wasAbsent: boolean;
}

/** What one run knows of the vendor. */
export interface Looking {
  readonly reader: StripeReader;
  /** What was listed already, by account and path. */
  readonly lists: Map<string, Promise<Found<readonly StripeObject[]>>>;
}

/** Where the object of an endpoint is looked for. */
export interface Place {
  readonly family: ObjectFamily | undefined;
  /** Our metadata travels on the object, so that a list shows whose it is. */
  readonly marked: boolean;
}

export function placeOf({ endpoint: name }: Pick<Reconcilable, "endpoint">): Place {
  const [method = "", path = ""] = name.split(" ");
  const endpoint = findStripeEndpoint(method, path.replaceAll(":id", "x"));
  const plan = endpoint === undefined ? undefined : planOf(endpoint);
  switch (plan?.flow) {
    case "intent":
      return { family: FAMILIES.payment_intent, marked: true };
    case "step":
    case "edit":
    case "release":
      return { family: FAMILIES[plan.family], marked: false };
    case "one_call":
      return {
        family: plan.family === undefined ? undefined : FAMILIES[plan.family],
        marked: plan.metadata,
      };
    default:
      return { family: undefined, marked: false };
  }
}

/** What was looked at, and what was found. */
export interface Look {
  readonly found: Found<StripeObject>;
  readonly note: string;
  /** Only our mark says whose object it is, and whoever may write to Stripe can copy a mark. */
  readonly byMark?: true;
}

/** Finds the authorization's object: by its bound reference, by the event of its key, by its metadata. */
export async function look(run: Looking, all: readonly Reconcilable[], authorization: Reconcilable): Promise<Look> {
  const { family, marked } = placeOf(authorization);
  const { vendorReference, vendorAccount } = authorization;
  if (family === undefined) return byEvent(run, all, authorization, family);
  if (vendorReference !== "") {
    const found = await readFamilyObject(run.reader, family, vendorReference, vendorAccount);
    return { found, note: `read ${vendorReference}` };
  }
  const event = await byEvent(run, all, authorization, family);
  if (event.found.kind === "found" || !marked) return event;
  return byMetadata(run, all, authorization, family);
}

// Neither clock is trusted: a list that begins after the charge would show it absent, and absence gives headroom back.
const SKEW_S = 36 * 3_600;

function listed(run: Looking, path: string, query: Readonly<Record<string, string>>, account: string) {
  const key = `${account} ${path}`;
  const known = run.lists.get(key) ?? run.reader.list(path, query, account);
  run.lists.set(key, known);
  return known;
}

/** From when on the unsettled authorizations of an account can have objects, in seconds. One list serves all of them. */
function since(all: readonly Reconcilable[], account: string): number {
  const times = all.filter(({ vendorAccount }) => vendorAccount === account).map(({ grantedAtS }) => grantedAtS);
  return Math.floor(Math.min(...times)) - SKEW_S;
}

async function byEvent(
  run: Looking,
  all: readonly Reconcilable[],
  { vendorAccount, idempotencyKey }: Reconcilable,
  family: ObjectFamily | undefined,
): Promise<Look> {
  const from = since(all, vendorAccount);
  const events = await listed(run, "/v1/events", { "created[gte]": String(from) }, vendorAccount);
  if (events.kind !== "found") return { found: { kind: "unreadable", why: whyOf(events) }, note: "events" };
  // One request may have caused events about several objects, such as a subscription's invoice and its charge.
  const object = events.value
    .filter(({ request }) => isRecord(request) && request["idempotency_key"] === idempotencyKey)
    .map(({ data }) => (isRecord(data) && isRecord(data["object"]) ? data["object"] : {}))
    .find((candidate) => family === undefined || isOf(family, candidate));
  if (object === undefined) return { found: { kind: "unreadable", why: "no event shows the key" }, note: "events" };
  const id = text(object, "id");
  if (family === undefined) return { found: { kind: "found", value: object }, note: `an event of ${id}` };
  // The event shows the object as it was; what counts is what it is.
  return { found: await readFamilyObject(run.reader, family, id, vendorAccount), note: `an event of ${id}` };
}

/** Whether an object is of the family: "checkout.session" belongs to "/v1/checkout/sessions". */
function isOf(family: ObjectFamily, object: StripeObject): boolean {
  const name = text(object, "object").split(".").at(-1) ?? "";
  return name !== "" && family.collection.endsWith(`/${name}s`);
}

/** Reads an object of a family, with everything that judging it needs. */
export function readFamilyObject(
  reader: StripeReader,
  { collection, readQuery }: ObjectFamily,
  id: string,
  account: string,
): Promise<Found<StripeObject>> {
  const query = readQuery === undefined ? "" : `?${readQuery}`;
  return reader.object(`${collection}/${encodeURIComponent(id)}${query}`, account);
}

/** The authorization that an object's metadata names, or empty. */
export function markOf(object: StripeObject): string {
  const metadata = object["metadata"];
  return isRecord(metadata) ? text(metadata, "holdfast_authorization") : "";
}

async function byMetadata(
  run: Looking,
  all: readonly Reconcilable[],
  { vendorAccount, mark }: Reconcilable,
  family: ObjectFamily,
): Promise<Look> {
  const from = since(all, vendorAccount);
  const query = { ...family.listQuery, ...(family.unlisted === true ? {} : { "created[gte]": String(from) }) };
  const rows = await listed(run, family.collection, query, vendorAccount);
  const note = `all of ${family.collection} since ${new Date(from * 1000).toISOString()}`;
  if (rows.kind !== "found") return { found: { kind: "unreadable", why: whyOf(rows) }, note };
  const [object, ...others] = rows.value.filter((row) => markOf(row) === mark);
  if (others.length > 0) return { found: { kind: "unreadable", why: "several objects carry our mark" }, note };
  if (object === undefined) return { found: { kind: "absent" }, note };
  if (family.readQuery === undefined) return { found: { kind: "found", value: object }, note, byMark: true };
  const found = await readFamilyObject(run.reader, family, text(object, "id"), vendorAccount);
  return { found, note, byMark: true };
}

function whyOf(found: Found<unknown>): string {
  return found.kind === "unreadable" ? found.why : "not there";
}
