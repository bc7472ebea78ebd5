import { createHash } from "node:crypto";
import type { SpendOption } from "@holdfast/sdk";
import type { ProxyPolicy } from "../domain/proxy-policy.ts";
import { refuse } from "./refusal.ts";
import type { Pair, ProxyRequest } from "./vendor.ts";

/** How a request says which spend it is. */
export interface Identity {
  readonly kind: /** In the Holdfast-Spend header or in the metadata. */
    | "stated"
    /** By the vault key's policy, whatever key the client sent. */
    | "derived"
    /** By the client's own idempotency key. */
    | "client_key"
    /** Not at all: every request is a spend of its own. */
    | "keyless";
  readonly spend: SpendOption;
}

/** What of a vault key decides about identities. */
export interface IdentityRules {
  readonly vaultKeyId: string;
  /** The periods the key may spend in; undefined for any. */
  readonly billingPeriods: readonly string[] | undefined;
  readonly proxy: Pick<ProxyPolicy, "identities" | "keylessEndpoints">;
}

/** Stands for the period where nothing names one. */
const noPeriod = "-";

/**
 * Which spend a request is: as the key's policy derives it, else as the request states it, else by its idempotency key,
 * else, where the policy lets that through, a new one each time. Undefined where there is none of that. Refuses a
 * statement that is malformed, made twice or contradicts the policy. `random` gives 32 hex digits.
 */
export function identify(request: ProxyRequest, rules: IdentityRules, random: () => string): Identity | undefined {
  const stated = statedSpend(request);
  const derived = derivedSpend(request, rules);
  if (derived !== undefined) {
    const differs = (["customerId", "billingPeriod", "purpose"] as const).find(
      (name) => stated?.[name] !== undefined && stated[name] !== derived[name],
    );
    if (differs !== undefined) {
      throw refuse(
        400,
        "identity_conflict",
        `The request states another ${words[differs]} than the vault key's policy derives for ${request.endpoint}. ` +
          "Leave the statement out, or ask for a key without a derived identity.",
        "Holdfast-Spend",
      );
    }
    return { kind: "derived", spend: { ...stated, ...derived } };
  }
  const own = ownSpend(request, rules, random);
  if (stated === undefined) return own;
  const { customerId, purpose, billingPeriod = onlyPeriod(rules), ...rest } = stated;
  if (customerId !== undefined && purpose !== undefined && billingPeriod !== undefined) {
    return { kind: "stated", spend: { ...rest, customerId, billingPeriod, purpose } };
  }
  // What a spend may cost and which try it is may be said without saying which spend it is.
  if (customerId === undefined && purpose === undefined && stated.billingPeriod === undefined) {
    return own === undefined ? undefined : { kind: own.kind, spend: { ...rest, ...own.spend } };
  }
  throw refuse(
    400,
    "incomplete_identity",
    "A spend needs a customer, a period and a purpose: send Holdfast-Spend: customer=…; period=…; purpose=…, or " +
      "metadata[holdfast_customer], metadata[holdfast_period] and metadata[holdfast_purpose].",
    "Holdfast-Spend",
  );
}

const words = { customerId: "customer", billingPeriod: "period", purpose: "purpose" } as const;

function onlyPeriod({ billingPeriods }: IdentityRules): string | undefined {
  return billingPeriods?.length === 1 ? billingPeriods[0] : undefined;
}

function ownSpend(request: ProxyRequest, rules: IdentityRules, random: () => string): Identity | undefined {
  const spend = { customerId: rules.vaultKeyId, billingPeriod: onlyPeriod(rules) ?? noPeriod };
  if (request.idempotencyKey !== undefined) {
    const purpose = `key:${createHash("sha256").update(request.idempotencyKey, "utf8").digest("hex")}`;
    return { kind: "client_key", spend: { ...spend, purpose } };
  }
  if (!rules.proxy.keylessEndpoints.includes(request.endpoint)) return undefined;
  return { kind: "keyless", spend: { ...spend, purpose: `keyless:${random()}` } };
}

function derivedSpend(request: ProxyRequest, rules: IdentityRules): SpendOption | undefined {
  const rule = rules.proxy.identities.find(({ endpoint }) => endpoint === request.endpoint);
  if (rule === undefined) return undefined;
  const billingPeriod = onlyPeriod(rules);
  // The policy is not accepted without one; a key that lost it since must not charge under another name.
  if (billingPeriod === undefined) {
    throw refuse(
      403,
      "identity_without_period",
      "The vault key's policy derives the spend, and the key must then have exactly one billing period. Ask an operator.",
    );
  }
  const customerId = valueOf(rule.customer, request, "customer", identityPattern);
  const purpose = valueOf(rule.purpose, request, "purpose", purposePattern);
  return { customerId, billingPeriod, purpose };
}

const identityPattern = /^[!-9;-~]{1,128}$/;
const purposePattern = /^[!-~]{1,128}$/;

function valueOf(source: string, { fields }: ProxyRequest, word: string, pattern: RegExp): string {
  if (source.startsWith("fixed:")) return source.slice("fixed:".length);
  const name = source.slice("body.".length);
  const value = fields.find(({ key }) => key === name)?.value;
  if (value !== undefined && pattern.test(value)) return value;
  throw refuse(
    400,
    value === undefined ? "identity_missing" : "malformed_identity",
    `The vault key's policy takes the spend's ${word} from ${name}: send it, as up to 128 visible ASCII characters` +
      `${word === "customer" ? " without ':'" : ""}.`,
    name,
  );
}

type Stated = Partial<SpendOption>;

function statedSpend(request: ProxyRequest): Stated | undefined {
  const inHeader = request.spend === undefined ? undefined : readSpendHeader(request.spend);
  const inMetadata = readMetadata(request.fields);
  if (inHeader === undefined || inMetadata === undefined) return inHeader ?? inMetadata;
  throw refuse(
    400,
    "identity_conflict",
    "The spend is stated in the Holdfast-Spend header and in the metadata; state it in one place.",
    "Holdfast-Spend",
  );
}

/** `customer=…; period=…; purpose=…; up_to=12.50 usd; retry_after_generation=1`, each at most once, in any order. */
function readSpendHeader(header: string): Stated {
  const found = new Map<string, string>();
  for (const part of header.split(";").map((text) => text.trim())) {
    const at = part.indexOf("=");
    const name = part.slice(0, Math.max(at, 0));
    if (at < 1 || found.has(name) || !Object.hasOwn(readers, name)) throw malformed("Holdfast-Spend");
    found.set(name, part.slice(at + 1));
  }
  return statedOf(found, () => "Holdfast-Spend");
}

function readMetadata(fields: readonly Pair[]): Stated | undefined {
  const found = new Map(
    Object.keys(readers).flatMap((name) => {
      const field = fields.find(({ key }) => key === `metadata[holdfast_${name}]`);
      return field === undefined ? [] : [[name, field.value] as const];
    }),
  );
  return found.size === 0 ? undefined : statedOf(found, (name) => `metadata[holdfast_${name}]`);
}

function statedOf(found: ReadonlyMap<string, string>, where: (name: string) => string): Stated {
  const stated: Stated[] = [...found].map(([name, value]) => {
    const part = readers[name as keyof typeof readers](value);
    if (part === undefined) throw malformed(where(name));
    return part;
  });
  return Object.assign({}, ...stated) as Stated;
}

const readers = {
  customer: (value: string) => (identityPattern.test(value) ? { customerId: value } : undefined),
  period: (value: string) => (identityPattern.test(value) ? { billingPeriod: value } : undefined),
  purpose: (value: string) => (purposePattern.test(value) ? { purpose: value } : undefined),
  up_to(value: string) {
    const [, amount, currency] = /^([0-9]{1,13}(?:\.[0-9]{1,6})?) ([a-z]{3})$/.exec(value) ?? [];
    return amount === undefined || currency === undefined ? undefined : { upTo: { amount, currency } };
  },
  retry_after_generation: (value: string) =>
    /^[1-9][0-9]{0,6}$/.test(value) ? { retryAfterGeneration: Number(value) } : undefined,
} satisfies Record<string, (value: string) => Stated | undefined>;

function malformed(where: string) {
  return refuse(
    400,
    "malformed_identity",
    "A spend is stated as customer=…; period=…; purpose=…, where it costs more than the request says with up_to=12.50 " +
      "usd, and for another try with retry_after_generation=1. Each value is up to 128 visible ASCII characters.",
    where,
  );
}
