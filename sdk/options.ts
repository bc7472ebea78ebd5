import type { Transport } from "@connectrpc/connect";
import { checkFunction, checkNumber, refuseUnknown } from "./option-check.ts";
import type { Clock, Random, Timers } from "./runtime.ts";
import { checkTls, type TlsOptions } from "./tls.ts";

/** Settings of `createHoldfast`. A wrong one is a TypeError that names it. */
export interface HoldfastOptions {
  /**
   * Address of the control plane, for example "https://holdfast.internal:8443". Required unless `transport` is given.
   * "http://" is for a server on the same machine; see `allowPlaintext`.
   */
  readonly baseUrl?: string;
  /** The token of a vault key, "vk_…". It is sent with every call, also over a `transport`. */
  readonly vaultKey: string;
  /**
   * Lets an "http://" address be another machine, for example a service of the same compose network. False by default:
   * the vault key and every amount would be readable on the way.
   */
  readonly allowPlaintext?: boolean;
  /** For an "https://" address with an authority of its own, or a server that asks for a certificate (mTLS). */
  readonly tls?: TlsOptions;
  /** How long one call waits for the control plane and for other attempts, in milliseconds, up to 10 min. 30 s by default. */
  readonly timeoutMs?: number;
  /** How long a grant lasts, in milliseconds, 5 s to 24 h. 10 min by default. */
  readonly holdMs?: number;
  /** How long one call tries to get the vendor's answer, in milliseconds. 30 s by default; at most a third of `holdMs`. */
  readonly vendorDeadlineMs?: number;
  /** How long the vendor surely remembers a key, in milliseconds, at most 23 h, which is the default. */
  readonly resendSafeForMs?: number;
  /**
   * How many spends may wait for the control plane's answer at the same time; one more is refused at once with a
   * HoldfastOverloadedError. The same number of settlements may wait to be delivered: they are all kept, and new spends
   * are refused until there are fewer. A spend that waits for another attempt does not count. 10,000 by default.
   */
  readonly maxQueued?: number;
  /**
   * Instead of gRPC over HTTP/2 to `baseUrl`, for example `createGrpcJsTransport` of "@holdfast/sdk/grpc-js". Whoever
   * made it closes it.
   */
  readonly transport?: Transport;
  /**
   * Learns of what no caller waits for: settlements that could not be delivered for long or at all, refusals of settled
   * spends, and how aborted calls failed. Ignored by default. What it throws is ignored.
   */
  readonly onBackgroundError?: (error: unknown) => void;
  /** Milliseconds that only grow. For tests. */
  readonly clock?: Clock;
  /** For tests. */
  readonly timers?: Timers;
  /** For tests. */
  readonly random?: Random;
}

const PROPERTIES = {
  baseUrl: true,
  vaultKey: true,
  allowPlaintext: true,
  tls: true,
  timeoutMs: true,
  holdMs: true,
  vendorDeadlineMs: true,
  resendSafeForMs: true,
  maxQueued: true,
  transport: true,
  onBackgroundError: true,
  clock: true,
  timers: true,
  random: true,
} as const satisfies Record<keyof HoldfastOptions, true>;

const RESEND_SAFE_FOR_MAX_MS = 23 * 3_600_000;
const HOLD_MIN_MS = 5_000;
const HOLD_MAX_MS = 24 * 3_600_000;
const TIMEOUT_MAX_MS = 600_000;
const QUEUED_MAX = 1_000_000;
const VENDOR_DEADLINES_PER_HOLD = 3;

export interface Settings {
  readonly timeoutMs: number;
  readonly holdMs: number;
  readonly vendorDeadlineMs: number;
  readonly resendSafeForMs: number;
  readonly maxQueued: number;
}

/** Throws a TypeError that names the first wrong option and says what to do. */
export function checkOptions(options: HoldfastOptions): Settings {
  refuseUnknown("the options of createHoldfast", options, PROPERTIES);
  checkAddress(options);
  checkVaultKey(options.vaultKey, options.transport !== undefined);
  checkFunction("onBackgroundError", options.onBackgroundError);
  const {
    timeoutMs = 30_000,
    holdMs = 600_000,
    vendorDeadlineMs = 30_000,
    resendSafeForMs = RESEND_SAFE_FOR_MAX_MS,
    maxQueued = 10_000,
  } = options;
  const unit = "milliseconds";
  checkNumber("timeoutMs", timeoutMs, { min: 1, max: TIMEOUT_MAX_MS, unit });
  checkNumber("holdMs", holdMs, { min: HOLD_MIN_MS, max: HOLD_MAX_MS, unit });
  checkNumber("vendorDeadlineMs", vendorDeadlineMs, { min: 1, max: HOLD_MAX_MS, unit });
  checkNumber("resendSafeForMs", resendSafeForMs, { min: 1, max: RESEND_SAFE_FOR_MAX_MS, unit });
  checkNumber("maxQueued", maxQueued, { min: 1, max: QUEUED_MAX, unit: "spends", whole: true });
  if (vendorDeadlineMs * VENDOR_DEADLINES_PER_HOLD > holdMs) {
    throw new TypeError(
      `holdMs (${holdMs}) must be at least three times vendorDeadlineMs (${vendorDeadlineMs}), so that a slow vendor ` +
        "call ends while its hold is surely running. Raise holdMs or lower vendorDeadlineMs.",
    );
  }
  return { timeoutMs, holdMs, vendorDeadlineMs, resendSafeForMs, maxQueued };
}

function checkAddress({ baseUrl, transport, tls, allowPlaintext }: HoldfastOptions): void {
  if (allowPlaintext !== undefined && typeof allowPlaintext !== "boolean") {
    throw new TypeError("allowPlaintext must be true or false.");
  }
  if (transport !== undefined) {
    if (typeof transport.unary !== "function")
      throw new TypeError("transport must be a Transport of @connectrpc/connect.");
    if (tls !== undefined) throw new TypeError("tls has no effect beside transport; give it to the transport.");
    return;
  }
  const url = parseUrl(baseUrl);
  if (url.protocol === "https:") {
    if (tls !== undefined) checkTls(tls);
    return;
  }
  if (tls !== undefined) throw new TypeError('tls needs a baseUrl that begins with "https://".');
  if (allowPlaintext !== true && !isLoopback(url.hostname)) {
    throw new TypeError(
      `baseUrl ${url.origin} is plain HTTP to another machine: the vault key would be readable on the way. Use ` +
        '"https://", or set allowPlaintext: true where the network itself is private.',
    );
  }
}

function parseUrl(baseUrl: unknown): URL {
  const wanted = 'baseUrl must be the address of the control plane, for example "https://holdfast.internal:8443"';
  if (typeof baseUrl !== "string" || !URL.canParse(baseUrl)) {
    throw new TypeError(`${wanted}; got ${typeof baseUrl === "string" ? JSON.stringify(baseUrl) : typeof baseUrl}.`);
  }
  const url = new URL(baseUrl);
  if (url.protocol !== "http:" && url.protocol !== "https:") {
    throw new TypeError(`${wanted}; ${url.protocol} is not understood. Begin it with "https://".`);
  }
  if (url.username !== "" || url.password !== "" || url.search !== "" || url.hash !== "") {
    throw new TypeError(`${wanted}, without a user, a query or a fragment. The token goes into vaultKey.`);
  }
  if (url.pathname !== "/") {
    throw new TypeError(
      `${wanted}; the path ${JSON.stringify(url.pathname)} is not understood, as gRPC has paths of its own. Use ` +
        `${JSON.stringify(url.origin)}; behind a gateway give Holdfast a host name or a port instead of a path.`,
    );
  }
  return url;
}

function isLoopback(hostname: string): boolean {
  return /^(localhost|.+\.localhost|127(\.\d{1,3}){3}|\[::1\])$/.test(hostname);
}

// The server's form of a token, whose secret has at least 32 characters; a shorter one is refused there.
const TOKEN = /^vk_[a-z0-9]{1,32}_[a-z0-9]{1,32}_[A-Za-z0-9]{1,128}$/;

/** No message shows the token. Over a transport of the caller's own the token may be of another kind. */
function checkVaultKey(vaultKey: unknown, anyForm: boolean): void {
  const remedy = "Create one with CreateVaultKey; it is shown once.";
  if (typeof vaultKey !== "string" || vaultKey === "") {
    throw new TypeError(`vaultKey must be the token of a vault key, "vk_…"; it is missing or empty. ${remedy}`);
  }
  if (anyForm ? /^[!-~]+$/.test(vaultKey) : TOKEN.test(vaultKey)) return;
  const found = vaultKey.startsWith("op_")
    ? "this is an operator's token, which may not spend"
    : "this one is malformed, perhaps cut or with a line end";
  throw new TypeError(`vaultKey must be the token of a vault key, "vk_…"; ${found}. ${remedy}`);
}
