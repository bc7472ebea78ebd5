import { findStripeEndpoint } from "@holdfast/sdk/stripe-vendor";
import { SpendUnsupportedError } from "@holdfast/sdk";
import { parseBody } from "../../sdk/stripe-request.ts";
import { writeForm } from "../../server/proxy/form.ts";
import { STRIPE_PARAMETERS } from "../../server/proxy/stripe-parameters.ts";
import type { Pair, ProxyRequest, VendorDialect } from "../../server/proxy/vendor.ts";
import type { FuzzedRequest } from "./generate.ts";
import { flatPairs, formReaders, headerReaders, readJsonLike, type Reading } from "./readers.ts";

/** What is wrong about having accepted a request: whoever reads it otherwise than it was read. Undefined if nothing is. */
export function outsidePolicy(dialect: VendorDialect, sent: FuzzedRequest, found: ProxyRequest): string | undefined {
  return (
    wrongTarget(sent, found) ??
    wrongHeaders(sent, found) ??
    (found.endpoint.startsWith("POST /v2/") ? wrongJson(sent, found) : wrongParameters(sent, found)) ??
    wrongRebuilt(dialect, sent, found)
  );
}

function wrongTarget({ head }: FuzzedRequest, found: ProxyRequest): string | undefined {
  if (head.method !== found.method) return `the method is read as ${found.method}`;
  const url = new URL(head.target, "http://proxy.test");
  if (url.host !== "proxy.test" || url.hash !== "") return `URL reads another host or a fragment: ${url.href}`;
  const { pathname } = url;
  if (pathname !== found.path && pathname !== `/stripe${found.path}`) return `URL reads the path ${pathname}`;
  if (decodeURIComponent(pathname) !== pathname) return "the path has escapes";
  if (head.method === "GET") return undefined;
  const known = findStripeEndpoint(head.method, found.path)?.endpoint;
  return known === found.endpoint ? undefined : `the SDK reads the endpoint ${known}`;
}

/** Whoever takes the first, the last or all of a header's lines reads the same. */
function wrongHeaders({ head }: FuzzedRequest, found: ProxyRequest): string | undefined {
  const read: Readonly<Record<string, string | undefined>> = {
    "idempotency-key": found.idempotencyKey,
    "holdfast-spend": found.spend,
    "stripe-account": found.account === "" ? undefined : found.account,
    "stripe-context": undefined,
    "stripe-version": found.apiVersion,
  };
  for (const [reader, valueOf] of Object.entries(headerReaders)) {
    for (const [name, value] of Object.entries(read)) {
      const other = valueOf(valuesOf(head.rawHeaders, name));
      if (other !== value) return `whoever takes ${reader} reads ${name} as ${other}`;
    }
    const credentials = valueOf(valuesOf(head.rawHeaders, "authorization"));
    if (tokenOf(credentials) !== found.token) return `whoever takes ${reader} reads the credentials ${credentials}`;
    const type = valueOf(valuesOf(head.rawHeaders, "content-type"));
    const wanted = found.endpoint.includes(" /v2/") ? "application/json" : "application/x-www-form-urlencoded";
    if (found.body !== "" && type?.split(";")[0]?.trim().toLowerCase() !== wanted) return `the type is ${type}`;
  }
  return undefined;
}

function valuesOf(rawHeaders: readonly string[], name: string): readonly string[] {
  return rawHeaders.filter((_, at) => at % 2 === 1 && rawHeaders[at - 1]?.toLowerCase() === name);
}

function tokenOf(credentials: string | undefined): string | undefined {
  if (credentials === undefined) return undefined;
  const [scheme = "", value = ""] = credentials.split(/ +/);
  if (scheme.toLowerCase() === "bearer") return value;
  return Buffer.from(value, "base64").toString("latin1").split(":")[0];
}

function wrongParameters({ head, body }: FuzzedRequest, found: ProxyRequest): string | undefined {
  const at = head.target.indexOf("?");
  const inQuery = at < 0 ? "" : head.target.slice(at + 1);
  return differs(inQuery, found.query, found.endpoint) ?? differs(body, found.fields, found.endpoint);
}

/** Another reading of the same text, with what is folded on purpose folded. */
function differs(text: string, pairs: readonly Pair[], endpoint: string): string | undefined {
  const ours = readingOf(pairs);
  const isGuarded = STRIPE_PARAMETERS[endpoint] !== undefined;
  for (const [reader, readIt] of Object.entries(formReaders)) {
    let theirs: Reading;
    try {
      theirs = readIt(text);
    } catch (error) {
      return `${reader} throws ${String(error)}`;
    }
    for (const place of new Set([...ours.keys(), ...theirs.keys()])) {
      if (isFree(place)) continue;
      const [here, there] = [ours.get(place), theirs.get(place)];
      if (here === there || (isGuarded && here === there?.toLowerCase())) continue;
      if (isLenient(reader) && !(isGuarded ? decides : names).has(place)) continue;
      return `${reader} reads ${place} as ${JSON.stringify(there)} and not as ${JSON.stringify(here)}`;
    }
  }
  return undefined;
}

function readingOf(pairs: readonly Pair[]): Reading {
  return flatPairs(
    pairs.map(({ key, value }) => [key, value]),
    "all",
  );
}

function isLenient(reader: string): boolean {
  return reader.startsWith("a reader");
}

/** Lists and groups with numbers for names are the same to some readers, and only here can such names come. */
function isFree(place: string): boolean {
  return /(?:^|\.)(?:metadata|payload)\.\d/.test(place);
}

/** What says whose object a request is about. */
const names: ReadonlySet<string> = new Set([
  "charge",
  "customer",
  "invoice",
  "on_behalf_of",
  "payment_intent",
  "payment_method",
  "subscription",
]);

/** What decides about money besides. */
const decides: ReadonlySet<string> = new Set([
  ...names,
  "amount",
  "amount_to_capture",
  "amount_to_confirm",
  "application_fee_amount",
  "capture",
  "confirm",
  "currency",
  "final_capture",
  "paid_out_of_band",
]);

function wrongJson({ body }: FuzzedRequest, found: ProxyRequest): string | undefined {
  if (body === "" && found.body === "") return undefined;
  const text = Buffer.from(body, "latin1").toString("utf8");
  for (const which of ["first", "last"] as const) {
    for (const folds of [false, true]) {
      const theirs = JSON.stringify([...readJsonLike(text, which, folds)]);
      const ours = JSON.stringify([...readJsonLike(found.body, which, folds)]);
      if (theirs !== ours) return `whoever takes the ${which} of two members reads ${theirs} and not ${ours}`;
    }
  }
  return undefined;
}

/** What goes upstream is read by everybody as it was meant, and by us as what it was. */
function wrongRebuilt(dialect: VendorDialect, { head }: FuzzedRequest, found: ProxyRequest): string | undefined {
  if (!/^[\x20-\x7e]*$/.test(found.path + (found.endpoint.includes(" /v2/") ? "" : found.body)))
    return "it is not ASCII";
  const query = writeForm(found.query);
  const target = query === "" ? found.path : `${found.path}?${query}`;
  const sent = { head: { ...head, target }, body: Buffer.from(found.body).toString("latin1") };
  const again = dialect.readBody(dialect.readHead(sent.head), Buffer.from(found.body));
  if (JSON.stringify(again) !== JSON.stringify(found)) return "what is sent is read as another request";
  if (found.endpoint.includes(" /v2/")) return wrongJson(sent, found);
  return wrongParameters(sent, found) ?? wrongInSdk(found);
}

/** The guard reads the body once more: the same, or it refuses. */
function wrongInSdk({ endpoint, method, query, fields, body }: ProxyRequest): string | undefined {
  if (method === "GET") return undefined;
  const pairs = method === "POST" ? fields : query;
  try {
    const read = parseBody(endpoint, method === "POST" ? body : writeForm(query));
    const theirs = read.map(({ key, value }) => ({ key, value }));
    return JSON.stringify(theirs) === JSON.stringify(pairs) ? undefined : `the SDK reads ${JSON.stringify(theirs)}`;
  } catch (error) {
    return error instanceof SpendUnsupportedError ? undefined : `the SDK throws ${String(error)}`;
  }
}
