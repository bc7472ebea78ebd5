import { invalidField } from "../domain/errors.ts";

const pageSizeDefault = 50;

/** The page size to use for a validated request. */
export function pageSize(requested: number): number {
  return requested === 0 ? pageSizeDefault : requested;
}

/** An opaque token that says where the next page of a listing begins. */
export function encodePageToken(listing: string, parts: readonly string[]): string {
  return Buffer.from(JSON.stringify([listing, ...parts]), "utf8").toString("base64url");
}

/**
 * The parts of a page token; undefined for the first page. Throws INVALID_FIELD for a token that we did not make for
 * this listing. `field` is where the token was.
 */
export function decodePageToken(
  listing: string,
  token: string,
  length: number,
  field: "page_token" | "resume_token" = "page_token",
): readonly string[] | undefined {
  if (token === "") return undefined;
  try {
    const parts: unknown = JSON.parse(Buffer.from(token, "base64url").toString("utf8"));
    if (Array.isArray(parts) && parts.length === length + 1 && parts.every(isPart) && parts[0] === listing) {
      return parts.slice(1);
    }
  } catch {
    // Falls through to the refusal: what was wrong inside the token is of no use to the caller.
  }
  const source = field === "page_token" ? "next_page_token of the page before" : "one that was given for going on";
  throw invalidField(field, `is not one of ours; take ${source}, or leave it empty.`);
}

/** Cuts a page out of rows that were read with one more than `size`. */
export function cutPage<Row>(
  listing: string,
  rows: readonly Row[],
  size: number,
  keyOf: (last: Row) => readonly string[],
): { readonly rows: readonly Row[]; readonly nextPageToken: string } {
  const last = rows[size - 1];
  if (rows.length <= size || last === undefined) return { rows, nextPageToken: "" };
  return { rows: rows.slice(0, size), nextPageToken: encodePageToken(listing, keyOf(last)) };
}

/** Ids and numbers only: a text with a NUL, for example, would be an error of the database. */
function isPart(part: unknown): part is string {
  return typeof part === "string" && /^[ -~]*$/.test(part);
}
