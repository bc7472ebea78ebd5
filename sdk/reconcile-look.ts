import { timestampMs } from "@bufbuild/protobuf/wkt";
import type { Authorization } from "@holdfast/api/holdfast/v1/spend_pb";
import type { Found, StripeReader } from "./reconcile-stripe.ts";
import { findStripeEndpoint } from "./stripe-endpoints.ts";
import { FAMILIES, type ObjectFamily, text } from "./stripe-object.ts";
import { planOf } from "./stripe-plan.ts";
import { isRecord } from "./stripe-send.ts";

type StripeObject = Readonly<Record<string, unknown>>;

/** What one run knows of the vendor. */
export interface Looking {
  readonly reader: StripeReader;
  /** What was listed already, by account and path. */
  readonly lists: Map<string, Promise<Found<readonly StripeObject[]>>>;
}

/** An authorization, and where its object is looked for. */
export interface Subject {
  readonly authorization: Authorization;
  readonly family: ObjectFamily | undefined;
  /** Our metadata travels on the object, so that a list shows whose it is. */
  readonly marked: boolean;
}

export function subjectOf(authorization: Authorization): Subject {
  const [method = "", path = ""] = authorization.endpoint.split(" ");
  const endpoint = findStripeEndpoint(method, path.replaceAll(":id", "x"));
  const plan = endpoint === undefined ? undefined : planOf(endpoint);
  switch (plan?.flow) {
    case "intent":
      return { authorization, family: FAMILIES.payment_intent, marked: true };
    case "step":
    case "edit":
    case "release":
      return { authorization, family: FAMILIES[plan.family], marked: false };
    case "one_call":
      return {
        authorization,
        family: plan.family === undefined ? undefined : FAMILIES[plan.family],
        marked: plan.metadata,
      };
    default:
      return { authorization, family: undefined, marked: false };
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
export async function look(run: Looking, all: readonly Authorization[], subject: Subject): Promise<Look> {
  const { authorization, family } = subject;
  const { vendorReference, vendorAccount } = authorization;
  if (family === undefined) return byEvent(run, all, subject);
  if (vendorReference !== "") {
    const found = await readObject(run, family, vendorReference, vendorAccount);
    return { found, note: `read ${vendorReference}` };
  }
  const event = await byEvent(run, all, subject);
  if (event.found.kind === "found" || !subject.marked) return event;
  return byMetadata(run, all, subject, family);
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
function since(all: readonly Authorization[], account: string): number {
  const times = all
    .filter(({ vendorAccount }) => vendorAccount === account)
    .map(({ grantTime }) => (grantTime === undefined ? Number.POSITIVE_INFINITY : timestampMs(grantTime) / 1000));
  return Math.floor(Math.min(...times)) - SKEW_S;
}

async function byEvent(run: Looking, all: readonly Authorization[], { authorization, family }: Subject): Promise<Look> {
  const { vendorAccount, idempotencyKey } = authorization;
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
  return { found: await readObject(run, family, id, vendorAccount), note: `an event of ${id}` };
}

/** Whether an object is of the family: "checkout.session" belongs to "/v1/checkout/sessions". */
function isOf(family: ObjectFamily, object: StripeObject): boolean {
  const name = text(object, "object").split(".").at(-1) ?? "";
  return name !== "" && family.collection.endsWith(`/${name}s`);
}

function readObject(run: Looking, { collection, readQuery }: ObjectFamily, id: string, account: string) {
  const query = readQuery === undefined ? "" : `?${readQuery}`;
  return run.reader.object(`${collection}/${encodeURIComponent(id)}${query}`, account);
}

async function byMetadata(
  run: Looking,
  all: readonly Authorization[],
  { authorization }: Subject,
  family: ObjectFamily,
): Promise<Look> {
  const from = since(all, authorization.vendorAccount);
  const rows = await listed(run, family.collection, { "created[gte]": String(from) }, authorization.vendorAccount);
  const note = `all of ${family.collection} since ${new Date(from * 1000).toISOString()}`;
  if (rows.kind !== "found") return { found: { kind: "unreadable", why: whyOf(rows) }, note };
  const mark = authorization.name.slice("authorizations/".length);
  const ours = rows.value.filter((row) => {
    const metadata = row["metadata"];
    return isRecord(metadata) && metadata["holdfast_authorization"] === mark;
  });
  const [object, ...others] = ours;
  if (others.length > 0) return { found: { kind: "unreadable", why: "several objects carry our mark" }, note };
  if (object === undefined) return { found: { kind: "absent" }, note };
  if (family.readQuery === undefined) return { found: { kind: "found", value: object }, note, byMark: true };
  const found = await readObject(run, family, text(object, "id"), authorization.vendorAccount);
  return { found, note, byMark: true };
}

function whyOf(found: Found<unknown>): string {
  return found.kind === "unreadable" ? found.why : "not there";
}
