import type { CreateVaultKeyRequest, InlineCap } from "@holdfast/api/holdfast/v1/vault_key_pb";
import type { Cap, NewCap } from "../domain/cap.ts";
import { HoldfastError, invalidField } from "../domain/errors.ts";
import { requireFittingProxy, type VendorWrites } from "../domain/proxy-policy.ts";
import type { CreationRequest } from "../domain/secret.ts";
import type { NewVaultKey, VaultKey } from "../domain/vault-key.ts";
import * as capStore from "../store/cap.ts";
import type { Database } from "../store/database.ts";
import type { ChangePolicy } from "../store/policy.ts";
import * as store from "../store/vault-key.ts";
import { createToken, type Principal, tokenHash } from "./auth.ts";
import { createdDetail, newCap, requireTimeZone } from "./cap-policy.ts";
import { requireSameRequest } from "./creation-request.ts";
import { requireCapEnd, requireKeyEnd } from "./future.ts";
import { currentTraceId } from "./trace.ts";
import { newVaultKey } from "./vault-key-message.ts";

/** A vault key and the caps that are made with it, in one transaction. */
export interface KeyCreation {
  readonly key: NewVaultKey;
  readonly caps: readonly NewCap[];
  /** How the request calls the end of the key, for its refusal. */
  readonly endField: string;
}

export interface KeyCreationParts {
  readonly database: Database;
  readonly changePolicy: ChangePolicy;
  readonly random: (size: number) => Uint8Array;
  readonly writes: VendorWrites;
}

export interface CreatedKey {
  readonly vaultKey: VaultKey;
  readonly caps: readonly Cap[];
  /** Empty where the request is a repeat. */
  readonly token: string;
}

/** Reads a validated request. Throws INVALID_FIELD. */
export function vaultKeyCreation(request: CreateVaultKeyRequest): KeyCreation {
  const key = newVaultKey(request.vaultKeyId, request.vaultKey);
  const caps = request.caps.map((one, index) => inlineCap(one, key.vaultKeyId, `caps[${index}]`));
  return { key, caps, endField: "vault_key.expire_time" };
}

function inlineCap(inline: InlineCap, vaultKeyId: string, place: string): NewCap {
  const cap = placed(place, () => newCap(inline.capId, inline.cap));
  const named = cap.scope.vaultKeyId;
  if (named !== undefined && named !== vaultKeyId) {
    throw invalidField(
      `${place}.cap.scope.vault_key`,
      "must be this key, or empty; make a cap of another key with CreateCap.",
    );
  }
  return inline.cap?.attachedOnly ? cap : { ...cap, scope: { ...cap.scope, vaultKeyId } };
}

/** Names the field as it is called in the whole request. */
function placed<Result>(place: string, read: () => Result): Result {
  try {
    return read();
  } catch (error) {
    const field = error instanceof HoldfastError ? error.metadata["field"] : undefined;
    if (!(error instanceof HoldfastError) || field === undefined) throw error;
    throw new HoldfastError(error.reason, `${place}.${error.message}`, {
      metadata: { ...error.metadata, field: `${place}.${field}` },
      cause: error,
    });
  }
}

/** Makes the key and its caps, or answers a repeat with what it made, without a token. */
export async function createKey(
  parts: KeyCreationParts,
  principal: Principal,
  { key, caps, endField }: KeyCreation,
  request: CreationRequest | undefined,
): Promise<CreatedKey> {
  const { workspace } = principal;
  requireFittingProxy(key, parts.writes);
  for (const [index, cap] of caps.entries()) await requireTimeZone(parts.database, cap, `caps[${index}].cap`);
  const token = createToken("vk", workspace, key.vaultKeyId, parts.random);
  const { vaultKeyId, ...policy } = key;
  const detail = { vault_key: vaultKeyId, ...policy };
  const event = { principal, kind: "vault_key.created", traceId: currentTraceId() ?? "", detail };
  return await parts.changePolicy(event, async (transaction, audit) => {
    const before =
      request === undefined ? undefined : await store.findVaultKeyByRequest(transaction, workspace, request.requestId);
    if (request !== undefined && before !== undefined) {
      requireSameRequest(request, before.sha256, `vaultKeys/${before.vaultKey.vaultKeyId}`);
      audit.unchanged();
      return { vaultKey: before.vaultKey, caps: await capsNow(transaction, workspace, caps), token: "" };
    }
    // After the repeat: what was made in time is answered with for ever.
    await requireKeyEnd(transaction, key.expireTime, endField);
    for (const [index, cap] of caps.entries()) {
      await requireCapEnd(transaction, cap.endTime, `caps[${index}].cap.end_time`);
    }
    const vaultKey = await store.insertVaultKey(transaction, workspace, key, tokenHash(token), request);
    const made: Cap[] = [];
    for (const cap of caps) {
      made.push(await capStore.insertCap(transaction, workspace, cap));
      audit.also("cap.created", createdDetail(cap));
    }
    await requireAttachable(transaction, workspace, key.attachedCaps);
    return { vaultKey, caps: made, token };
  });
}

async function capsNow(transaction: Database, workspace: string, caps: readonly NewCap[]): Promise<Cap[]> {
  const now: Cap[] = [];
  for (const { capId } of caps) {
    const cap = await capStore.getCap(transaction, workspace, capId);
    if (cap !== undefined) now.push(cap);
  }
  return now;
}

/** Throws INVALID_FIELD: only caps that exist, are made to be attached and are not archived can be attached. */
export async function requireAttachable(
  transaction: Database,
  workspace: string,
  capIds: readonly string[],
): Promise<void> {
  if (capIds.length === 0) return;
  const attachable = await store.attachableCaps(transaction, workspace, capIds);
  for (const [index, capId] of capIds.entries()) {
    const problem = problemOf[attachable.get(capId) ?? "MISSING"];
    if (problem === undefined) continue;
    throw invalidField(`vault_key.attached_caps[${index}]`, `names caps/${capId}, which ${problem}; name another cap.`);
  }
}

const problemOf = {
  ATTACHABLE: undefined,
  ARCHIVED: "is archived",
  BY_SCOPE: "is not made with attached_only and so counts by its scope already",
  MISSING: "does not exist",
} as const;
