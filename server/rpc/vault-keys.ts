import type { ServiceImpl } from "@connectrpc/connect";
import { type AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import {
  CreateBillingPeriodKeyRequestSchema,
  CreateVaultKeyRequestSchema,
} from "@holdfast/api/holdfast/v1/vault_key_pb";
import type { VendorWrites } from "../domain/proxy-policy.ts";
import type { Database } from "../store/database.ts";
import type { ChangePolicy } from "../store/policy.ts";
import * as store from "../store/vault-key.ts";
import { principalOf } from "./auth.ts";
import { billingPeriodCreation } from "./billing-period-key.ts";
import { capMessage } from "./cap-message.ts";
import { creationRequest } from "./creation-request.ts";
import { cutPage, decodePageToken, pageSize } from "./page.ts";
import { createKey, vaultKeyCreation } from "./vault-key-creation.ts";
import { requireKey, vaultKeyIdOf, vaultKeyMessage } from "./vault-key-message.ts";

type VaultKeyMethods = Pick<
  ServiceImpl<typeof AdminService>,
  "createVaultKey" | "createBillingPeriodKey" | "getVaultKey" | "listVaultKeys"
>;

/** Making and reading vault keys. `random` returns that many random bytes. */
export function vaultKeyMethods(
  database: Database,
  changePolicy: ChangePolicy,
  random: (size: number) => Uint8Array,
  writes: VendorWrites,
): VaultKeyMethods {
  const parts = { database, changePolicy, random, writes };
  return {
    async createVaultKey(request, context) {
      const sent = creationRequest(CreateVaultKeyRequestSchema, request, request.requestId);
      const made = await createKey(parts, principalOf(context.values), vaultKeyCreation(request), sent);
      return { vaultKey: vaultKeyMessage(made.vaultKey), caps: made.caps.map(capMessage), token: made.token };
    },
    async createBillingPeriodKey(request, context) {
      const sent = creationRequest(CreateBillingPeriodKeyRequestSchema, request, request.requestId);
      const made = await createKey(parts, principalOf(context.values), billingPeriodCreation(request), sent);
      const answer = { vaultKey: vaultKeyMessage(made.vaultKey), token: made.token };
      const [cap] = made.caps;
      return cap === undefined ? answer : { ...answer, cap: capMessage(cap) };
    },
    async getVaultKey(request, context) {
      const { workspace } = principalOf(context.values);
      const key = await store.getVaultKey(database, workspace, vaultKeyIdOf(request.name, "name"));
      return { vaultKey: vaultKeyMessage(requireKey(request.name, key)) };
    },
    async listVaultKeys(request, context) {
      const { workspace } = principalOf(context.values);
      const size = pageSize(request.pageSize);
      const [after = ""] = decodePageToken("vault_keys", request.pageToken, 1) ?? [];
      const rows = await store.listVaultKeys(database, workspace, { after, labels: request.labels, limit: size + 1 });
      const page = cutPage("vault_keys", rows, size, (key) => [key.vaultKeyId]);
      return { vaultKeys: page.rows.map(vaultKeyMessage), nextPageToken: page.nextPageToken };
    },
  };
}
