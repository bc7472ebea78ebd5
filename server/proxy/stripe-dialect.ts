import { readForm, writeForm } from "./form.ts";
import { type ClientHeaders, linesOf, readHeaders, readToken } from "./headers.ts";
import { readJson } from "./json.ts";
import { type ProxyRefusal, refuse } from "./refusal.ts";
import { findEndpoint } from "./stripe-endpoints.ts";
import { stripeRules } from "./stripe-rules.ts";
import { readTarget } from "./target.ts";
import { fillTemplate, idsIn } from "./template.ts";
import type { Pair, ProxyAnswer, ProxyRequest, RawHead, RequestHead, VendorDialect } from "./vendor.ts";

const bodyBytesMax = 262_144;
const methods: ReadonlySet<string> = new Set(["GET", "POST", "DELETE"]);
const vendorHeaders = ["stripe-version"];
const formType = /^application\/x-www-form-urlencoded(?:[ \t]*;[ \t]*charset=(?:utf-8|"utf-8"))?$/i;
const jsonType = /^application\/json(?:[ \t]*;[ \t]*charset=(?:utf-8|"utf-8"))?$/i;
const versionPattern = /^[0-9]{4}-[0-9]{2}-[0-9]{2}(?:\.[a-z_]{1,32})?(?:; ?[a-z0-9_]{1,64}=v[0-9]{1,3}){0,16}$/;
const accountPattern = /^acct_[A-Za-z0-9]{1,64}$/;
const idPattern = /^[A-Za-z0-9_]{1,255}$/;
// The ids of these can be chosen by whoever makes them.
const chosenIds = /^[A-Z]+ \/v1\/(?:coupons|plans|products|skus)\/:id/;
const chosenIdPattern = /^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,254}$/;
// Ways of clients of old to say who they are and what they mean.
const refusedNames: ReadonlySet<string> = new Set(["api_key", "key"]);

/** How Stripe's requests are read. Prefix "/stripe", for a port that serves several vendors. */
export const stripeDialect: VendorDialect = {
  name: "stripe",
  bodyBytesMax,
  tokenOf: ({ rawHeaders }) => readToken(rawHeaders),
  readHead,
  readBody,
  answerTo,
};

function readHead({ method, target, rawHeaders }: RawHead): RequestHead {
  if (!methods.has(method)) {
    throw refuse(405, "method_not_allowed", "Stripe is asked with GET, POST and DELETE.");
  }
  const { path, query } = readTarget(target, "/stripe");
  const headers = readHeaders(rawHeaders, vendorHeaders);
  const endpoint = findEndpoint(method, path);
  if (endpoint === undefined) {
    throw refuse(404, "unknown_endpoint", "Holdfast knows no such request of Stripe; nothing was sent.");
  }
  const ids = idsIn(endpoint, path);
  checkIds(endpoint, ids);
  const takesBody = method === "POST";
  if (takesBody && query !== "") {
    throw refuse(400, "query_not_allowed", "Send the parameters of a POST in its body.");
  }
  if (!takesBody && headers.announcesBody) {
    throw refuse(400, "unexpected_body", "Send this request without a body.");
  }
  const token = readToken(rawHeaders);
  return {
    method,
    endpoint,
    path: fillTemplate(endpoint, ids),
    ids,
    query: named(readForm(query, "query", stripeRules(endpoint))),
    token,
    idempotencyKey: headers.idempotencyKey,
    spend: headers.spend,
    apiVersion: versionOf(headers),
    account: accountOf(rawHeaders),
    contentType: takesBody ? typeOf(endpoint, headers) : undefined,
    expectsContinue: headers.expectsContinue,
    takesBody,
  };
}

function checkIds(endpoint: string, ids: readonly string[]): void {
  const fits = ids.every((id, at) => (at === 0 && chosenIds.test(endpoint) ? chosenIdPattern : idPattern).test(id));
  if (fits) return;
  throw refuse(400, "invalid_target", "An id in the request path has characters that ids of Stripe do not have.");
}

function versionOf({ vendor }: ClientHeaders): string | undefined {
  const version = vendor.get("stripe-version");
  if (version === undefined || versionPattern.test(version)) return version;
  throw refuse(400, "malformed_header", "Stripe-Version must be a version such as 2025-03-31.basil.", "Stripe-Version");
}

/** Which account is meant is the policy's to allow; here only that it is said in one way. */
function accountOf(rawHeaders: readonly string[]): string {
  const lines = [...linesOf(rawHeaders)];
  const [account, ...more] = lines.filter(([name]) => name === "stripe-account").map(([, value]) => value);
  if (lines.some(([name]) => name === "stripe-context")) throw headerNotAllowed("Stripe-Context");
  if (account === undefined) return "";
  if (more.length === 0 && accountPattern.test(account)) return account;
  throw headerNotAllowed("Stripe-Account");
}

function headerNotAllowed(name: string): ReturnType<typeof refuse> {
  return refuse(403, "header_not_allowed", `No vault key acts for what ${name} says. Leave it out.`, name);
}

/** One type per endpoint, matched as a whole. */
function typeOf(endpoint: string, { contentType, announcesBody }: ClientHeaders): string | undefined {
  if (contentType === undefined && !announcesBody) return undefined;
  const [pattern, type] = isJson(endpoint)
    ? ([jsonType, "application/json"] as const)
    : ([formType, "application/x-www-form-urlencoded"] as const);
  if (contentType !== undefined && pattern.test(contentType)) return type;
  throw refuse(415, "wrong_content_type", `Send the body as ${type}.`, "Content-Type");
}

function isJson(endpoint: string): boolean {
  return endpoint.includes(" /v2/");
}

function readBody(head: RequestHead, body: Uint8Array): ProxyRequest {
  if (body.length === 0) return { ...head, fields: [], body: "" };
  if (!head.takesBody) throw refuse(400, "unexpected_body", "Send this request without a body.");
  if (head.contentType === undefined)
    throw refuse(415, "wrong_content_type", "Say the type of the body.", "Content-Type");
  if (body.length > bodyBytesMax) {
    throw refuse(413, "body_too_large", `Send at most ${bodyBytesMax} bytes.`);
  }
  const rules = stripeRules(head.endpoint);
  if (isJson(head.endpoint)) return { ...head, fields: [], body: readJson(body, rules.closed) };
  const fields = named(readForm(Buffer.from(body).toString("latin1"), "body", rules));
  return { ...head, fields, body: writeForm(fields) };
}

function named(pairs: readonly Pair[]): readonly Pair[] {
  const refused = pairs.find(({ key }) => refusedNames.has(key));
  if (refused === undefined) return pairs;
  throw refuse(400, "parameter_not_allowed", "Send the vault key in the Authorization header only.", refused.key);
}

function answerTo(refusal: ProxyRefusal, requestId: string): ProxyAnswer {
  const { status, code, message, param, retry } = refusal;
  const type =
    code === "idempotency_error" ? "idempotency_error" : status >= 500 ? "api_error" : "invalid_request_error";
  return {
    status,
    headers: {
      "content-type": "application/json",
      "request-id": requestId,
      "stripe-should-retry": retry === true ? "true" : "false",
      ...(status === 401 ? { "www-authenticate": 'Basic realm="Holdfast"' } : {}),
      ...(status === 405 ? { allow: "GET, POST, DELETE" } : {}),
    },
    body: JSON.stringify({ error: { type, code, message, ...(param === undefined ? {} : { param }) } }),
  };
}
