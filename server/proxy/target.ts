import { refuse } from "./refusal.ts";

/** A target in its parts. Nothing in the path needs decoding, so no two parsers can read it differently. */
export interface Target {
  /** "/v1/charges/ch_1", made of segments of letters, digits, '_', '-' and '.'. */
  readonly path: string;
  /** What stands behind the '?', undecoded; empty without one. */
  readonly query: string;
}

const bytesMax = 8_192;
// One slash more at the end is no other way to write a path: it is a path that no vendor has.
const pathPattern = /^(?:\/|(?:\/[A-Za-z0-9_.-]+)+\/?)$/;
const dotSegment = /\/\.{1,2}(?:\/|$)/;
const queryPattern = /^[!"$-~]*$/;

/**
 * Reads a request target as it stands in the request line: an absolute path and a query. It is never resolved against
 * anything: a target that needs that (another host, dot segments, escapes, backslashes, a fragment) is refused with 400
 * `invalid_target`, one that is longer than 8 KiB with 414. `prefix`, such as "/stripe", is taken off where it stands.
 */
export function readTarget(target: string, prefix: string): Target {
  if (Buffer.byteLength(target) > bytesMax) {
    throw refuse(414, "uri_too_long", "The request target is longer than 8 KiB.");
  }
  const at = target.indexOf("?");
  const path = at < 0 ? target : target.slice(0, at);
  const query = at < 0 ? "" : target.slice(at + 1);
  if (!pathPattern.test(path) || dotSegment.test(path) || !queryPattern.test(query)) {
    throw refuse(
      400,
      "invalid_target",
      "The request target must be a path of plain segments and a query: no escapes, dot segments or empty segments in " +
        "the path, no other host, no fragment.",
    );
  }
  return { path: path.startsWith(`${prefix}/`) ? path.slice(prefix.length) : path, query };
}
