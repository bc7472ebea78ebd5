import { create } from "@bufbuild/protobuf";
import type { ServiceImpl } from "@connectrpc/connect";
import { type AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import {
  type VaultKey as VaultKeyMessage,
  VaultKeySchema,
  VaultKeyState,
} from "@holdfast/api/holdfast/v1/vault_key_pb";
import { HoldfastError, invalidField } from "../domain/errors.ts";
import type { NewVaultKey, VaultKey } from "../domain/vault-key.ts";
import type { Database } from "../store/database.ts";
import type { ChangePolicy } from "../store/policy.ts";
import * as store from "../store/vault-key.ts";
import { createToken, principalOf, tokenHash } from "./auth.ts";
import { authorizationMessage, microsFrom, moneyFrom, moneyMessage, timestampMessage } from "./convert.ts";
import { cutPage, decodePageToken, pageSize } from "./page.ts";
import { currentTraceId } from "./trace.ts";

type VaultKeyMethods = Pick<
  ServiceImpl<typeof AdminService>,
  "createVaultKey" | "getVaultKey" | "listVaultKeys" | "revokeVaultKey"
>;

const openAuthorizationsMax = 1000;

export function vaultKeyMethods(
  database: Database,
  changePolicy: ChangePolicy,
  random: (size: number) => Uint8Array,
): VaultKeyMethods {
  return {
    async createVaultKey(request, context) {
      const principal = principalOf(context.values);
      const key = newVaultKey(request.vaultKeyId, request.vaultKey);
      const token = createToken("vk", principal.workspace, key.vaultKeyId, random);
      const created = await changePolicy(
        { principal, kind: "vault_key.created", traceId: currentTraceId() ?? "", detail: { ...key } },
        (transaction) => store.insertVaultKey(transaction, principal.workspace, key, tokenHash(token)),
      );
      return { vaultKey: vaultKeyMessage(created), token };
    },
    async getVaultKey(request, context) {
      const { workspace } = principalOf(context.values);
      const key = await store.getVaultKey(database, workspace, keyIdOf(request.name));
      return { vaultKey: vaultKeyMessage(requireKey(request.name, key)) };
    },
    async listVaultKeys(request, context) {
      const { workspace } = principalOf(context.values);
      const size = pageSize(request.pageSize);
      const [after = ""] = decodePageToken(request.pageToken, 1) ?? [];
      const rows = await store.listVaultKeys(database, workspace, after, size + 1);
      const page = cutPage(rows, size, (key) => [key.vaultKeyId]);
      return { vaultKeys: page.rows.map(vaultKeyMessage), nextPageToken: page.nextPageToken };
    },
    async revokeVaultKey(request, context) {
      const principal = principalOf(context.values);
      const id = keyIdOf(request.name);
      const detail = { vaultKeyId: id, reason: request.reason };
      const revoked = await changePolicy(
        { principal, kind: "vault_key.revoked", traceId: currentTraceId() ?? "", detail },
        async (transaction) =>
          requireKey(request.name, await store.revokeVaultKey(transaction, principal.workspace, id)),
      );
      // Read after the revoke: no grant can be added any more, so this is the whole exposure.
      const open = await store.openAuthorizationsOf(database, principal.workspace, id, openAuthorizationsMax);
      return {
        vaultKey: vaultKeyMessage(revoked),
        openAuthorizations: open.authorizations.map(authorizationMessage),
        openAuthorizationCount: open.count,
      };
    },
  };
}

function newVaultKey(vaultKeyId: string, message: VaultKeyMessage | undefined): NewVaultKey {
  if (message === undefined) throw invalidField("vault_key", "is required.");
  const pinned = (list: readonly string[]) => (list.length === 0 ? undefined : [...list]);
  return {
    vaultKeyId,
    vendor: message.vendor,
    allowedEndpoints: message.allowedEndpoints,
    billingPeriods: pinned(message.billingPeriods),
    purposes: pinned(message.purposes),
    customers: pinned(message.customers),
    maxPerSpend:
      message.maxPerSpend === undefined ? undefined : moneyFrom(message.maxPerSpend, "vault_key.max_per_spend", true),
    expireTime: message.expireTime === undefined ? undefined : microsFrom(message.expireTime, "vault_key.expire_time"),
  };
}

function keyIdOf(name: string): string {
  const match = /^vaultKeys\/([a-z0-9]{1,32})$/.exec(name);
  if (match === null) throw invalidField("name", 'must be a resource name, for example "vaultKeys/nightly".');
  return match[1] as string;
}

function requireKey(name: string, key: VaultKey | undefined): VaultKey {
  if (key !== undefined) return key;
  throw new HoldfastError("NOT_FOUND", `There is no vault key ${name}. ListVaultKeys shows which there are.`, {
    metadata: { name },
  });
}

function vaultKeyMessage(key: VaultKey): VaultKeyMessage {
  return create(VaultKeySchema, {
    name: `vaultKeys/${key.vaultKeyId}`,
    vendor: key.vendor,
    allowedEndpoints: [...key.allowedEndpoints],
    billingPeriods: [...(key.billingPeriods ?? [])],
    purposes: [...(key.purposes ?? [])],
    customers: [...(key.customers ?? [])],
    state: key.state === "ACTIVE" ? VaultKeyState.ACTIVE : VaultKeyState.REVOKED,
    createTime: timestampMessage(key.createTime),
    ...(key.maxPerSpend === undefined ? {} : { maxPerSpend: moneyMessage(key.maxPerSpend) }),
    ...(key.expireTime === undefined ? {} : { expireTime: timestampMessage(key.expireTime) }),
    ...(key.revokeTime === undefined ? {} : { revokeTime: timestampMessage(key.revokeTime) }),
  });
}
