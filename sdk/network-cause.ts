/**
 * What the system said about a connection, in a few words: "connect ECONNREFUSED 127.0.0.1:443", "self-signed
 * certificate (DEPTH_ZERO_SELF_SIGNED_CERT)". Undefined for errors of any other kind, whose text may be anything.
 */
export function networkCause(error: unknown): string | undefined {
  if (!(error instanceof Error)) return undefined;
  const { message, code, cause, errors } = error as Error & { code?: unknown; errors?: unknown };
  // Several addresses were tried: the first failure speaks for all.
  if (Array.isArray(errors)) for (const one of errors) return networkCause(one) ?? networkCause(cause);
  if (typeof code === "string" && /^[A-Z][A-Z0-9_]+$/.test(code)) {
    const text = printable(message);
    return text === "" || text.includes(code) ? text || code : `${text} (${code})`;
  }
  // fetch and RPC clients wrap the reason.
  return cause === error ? undefined : networkCause(cause);
}

const TEXT_MAX = 200;

function printable(text: string): string {
  return text
    .replaceAll(/[^ -~]/g, " ")
    .slice(0, TEXT_MAX)
    .trim();
}
