import { create } from "@bufbuild/protobuf";
import {
  DerivedIdentitySchema,
  ObjectAccess,
  type ProxyPolicy as ProxyPolicyMessage,
  ProxyPolicySchema,
} from "@holdfast/api/holdfast/v1/vault_key_pb";
import { defaultProxyPolicy, type ProxyPolicy } from "../domain/proxy-policy.ts";
import { durationMessage, millisecondsFrom } from "./convert.ts";

/** Reads a validated message, with the defaults of what it leaves out. Throws INVALID_FIELD. */
export function proxyPolicyFrom(message: ProxyPolicyMessage | undefined): ProxyPolicy | undefined {
  if (message === undefined) return undefined;
  const { retryDeclinedAfter: after } = message;
  return {
    identities: message.identities.map(({ endpoint, customer, purpose }) => ({ endpoint, customer, purpose })),
    retryDeclinedAfterMs:
      after === undefined
        ? defaultProxyPolicy.retryDeclinedAfterMs
        : millisecondsFrom(after, "vault_key.proxy.retry_declined_after"),
    keylessEndpoints: message.keylessEndpoints,
    apiVersions: message.apiVersions,
    connectedAccounts: message.connectedAccounts,
    objectAccess: message.objectAccess === ObjectAccess.ANY ? "ANY" : "OWN",
    allowLists: message.allowLists,
    allowExpand: message.allowExpand,
    unguardedEndpoints: message.unguardedEndpoints,
    keepDeclined: message.keepDeclined,
  };
}

export function proxyPolicyMessage(policy: ProxyPolicy): ProxyPolicyMessage {
  return create(ProxyPolicySchema, {
    identities: policy.identities.map((identity) => create(DerivedIdentitySchema, identity)),
    retryDeclinedAfter: durationMessage(BigInt(policy.retryDeclinedAfterMs) * 1000n),
    keylessEndpoints: [...policy.keylessEndpoints],
    apiVersions: [...policy.apiVersions],
    connectedAccounts: [...policy.connectedAccounts],
    objectAccess: policy.objectAccess === "ANY" ? ObjectAccess.ANY : ObjectAccess.OWN,
    allowLists: policy.allowLists,
    allowExpand: policy.allowExpand,
    unguardedEndpoints: [...policy.unguardedEndpoints],
    keepDeclined: policy.keepDeclined,
  });
}
