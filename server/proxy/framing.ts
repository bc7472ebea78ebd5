import type { ProxyLimits } from "./listener-limits.ts";
import type { ProxyRefusal } from "./refusal.ts";
import type { RawHead } from "./vendor.ts";

/** How many bytes of body follow a head. */
export type BodyLength = number | "chunked";

export interface FramingRules extends Pick<ProxyLimits, "headersMax" | "targetBytesMax"> {
  /** Lower-case host names that clients may mean, without a port. Without them any. */
  readonly names?: ReadonlySet<string>;
}

/**
 * Where a request ends and for whom it is, on the lines as they came: Node takes the first of two, drops what is beyond
 * its limits, and accepts codings that another server on the way may read differently. What can be read in two ways is
 * refused; that parser already refuses two lengths, a length beside a coding, and malformed ones.
 */
export function readFraming(head: RawHead, httpVersion: string, rules: FramingRules): BodyLength | ProxyRefusal {
  if (head.rawHeaders.length / 2 > rules.headersMax) {
    return refusal(431, "too_many_headers", `Send at most ${rules.headersMax} header lines.`);
  }
  if (Buffer.byteLength(head.target) > rules.targetBytesMax) {
    return refusal(414, "uri_too_long", `Send a request target of at most ${rules.targetBytesMax} bytes.`);
  }
  const found = new Map<string, string[]>([
    ["host", []],
    ["content-length", []],
    ["transfer-encoding", []],
  ]);
  for (let at = 0; at < head.rawHeaders.length; at += 2) {
    found.get((head.rawHeaders[at] ?? "").toLowerCase())?.push(head.rawHeaders[at + 1] ?? "");
  }
  return hostProblem(found.get("host") ?? [], rules.names) ?? lengthOf(found, httpVersion);
}

function hostProblem(hosts: readonly string[], names: ReadonlySet<string> | undefined): ProxyRefusal | undefined {
  const [host] = hosts;
  if (host === undefined || hosts.length > 1) {
    return refusal(400, "invalid_host", "Send exactly one Host header.", "Host");
  }
  // Its only use: nothing is routed, judged or addressed by what a client calls this server.
  if (names === undefined || names.has(host.toLowerCase().replace(/:\d{1,5}$/, ""))) return undefined;
  return refusal(421, "unknown_host", "This server does not answer for that Host; use one of its names.", "Host");
}

function lengthOf(found: ReadonlyMap<string, readonly string[]>, httpVersion: string): BodyLength | ProxyRefusal {
  const codings = found.get("transfer-encoding") ?? [];
  const lengths = found.get("content-length") ?? [];
  if (codings.length > 0) {
    const isChunked = codings.length === 1 && codings[0]?.toLowerCase() === "chunked";
    if (isChunked && lengths.length === 0 && httpVersion === "1.1") return "chunked";
  } else if (lengths.length === 0) {
    return 0;
  } else if (lengths.length === 1 && /^\d{1,15}$/.test(lengths[0] ?? "")) {
    return Number(lengths[0]);
  }
  return refusal(
    400,
    "invalid_framing",
    "Send the body with one Content-Length, or with Transfer-Encoding: chunked and nothing else.",
  );
}

function refusal(status: ProxyRefusal["status"], code: string, message: string, param?: string): ProxyRefusal {
  return { status, code, message, ...(param === undefined ? {} : { param }) };
}
