import { RefusedRequest } from "../../../server/proxy/refusal.ts";
import { stripeDialect } from "../../../server/proxy/stripe-dialect.ts";
import type { ProxyRequest, RawHead } from "../../../server/proxy/vendor.ts";

export const formType = "application/x-www-form-urlencoded";

/** Header lines as Node hands them over. */
export function lines(...headers: readonly (readonly [name: string, value: string])[]): readonly string[] {
  return headers.flat();
}

/** A whole request with the headers that every client sends, and those of `more` behind them. */
export function request(
  method: string,
  target: string,
  body: string | Uint8Array = "",
  more: readonly string[] = [],
): { readonly head: RawHead; readonly body: Uint8Array } {
  const bytes = Buffer.from(body);
  const type = target.startsWith("/v2/") ? "application/json" : formType;
  const framing = bytes.length === 0 ? [] : ["Content-Length", String(bytes.length)];
  const hasType = more.some((name, at) => at % 2 === 0 && name.toLowerCase() === "content-type");
  const rawHeaders = [
    "Host",
    "127.0.0.1",
    "Authorization",
    "Bearer hf_token",
    ...(hasType ? [] : ["Content-Type", type]),
    ...framing,
    ...more,
  ];
  return { head: { method, target, rawHeaders }, body: bytes };
}

/** Reads a request to its end. @throws RefusedRequest */
export function read({ head, body }: { readonly head: RawHead; readonly body: Uint8Array }): ProxyRequest {
  stripeDialect.tokenOf(head);
  return stripeDialect.readBody(stripeDialect.readHead(head), body);
}

/** "400 invalid_target", with the parameter behind it where one is named; "accepted" where nothing is refused. */
export function verdict(whole: { readonly head: RawHead; readonly body: Uint8Array }): string {
  try {
    read(whole);
    return "accepted";
  } catch (error) {
    if (!(error instanceof RefusedRequest)) throw error;
    const { status, code, param } = error.refusal;
    return `${status} ${code}${param === undefined ? "" : ` ${param}`}`;
  }
}
