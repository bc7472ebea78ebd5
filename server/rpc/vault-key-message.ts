import { create } from "@bufbuild/protobuf";
import {
  type VaultKey as VaultKeyMessage,
  VaultKeySchema,
  VaultKeyState,
} from "@holdfast/api/holdfast/v1/vault_key_pb";
import { HoldfastError, invalidField } from "../domain/errors.ts";
import type * as domain from "../domain/vault-key.ts";
import { microsFrom, moneyFrom, moneyMessage, timestampMessage } from "./convert.ts";
import { proxyPolicyFrom, proxyPolicyMessage } from "./proxy-policy.ts";
import { shownPath, validateMasked } from "./update-mask.ts";

const stateOf = {
  ACTIVE: VaultKeyState.ACTIVE,
  SUSPENDED: VaultKeyState.SUSPENDED,
  REVOKED: VaultKeyState.REVOKED,
} as const satisfies Record<domain.VaultKeyState, VaultKeyState>;

/** Reads a validated message. Throws INVALID_FIELD. */
export function newVaultKey(vaultKeyId: string, message: VaultKeyMessage | undefined): domain.NewVaultKey {
  if (message === undefined) throw invalidField("vault_key", "is required.");
  return { vaultKeyId, vendor: message.vendor, ...policyFrom(message) };
}

function policyFrom(message: VaultKeyMessage): domain.VaultKeyPolicy {
  const pinned = (list: readonly string[]) => (list.length === 0 ? undefined : [...list]);
  return {
    allowedEndpoints: message.allowedEndpoints,
    billingPeriods: pinned(message.billingPeriods),
    purposes: pinned(message.purposes),
    customers: pinned(message.customers),
    maxPerSpend:
      message.maxPerSpend === undefined ? undefined : moneyFrom(message.maxPerSpend, "vault_key.max_per_spend", true),
    expireTime: message.expireTime === undefined ? undefined : microsFrom(message.expireTime, "vault_key.expire_time"),
    attachedCaps: message.attachedCaps.map((name) => name.replace(/^caps\//, "")),
    labels: { ...message.labels },
    proxy: proxyPolicyFrom(message.proxy),
  };
}

const fieldOfPath = {
  allowed_endpoints: "allowedEndpoints",
  billing_periods: "billingPeriods",
  purposes: "purposes",
  customers: "customers",
  max_per_spend: "maxPerSpend",
  expire_time: "expireTime",
  attached_caps: "attachedCaps",
  labels: "labels",
  proxy: "proxy",
} as const satisfies Record<string, keyof domain.VaultKeyPolicy>;

/** What an update names. Throws INVALID_FIELD; only the fields of the mask are validated, the others are ignored. */
export function updateFrom(
  message: VaultKeyMessage | undefined,
  paths: readonly string[],
): { readonly vaultKeyId: string; readonly etag: string; readonly change: Partial<domain.VaultKeyPolicy> } {
  if (message === undefined) throw invalidField("vault_key", "is required.");
  const vaultKeyId = vaultKeyIdOf(message.name, "vault_key.name");
  const fields = paths.map((path) => {
    if (Object.hasOwn(fieldOfPath, path)) return fieldOfPath[path as keyof typeof fieldOfPath];
    throw invalidField("update_mask", `names ${shownPath(path)}, which cannot be changed; ${maskRemedy}`);
  });
  if (fields.length === 0) throw invalidField("update_mask", `names no field; ${maskRemedy}`);
  const pick = (all: object) =>
    Object.fromEntries(Object.entries(all).filter(([field]) => (fields as string[]).includes(field)));
  validateMasked(VaultKeySchema, Object.assign(create(VaultKeySchema, { vendor: "any" }), pick(message)), "vault_key");
  return { vaultKeyId, etag: message.etag, change: pick(policyFrom(message)) };
}

const maskRemedy = `name ${Object.keys(fieldOfPath).join(", ")}, or create another key.`;

export function vaultKeyIdOf(name: string, field: string): string {
  const match = /^vaultKeys\/([a-z0-9]{1,32})$/.exec(name);
  if (match === null) throw invalidField(field, 'must be a resource name, for example "vaultKeys/nightly".');
  return match[1] as string;
}

/** Throws NOT_FOUND. */
export function requireKey(name: string, key: domain.VaultKey | undefined): domain.VaultKey {
  if (key !== undefined) return key;
  throw new HoldfastError("NOT_FOUND", `There is no vault key ${name}. ListVaultKeys shows which there are.`, {
    metadata: { name },
  });
}

/** Throws STATE_NOT_ALLOWED: what is revoked is revoked for ever. */
export function requireNotRevoked(key: domain.VaultKey): domain.VaultKey {
  if (key.state !== "REVOKED") return key;
  throw new HoldfastError(
    "STATE_NOT_ALLOWED",
    `The vault key vaultKeys/${key.vaultKeyId} is revoked, and for ever; create another key.`,
    { metadata: { name: `vaultKeys/${key.vaultKeyId}`, state: key.state } },
  );
}

export function etagOf(key: domain.VaultKey): string {
  return `v${key.version}`;
}

export function vaultKeyMessage(key: domain.VaultKey): VaultKeyMessage {
  const time = (name: string, micros: bigint | undefined) =>
    micros === undefined ? {} : { [name]: timestampMessage(micros) };
  return create(VaultKeySchema, {
    name: `vaultKeys/${key.vaultKeyId}`,
    vendor: key.vendor,
    allowedEndpoints: [...key.allowedEndpoints],
    billingPeriods: [...(key.billingPeriods ?? [])],
    purposes: [...(key.purposes ?? [])],
    customers: [...(key.customers ?? [])],
    attachedCaps: key.attachedCaps.map((id) => `caps/${id}`),
    labels: { ...key.labels },
    state: stateOf[key.state],
    etag: etagOf(key),
    reason: key.reason,
    createTime: timestampMessage(key.createTime),
    updateTime: timestampMessage(key.updateTime),
    ...(key.maxPerSpend === undefined ? {} : { maxPerSpend: moneyMessage(key.maxPerSpend) }),
    ...(key.proxy === undefined ? {} : { proxy: proxyPolicyMessage(key.proxy) }),
    ...time("expireTime", key.expireTime),
    ...time("suspendTime", key.suspendTime),
    ...time("revokeTime", key.revokeTime),
    ...time("lastUseTime", key.lastUseTime),
    ...time("previousSecretExpireTime", key.previousSecretExpireTime),
  });
}
