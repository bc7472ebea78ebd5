import { endpointAllowed } from "./endpoint.ts";
import { invalidField } from "./errors.ts";

/** Where the proxy reads the identity of a spend at one endpoint. The period is always the key's own. */
export interface DerivedIdentity {
  /** A write of the vendor as its template, for example "POST /v1/charges/:id/capture". */
  readonly endpoint: string;
  /** "body.customer", "body.metadata[name]" or "fixed:…". */
  readonly customer: string;
  /** "fixed:…", "body.metadata[name]" or "body.<name>". */
  readonly purpose: string;
}

/** What the HTTP proxy lets a vault key do. */
export interface ProxyPolicy {
  readonly identities: readonly DerivedIdentity[];
  readonly retryDeclinedAfterMs: number;
  readonly keylessEndpoints: readonly string[];
  readonly apiVersions: readonly string[];
  readonly connectedAccounts: readonly string[];
  readonly objectAccess: "OWN" | "ANY";
  readonly allowLists: boolean;
  readonly allowExpand: boolean;
  readonly unguardedEndpoints: readonly string[];
  readonly keepDeclined: boolean;
}

/** Of a key that has none. */
export const defaultProxyPolicy: ProxyPolicy = {
  identities: [],
  retryDeclinedAfterMs: 86_400_000,
  keylessEndpoints: [],
  apiVersions: [],
  connectedAccounts: [],
  objectAccess: "OWN",
  allowLists: false,
  allowExpand: false,
  unguardedEndpoints: [],
  keepDeclined: false,
};

/** Of a key's policy what the proxy's has to fit to. */
interface KeyPolicy {
  readonly vendor: string;
  readonly allowedEndpoints: readonly string[];
  readonly billingPeriods: readonly string[] | undefined;
  readonly purposes: readonly string[] | undefined;
  readonly customers: readonly string[] | undefined;
  readonly proxy?: ProxyPolicy | undefined;
}

/** What a vendor's writes are fit for. Each answers with what is wrong, as words that follow its place; else undefined. */
export interface VendorWrites {
  /** With being a spend: it has to be a write that the vendor has, under exactly this template. */
  spendProblem(vendor: string, endpoint: string): string | undefined;
  /** With being let past the guard by name. */
  unguardedProblem(vendor: string, endpoint: string): string | undefined;
}

/**
 * Whether the proxy's part of a policy fits the rest of it, after a change to either. Throws INVALID_FIELD, which names
 * the proxy's field also where the rest was changed.
 */
export function requireFittingProxy(policy: KeyPolicy, writes: VendorWrites): void {
  const { proxy } = policy;
  if (proxy === undefined) return;
  if (proxy.identities.length > 0 && policy.billingPeriods?.length !== 1) {
    throw invalidField(
      "vault_key.proxy.identities",
      "need the period of their spends from the key; set exactly one in billing_periods, or take the identities away.",
    );
  }
  for (const index of proxy.identities.keys()) requireFittingIdentity(policy, proxy, index, writes);
  for (const [index, endpoint] of proxy.keylessEndpoints.entries()) {
    const place = `vault_key.proxy.keyless_endpoints[${index}]`;
    requireAllowed(policy, endpoint, place, writes.spendProblem(policy.vendor, endpoint));
    if (proxy.identities.some((identity) => identity.endpoint === endpoint)) {
      throw invalidField(place, "is an endpoint whose identity is derived; take one of the two away.");
    }
  }
  for (const [index, endpoint] of proxy.unguardedEndpoints.entries()) {
    const place = `vault_key.proxy.unguarded_endpoints[${index}]`;
    requireAllowed(policy, endpoint, place, writes.unguardedProblem(policy.vendor, endpoint));
  }
}

function requireFittingIdentity(policy: KeyPolicy, proxy: ProxyPolicy, index: number, writes: VendorWrites): void {
  const place = `vault_key.proxy.identities[${index}]`;
  const identity = proxy.identities[index];
  if (identity === undefined) return;
  const { endpoint } = identity;
  requireAllowed(policy, endpoint, `${place}.endpoint`, writes.spendProblem(policy.vendor, endpoint));
  if (proxy.identities.findIndex((other) => other.endpoint === endpoint) !== index) {
    throw invalidField(`${place}.endpoint`, "has an identity already; give one per endpoint.");
  }
  for (const [field, pinned] of [
    ["customer", policy.customers],
    ["purpose", policy.purposes],
  ] as const) {
    const [, fixed] = /^fixed:(.*)$/.exec(identity[field]) ?? [];
    if (fixed !== undefined && pinned?.includes(fixed) === false) {
      throw invalidField(`${place}.${field}`, `is none of the key's ${field}s; add it there, or give another one.`);
    }
  }
}

function requireAllowed(policy: KeyPolicy, endpoint: string, place: string, problem: string | undefined): void {
  if (problem !== undefined) throw invalidField(place, problem);
  if (!endpointAllowed(policy.allowedEndpoints, endpoint)) {
    throw invalidField(place, "is denied by allowed_endpoints; add it there, or take it away here.");
  }
}
