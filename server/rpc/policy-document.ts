import type { MessageInitShape } from "@bufbuild/protobuf";
import { CapWindow } from "@holdfast/api/holdfast/v1/cap_pb";
import type { CreateVaultKeyRequestSchema } from "@holdfast/api/holdfast/v1/vault_key_pb";
import type { PolicyDocument } from "../domain/policy-document.ts";
import { moneyMessage, timestampMessage } from "./convert.ts";

/** The request that makes the vault key of a policy document, with its daily caps, in one transaction. */
export function policyDocumentRequest(
  document: PolicyDocument,
  vaultKeyId: string,
): MessageInitShape<typeof CreateVaultKeyRequestSchema> {
  const { vendor, allowedEndpoints, expireTime, dailyCaps } = document;
  return {
    vaultKeyId,
    vaultKey: {
      vendor,
      allowedEndpoints: [...allowedEndpoints],
      ...(expireTime === undefined ? {} : { expireTime: timestampMessage(expireTime) }),
    },
    caps: dailyCaps.map((limit) => ({
      capId: `${vaultKeyId}-daily-${limit.currency}`,
      cap: { limit: moneyMessage(limit), window: CapWindow.DAY, scope: { vaultKey: `vaultKeys/${vaultKeyId}` } },
    })),
  };
}
