import { refuse } from "./refusal.ts";

/** What is read of a client's headers. Everything else is dropped: no byte of it goes upstream. */
export interface ClientHeaders {
  readonly contentType: string | undefined;
  readonly idempotencyKey: string | undefined;
  readonly spend: string | undefined;
  /** The vendor's own headers that are looked at, by lower-case name. */
  readonly vendor: ReadonlyMap<string, string>;
  /** The client waits for a go-ahead before it sends the body. */
  readonly expectsContinue: boolean;
  /** A body follows, or may follow. */
  readonly announcesBody: boolean;
}

const spendBytesMax = 1_024;
const visible = /^[\t\x20-\x7e]*$/;
// What the vendors take at most.
const keyPattern = /^[\x21-\x7e](?:[\x20-\x7e]{0,253}[\x21-\x7e])?$/;

/**
 * Reads headers as they came, line by line: Node joins, drops and cuts repeated ones. Of what is looked at, each may be
 * sent once. `vendorHeaders` are lower-case names.
 */
export function readHeaders(rawHeaders: readonly string[], vendorHeaders: readonly string[]): ClientHeaders {
  const found = new Map<string, string>();
  const weighed = new Set([
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "holdfast-spend",
    "idempotency-key",
    "transfer-encoding",
    ...vendorHeaders,
  ]);
  for (const [name, value] of linesOf(rawHeaders)) {
    if (!weighed.has(name)) continue;
    if (found.has(name)) throw repeated(name);
    if (!visible.test(value)) throw malformed(name);
    found.set(name, value);
  }
  checkCoding(found);
  const idempotencyKey = found.get("idempotency-key");
  if (idempotencyKey !== undefined && !keyPattern.test(idempotencyKey)) throw malformed("idempotency-key");
  const spend = found.get("holdfast-spend");
  if (spend !== undefined && spend.length > spendBytesMax) throw malformed("holdfast-spend");
  return {
    contentType: found.get("content-type"),
    idempotencyKey,
    spend,
    vendor: new Map([...found].filter(([name]) => vendorHeaders.includes(name))),
    expectsContinue: found.has("expect"),
    announcesBody: found.has("transfer-encoding") || !/^0*$/.test(found.get("content-length") ?? ""),
  };
}

/** Names in lower case and values, line by line. */
export function* linesOf(rawHeaders: readonly string[]): Generator<readonly [name: string, value: string]> {
  for (let at = 0; at < rawHeaders.length; at += 2) {
    yield [(rawHeaders[at] ?? "").toLowerCase(), (rawHeaders[at + 1] ?? "").replace(/^[\t ]+|[\t ]+$/g, "")];
  }
}

function checkCoding(found: ReadonlyMap<string, string>): void {
  const coding = found.get("content-encoding")?.toLowerCase() ?? "identity";
  if (coding !== "identity") throw refuse(415, "encoded_body", "Send the body as it is, without Content-Encoding.");
  const expect = found.get("expect")?.toLowerCase() ?? "100-continue";
  if (expect !== "100-continue") {
    throw refuse(417, "unknown_expectation", "Leave the Expect header out, or send 100-continue.", "Expect");
  }
}

function repeated(name: string): ReturnType<typeof refuse> {
  const status = name === "content-type" || name === "content-encoding" ? 415 : 400;
  return refuse(status, "duplicate_header", `Send the header ${name} once.`, name);
}

function malformed(name: string): ReturnType<typeof refuse> {
  return refuse(400, "malformed_header", `The value of ${name} must be visible ASCII, and no longer than usual.`, name);
}

const bearerPattern = /^bearer +([\x21-\x7e]+)$/i;
const basicPattern = /^basic +([A-Za-z0-9+/]+={0,2})$/i;
const userPattern = /^[\x21-\x39\x3b-\x7e]+$/;

/** The token in the Authorization header, undefined without one. Two of them, or what is no token, are refused with 401. */
export function readToken(rawHeaders: readonly string[]): string | undefined {
  const values = [...linesOf(rawHeaders)].filter(([name]) => name === "authorization").map(([, value]) => value);
  if (values.length > 1) {
    throw refuse(401, "ambiguous_credentials", "Send one Authorization header.", "Authorization");
  }
  const [value] = values;
  if (value === undefined) return undefined;
  const token = bearerPattern.exec(value)?.[1] ?? userOf(basicPattern.exec(value)?.[1] ?? "");
  if (token !== undefined) return token;
  throw refuse(
    401,
    "malformed_credentials",
    "Send the vault key as a bearer token, or as the user name of Basic with an empty password.",
    "Authorization",
  );
}

/** A password would silently not be checked, so there must be none. */
function userOf(basic: string): string | undefined {
  const bytes = Buffer.from(basic, "base64");
  // Node drops what is left over; another decoder may not.
  if (bytes.toString("base64").replace(/=+$/, "") !== basic.replace(/=+$/, "")) return undefined;
  const [user = "", password = "", ...rest] = bytes.toString("latin1").split(":");
  return userPattern.test(user) && password === "" && rest.length === 0 ? user : undefined;
}
