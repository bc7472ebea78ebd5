import { endpointAllowed } from "../domain/endpoint.ts";
import type { ProxyPolicy } from "../domain/proxy-policy.ts";
import { refuse } from "./refusal.ts";
import type { Flow, ProxyRequest, RequestHead } from "./vendor.ts";

/** A vault key as far as the proxy decides by it. */
export interface ProxyKey {
  readonly workspace: string;
  readonly vaultKeyId: string;
  readonly vendor: string;
  readonly allowedEndpoints: readonly string[];
  readonly billingPeriods: readonly string[] | undefined;
  readonly proxy: ProxyPolicy;
}

/**
 * Decides by the head alone whether the key may ask for this, before a byte of the body is read. Returns the version of
 * the vendor's API to ask in.
 *
 * @throws RefusedRequest
 */
export function checkHead(head: RequestHead, flow: Flow, vendor: string, key: ProxyKey): string | undefined {
  const { proxy } = key;
  if (key.vendor !== vendor) {
    throw refuse(403, "vendor_not_allowed", `The vault key is for ${key.vendor}, and this is the proxy of ${vendor}.`);
  }
  if (!endpointAllowed(key.allowedEndpoints, head.endpoint)) {
    throw refuse(
      403,
      "endpoint_not_allowed",
      `The vault key does not allow ${head.endpoint}. An operator can add it to the key's allowed endpoints.`,
    );
  }
  if (flow === "list" && !proxy.allowLists) {
    throw refuse(
      403,
      "lists_not_allowed",
      `${head.endpoint} shows what belongs to others too. An operator can let it through with allow_lists.`,
    );
  }
  if (head.account !== "" && !proxy.connectedAccounts.includes(head.account)) {
    throw refuse(
      403,
      "header_not_allowed",
      "The vault key does not act for that account. An operator can add it to the key's connected accounts.",
    );
  }
  checkExpand(
    head.query.map(({ key: name }) => name),
    proxy,
  );
  const [byDefault] = proxy.apiVersions;
  const { apiVersion } = head;
  if (apiVersion !== undefined && byDefault !== undefined && !proxy.apiVersions.includes(apiVersion)) {
    throw refuse(
      400,
      "api_version_not_allowed",
      `The vault key allows the API versions ${proxy.apiVersions.join(", ")}: ask for one of them, or for none.`,
    );
  }
  return apiVersion ?? byDefault;
}

/** @throws RefusedRequest on what no client may ask for through this key. */
export function checkBody({ endpoint, fields }: ProxyRequest, flow: Flow, { proxy }: ProxyKey): void {
  if (flow === "named" && !proxy.unguardedEndpoints.includes(endpoint)) {
    throw refuse(
      403,
      "endpoint_not_named",
      `${endpoint} changes what later payments do. An operator can let it through by name, in unguarded_endpoints.`,
    );
  }
  checkExpand(
    fields.map(({ key }) => key),
    proxy,
  );
  const reserved = fields.find(({ key }) => /(?:^|\[)(?:[a-z_]+_)?metadata\]?\[holdfast_authorization\]/.test(key));
  if (reserved === undefined) return;
  // By this mark an object at the vendor is found again; one that a client made up would stand for another's spend.
  throw refuse(400, "reserved_parameter", `${reserved.key} is set by Holdfast alone; leave it out.`, reserved.key);
}

function checkExpand(names: readonly string[], { allowExpand }: ProxyPolicy): void {
  if (allowExpand || !names.some((name) => name === "expand" || name.startsWith("expand["))) return;
  throw refuse(
    403,
    "expand_not_allowed",
    "Expanded answers show objects that the request does not name. An operator can let them through with allow_expand.",
    "expand",
  );
}
