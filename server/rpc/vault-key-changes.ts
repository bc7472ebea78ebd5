import type { ServiceImpl } from "@connectrpc/connect";
import { type AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import { HoldfastError } from "../domain/errors.ts";
import { requireFittingProxy, type VendorWrites } from "../domain/proxy-policy.ts";
import type { VaultKey, VaultKeyPolicy, VaultKeyState } from "../domain/vault-key.ts";
import type { Database } from "../store/database.ts";
import { readExposure } from "../store/exposure.ts";
import type { ChangePolicy } from "../store/policy.ts";
import * as store from "../store/vault-key.ts";
import { createToken, type Principal, principalOf, tokenHash } from "./auth.ts";
import { exposureFields, exposureMax } from "./exposure.ts";
import { requireKeyEnd } from "./future.ts";
import { overlapMs } from "./overlap.ts";
import { currentTraceId } from "./trace.ts";
import { requireAttachable } from "./vault-key-creation.ts";
import {
  etagOf,
  requireKey,
  requireNotRevoked,
  updateFrom,
  vaultKeyIdOf,
  vaultKeyMessage,
} from "./vault-key-message.ts";

type VaultKeyChangeMethods = Pick<
  ServiceImpl<typeof AdminService>,
  "updateVaultKey" | "rotateVaultKey" | "suspendVaultKey" | "resumeVaultKey" | "revokeVaultKey"
>;

const kindOf = {
  ACTIVE: "vault_key.resumed",
  SUSPENDED: "vault_key.suspended",
  REVOKED: "vault_key.revoked",
} as const satisfies Record<VaultKeyState, string>;

/** What the proxy's part of a policy has to fit to, and that part itself. */
const fitsProxy: readonly (keyof VaultKeyPolicy)[] = [
  "proxy",
  "allowedEndpoints",
  "billingPeriods",
  "purposes",
  "customers",
];

/** Changing, stopping and ending vault keys. Each returns only after every grant that saw the old policy has ended. */
export function vaultKeyChangeMethods(
  database: Database,
  changePolicy: ChangePolicy,
  random: (size: number) => Uint8Array,
  writes: VendorWrites,
): VaultKeyChangeMethods {
  const moveTo = async (principal: Principal, request: { name: string; reason: string }, state: VaultKeyState) =>
    await changeState(changePolicy, principal, { ...request, state });
  const exposed = async ({ workspace }: Principal, key: VaultKey) => ({
    vaultKey: vaultKeyMessage(key),
    // Read after the change: no grant can be added any more, so this is the whole exposure.
    ...exposureFields(await readExposure(database, workspace, { vaultKeyId: key.vaultKeyId }, exposureMax)),
  });
  return {
    async updateVaultKey(request, context) {
      const principal = principalOf(context.values);
      const paths = request.updateMask?.paths ?? [];
      const { vaultKeyId, etag, change } = updateFrom(request.vaultKey, paths);
      const name = `vaultKeys/${vaultKeyId}`;
      const detail = { vault_key: vaultKeyId, fields: paths, ...change };
      const event = { principal, kind: "vault_key.updated", traceId: currentTraceId() ?? "", detail };
      const updated = await changePolicy(event, async (transaction) => {
        const { workspace } = principal;
        const before = requireNotRevoked(requireKey(name, await store.getVaultKey(transaction, workspace, vaultKeyId)));
        if (etag !== "" && etag !== etagOf(before)) throw etagMismatch(name);
        await requireKeyEnd(transaction, change.expireTime, "vault_key.expire_time");
        await requireAttachable(transaction, workspace, change.attachedCaps ?? []);
        const after = { ...before, ...change };
        if (fitsProxy.some((field) => field in change)) requireFittingProxy(after, writes);
        return requireKey(name, await store.updateVaultKey(transaction, workspace, vaultKeyId, after));
      });
      return { vaultKey: vaultKeyMessage(updated) };
    },
    async rotateVaultKey(request, context) {
      const principal = principalOf(context.values);
      const { workspace } = principal;
      const vaultKeyId = vaultKeyIdOf(request.name, "name");
      const token = createToken("vk", workspace, vaultKeyId, random);
      const change = { secretSha256: tokenHash(token), overlapMs: overlapMs(request.overlap) };
      const detail = { vault_key: vaultKeyId, overlap_ms: change.overlapMs };
      const event = { principal, kind: "vault_key.rotated", traceId: currentTraceId() ?? "", detail };
      const rotated = await changePolicy(event, async (transaction) => {
        const before = await store.getVaultKey(transaction, workspace, vaultKeyId);
        requireNotRevoked(requireKey(request.name, before));
        return requireKey(request.name, await store.rotateVaultKey(transaction, workspace, vaultKeyId, change));
      });
      return { vaultKey: vaultKeyMessage(rotated), token };
    },
    async suspendVaultKey(request, context) {
      const principal = principalOf(context.values);
      return await exposed(principal, await moveTo(principal, request, "SUSPENDED"));
    },
    async resumeVaultKey(request, context) {
      return { vaultKey: vaultKeyMessage(await moveTo(principalOf(context.values), request, "ACTIVE")) };
    },
    async revokeVaultKey(request, context) {
      const principal = principalOf(context.values);
      return await exposed(principal, await moveTo(principal, request, "REVOKED"));
    },
  };
}

interface StateChange {
  readonly name: string;
  readonly reason: string;
  readonly state: VaultKeyState;
}

/** A key that is in that state already stays as it is: the first reason and time count. */
async function changeState(
  changePolicy: ChangePolicy,
  principal: Principal,
  { name, reason, state }: StateChange,
): Promise<VaultKey> {
  const { workspace } = principal;
  const vaultKeyId = vaultKeyIdOf(name, "name");
  const event = {
    principal,
    kind: kindOf[state],
    traceId: currentTraceId() ?? "",
    detail: { vault_key: vaultKeyId, reason },
  };
  return await changePolicy(event, async (transaction, audit) => {
    // The reason of an active key is empty; why it was resumed stands in the audit.
    const change = { state, reason: state === "ACTIVE" ? "" : reason };
    const changed = await store.changeVaultKeyState(transaction, workspace, vaultKeyId, change);
    if (changed !== undefined) return changed;
    audit.unchanged();
    const key = requireKey(name, await store.getVaultKey(transaction, workspace, vaultKeyId));
    return key.state === state ? key : requireNotRevoked(key);
  });
}

function etagMismatch(name: string): HoldfastError {
  return new HoldfastError("ETAG_MISMATCH", `${name} has changed since it was read. Read it again and repeat.`, {
    metadata: { name },
  });
}
