import { defaultProxyPolicy, type ProxyPolicy } from "../domain/proxy-policy.ts";
import type { DenialRule } from "../domain/spend.ts";
import type { SealedSecret } from "./credential-cipher.ts";
import { type Database, run, statement } from "./database.ts";

const openStatement = statement(
  "open_proxied_request",
  "select o.* from holdfast.open_proxied_request($1::text, $2::text, $3::text) o",
);

const recordStatement = statement("record_proxy_events", "select holdfast.record_proxy_events($1::text, $2::jsonb)");

const keyStateStatement = statement(
  "proxy_key_state",
  "select holdfast.proxy_key_state($1::text, $2::text, $3::text, $4::text) as rule",
);

/** One request of the proxy, as the audit shows it. */
export interface ProxyEvent {
  readonly vaultKeyId: string;
  readonly disposition: ProxyDisposition;
  /** A stable word; empty where there is nothing to explain. */
  readonly reason: string;
  readonly traceId: string;
  /** The stable key of the spend that the request was about, if it came that far. */
  readonly spendKey: string | undefined;
  readonly detail: {
    /** Empty where no known endpoint was asked for. */
    readonly endpoint: string;
    /** HTTP status of the answer. */
    readonly status: number;
    /** The connected account; empty for the platform's own. */
    readonly account: string;
    readonly requestId: string;
    /** A repeat under another idempotency key that was recognised by its identity. */
    readonly healed?: boolean;
    /** How many refusals of the key before this event were not written down. */
    readonly suppressed?: number;
  };
}

export type ProxyDisposition = "FORWARDED" | "REPLAYED" | "REFUSED" | "HEALED" | "DENIED" | "IN_DOUBT" | "PASSED";

export type ProxyKeyRule = Extract<
  DenialRule,
  "VAULT_KEY_REVOKED" | "VAULT_KEY_SUSPENDED" | "VAULT_KEY_EXPIRED" | "KILL_SWITCH"
>;

/** What a request is judged by. */
export interface OpenedKey {
  readonly vendor: string;
  readonly allowedEndpoints: readonly string[];
  /** Undefined where the key names none. */
  readonly billingPeriods: readonly string[] | undefined;
  readonly proxy: ProxyPolicy;
  /** Why the key may send nothing at this moment, whoever it is for. */
  readonly rule: ProxyKeyRule | undefined;
  /** The vendor's own key; undefined where none is stored. */
  readonly credential: { readonly vendorCredentialId: string; readonly sealed: SealedSecret } | undefined;
}

interface OpenRow {
  readonly vendor: string;
  readonly allowed_endpoints: readonly string[];
  readonly billing_periods: readonly string[] | null;
  readonly proxy: Partial<ProxyPolicy> | null;
  readonly rule: ProxyKeyRule | null;
  readonly vendor_credential_id: string | null;
  readonly key_id: string | null;
  readonly nonce: Buffer | null;
  readonly ciphertext: Buffer | null;
}

/** Reads all that a request is judged by, as it is at this moment. Undefined for a vault key that does not exist. */
export async function openProxiedRequest(
  database: Database,
  workspace: string,
  { vaultKeyId, vendor }: { readonly vaultKeyId: string; readonly vendor: string },
): Promise<OpenedKey | undefined> {
  const [row] = await run<OpenRow>(database, openStatement, [workspace, vaultKeyId, vendor]);
  if (row === undefined) return undefined;
  return {
    vendor: row.vendor,
    allowedEndpoints: row.allowed_endpoints,
    billingPeriods: row.billing_periods ?? undefined,
    proxy: { ...defaultProxyPolicy, ...row.proxy },
    rule: row.rule ?? undefined,
    credential: credentialOf(row),
  };
}

function credentialOf(row: OpenRow): OpenedKey["credential"] {
  const { vendor_credential_id: vendorCredentialId, key_id: keyId, nonce, ciphertext } = row;
  if (vendorCredentialId === null || keyId === null || nonce === null || ciphertext === null) return undefined;
  return { vendorCredentialId, sealed: { keyId, nonce, ciphertext } };
}

/** Writes the events in one transaction, in their order. */
export async function recordProxyEvents(
  database: Database,
  workspace: string,
  events: readonly ProxyEvent[],
): Promise<void> {
  if (events.length === 0) return;
  const rows = events.map(({ vaultKeyId, disposition, reason, traceId, spendKey, detail }) => ({
    vault_key: vaultKeyId,
    trace_id: traceId,
    disposition,
    reason,
    spend_key: spendKey,
    detail: {
      endpoint: detail.endpoint,
      status: detail.status,
      account: detail.account,
      request_id: detail.requestId,
      ...(detail.healed === undefined ? {} : { healed: detail.healed }),
      ...(detail.suppressed === undefined ? {} : { suppressed: detail.suppressed }),
    },
  }));
  await run(database, recordStatement, [workspace, JSON.stringify(rows)]);
}

/**
 * Why a vault key may send nothing that moves money at this moment; undefined where it may. One statement, for the last
 * look before the bytes. `customerId` is empty where the spend has none.
 */
export async function proxyKeyState(
  database: Database,
  workspace: string,
  asked: { readonly vaultKeyId: string; readonly vendor: string; readonly customerId: string },
): Promise<ProxyKeyRule | undefined> {
  const values = [workspace, asked.vaultKeyId, asked.vendor, asked.customerId];
  const [row] = await run<{ rule: ProxyKeyRule | null }>(database, keyStateStatement, values);
  return row?.rule ?? undefined;
}
