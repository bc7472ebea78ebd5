import type { Answer, Authorize, CounterName, CreateCap, CreateVaultKey, Enforcement } from "./command.ts";
import type { World } from "./model-world.ts";
import { windowBounds } from "./model-window.ts";

export interface Cap {
  readonly rule: CreateCap;
  limit: bigint;
  restores: boolean;
  enforcement: Enforcement;
  archived: boolean;
}

export interface Counter {
  readonly name: CounterName;
  committed: bigint;
  held: bigint;
}

export interface VaultKey {
  readonly policy: CreateVaultKey;
  suspended: boolean;
  revoked: boolean;
}

export function endpointMatches(template: string, endpoint: string): boolean {
  const wanted = template.split("/");
  const given = endpoint.split("/");
  return (
    wanted.length === given.length &&
    wanted.every((segment, i) => segment === given[i] || (segment.startsWith(":") && given[i] !== ""))
  );
}

const pins = (list: readonly string[], value: string): boolean => list.length === 0 || list.includes(value);

/** What a vault key's policy looks at. */
export type Asked = Pick<Authorize, "vendor" | "endpoint" | "period" | "purpose" | "customer" | "currency" | "amount">;

/** The rule of the vault key that denies a request, in the order in which the rules are judged. */
export function keyDenial(key: VaultKey, request: Asked, now: number): string | null {
  const { policy } = key;
  if (key.revoked) return "VAULT_KEY_REVOKED";
  if (key.suspended) return "VAULT_KEY_SUSPENDED";
  if (policy.expireTime !== null && now >= policy.expireTime) return "VAULT_KEY_EXPIRED";
  if (policy.vendor !== request.vendor) return "VENDOR";
  if (!policy.endpoints.some((template) => endpointMatches(template, request.endpoint))) return "ENDPOINT";
  if (!pins(policy.periods, request.period)) return "BILLING_PERIOD";
  if (!pins(policy.purposes, request.purpose)) return "PURPOSE";
  if (!pins(policy.customers, request.customer)) return "CUSTOMER";
  if (policy.maxPerSpend === null) return null;
  if (policy.maxPerSpend.currency !== request.currency) return "CURRENCY";
  return request.amount > policy.maxPerSpend.amount ? "MAX_PER_SPEND" : null;
}

type Scoped = Pick<Authorize, "key" | "vendor" | "endpoint" | "customer" | "purpose" | "direction">;

function capMatches(world: World, cap: Cap, request: Authorize): boolean {
  const attached = world.keys.get(request.key)?.policy.attachedCaps ?? [];
  return (
    world.rules.counts(cap, world.now) &&
    (!cap.rule.attachedOnly || attached.includes(cap.rule.cap)) &&
    inScope(cap.rule, request)
  );
}

/** Whether the direction and all set fields of a cap's scope match. */
export function inScope({ scope, direction }: CreateCap, request: Scoped): boolean {
  return (
    direction === request.direction &&
    (scope.key === undefined || scope.key === request.key) &&
    (scope.vendor === undefined || scope.vendor === request.vendor) &&
    (scope.endpoint === undefined || endpointMatches(scope.endpoint, request.endpoint)) &&
    (scope.customer === undefined || scope.customer === request.customer) &&
    (scope.purpose === undefined || scope.purpose === request.purpose)
  );
}

/** The caps that a request draws on, by id in byte order: that order decides which cap is named in a denial. */
export function matchingCaps(world: World, request: Authorize): readonly Cap[] {
  return [...world.caps.values()]
    .filter((cap) => capMatches(world, cap, request))
    .toSorted((a, b) => (a.rule.cap < b.rule.cap ? -1 : 1));
}

/** The counter of a cap for a request granted now. It comes into being when it is first looked at. */
export function counterOf(world: World, cap: Cap, request: Authorize): Counter {
  const { rule } = cap;
  const window = world.rules.label(world, rule, request.period);
  return counterNamed(world, { cap: rule.cap, window, customer: rule.perCustomer ? request.customer : "" });
}

export function counterNamed(world: World, name: CounterName): Counter {
  const id = `${name.cap}|${name.window}|${name.customer}`;
  let counter = world.counters.get(id);
  if (counter === undefined) {
    counter = { name, committed: 0n, held: 0n };
    world.counters.set(id, counter);
  }
  return counter;
}

/** Committed, held and headroom of a counter, as GetCap and a denial show them. */
export function usageOf(cap: Cap, counter: Counter): Answer {
  return {
    error: null,
    committed: counter.committed,
    held: counter.held,
    headroom: cap.limit - counter.committed - counter.held,
  };
}

/** What one spend takes from a cap. */
export function takes(cap: Cap, request: Authorize): bigint {
  return cap.rule.currency === null ? 1n : request.amount;
}

/** What a dry run says of every cap that the request draws on. */
export function draws(world: World, request: Authorize, caps: readonly Cap[]): string {
  const drawn = caps.map((cap) => {
    const counter = counterOf(world, cap, request);
    const { start, end } = windowBounds(cap.rule, counter.name.window);
    const rule = capDenial(world, cap, request)?.["rule"] ?? "fits";
    const taken = rule === "CURRENCY" || rule === "BILLING_PERIOD_NOT_PINNED" ? "" : takes(cap, request);
    const { window, customer } = counter.name;
    const figures = [cap.limit, counter.committed, counter.held, cap.limit - counter.committed - counter.held, taken];
    return [cap.rule.cap, cap.enforcement, rule, window, customer, start, end, ...figures].join(" ");
  });
  return drawn.join("; ");
}

/** The denial of one cap, or null if the request fits. */
export function capDenial(world: World, cap: Cap, request: Authorize): Answer | null {
  const { rule } = cap;
  const denied = (name: string): Answer => ({ ...denial(name), cap: rule.cap });
  const key = world.keys.get(request.key);
  if (rule.window === "BILLING_PERIOD" && key?.policy.periods.length === 0) return denied("BILLING_PERIOD_NOT_PINNED");
  if (rule.currency !== null && rule.currency !== request.currency) return denied("CURRENCY");
  const more = takes(cap, request);
  return counterDenial(world, cap, counterOf(world, cap, request), { total: request.amount, more });
}

/** The denial of one counter of a cap, or null: one spend may hold `total`, and `more` than now must fit. */
export function counterDenial(
  world: World,
  cap: Cap,
  counter: Counter,
  asked: { readonly total: bigint; readonly more: bigint },
): Answer | null {
  const { rule } = cap;
  if (rule.maxPerSpend !== null && asked.total > rule.maxPerSpend) {
    return { ...denial("MAX_PER_SPEND"), cap: rule.cap };
  }
  if (world.rules.fits(cap, counter, asked.more)) return null;
  const bounds = windowBounds(rule, counter.name.window);
  return {
    ...denial("CAP_HEADROOM"),
    cap: rule.cap,
    ...usageOf(cap, counter),
    limit: cap.limit,
    shortBy: asked.more - (cap.limit - counter.committed - counter.held),
    window: counter.name.window,
    windowStart: bounds.start,
    windowEnd: bounds.end,
  };
}

export function denial(rule: string): Answer {
  return { error: null, disposition: "DENIED", rule, cap: null, name: null };
}
