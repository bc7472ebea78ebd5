import type { EngagedKillSwitch } from "../domain/kill-switch.ts";
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
  "select s.* from holdfast.proxy_key_state($1::text, $2::text, $3::text, $4::text) s",
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

/** What may change between the head of a request and the bytes that are sent for it. */
export interface ProxyKeyState {
  /** Why the key may send nothing at this moment. */
  readonly rule: ProxyKeyRule | undefined;
  /** With rule KILL_SWITCH. */
  readonly killSwitch: EngagedKillSwitch | undefined;
  /** The vendor's own key; undefined where none is stored. */
  readonly credential: { readonly vendorCredentialId: string; readonly sealed: SealedSecret } | undefined;
}

/** What a request is judged by. Its state is the one for whoever it is asked for. */
export interface OpenedKey extends ProxyKeyState {
  readonly vendor: string;
  readonly allowedEndpoints: readonly string[];
  /** Undefined where the key names none. */
  readonly billingPeriods: readonly string[] | undefined;
  readonly proxy: ProxyPolicy;
}

interface StateRow {
  readonly rule: ProxyKeyRule | null;
  readonly kill_switch_id: string | null;
  readonly target_kind: EngagedKillSwitch["targetKind"] | null;
  readonly vendor_credential_id: string | null;
  readonly key_id: string | null;
  readonly nonce: Buffer | null;
  readonly ciphertext: Buffer | null;
}

interface OpenRow extends StateRow {
  readonly vendor: string;
  readonly allowed_endpoints: readonly string[];
  readonly billing_periods: readonly string[] | null;
  readonly proxy: Partial<ProxyPolicy> | null;
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
    ...stateOf(row),
  };
}

function stateOf(row: StateRow): ProxyKeyState {
  const { rule, kill_switch_id: killSwitchId, target_kind: targetKind } = row;
  return {
    rule: rule ?? undefined,
    killSwitch: killSwitchId === null || targetKind === null ? undefined : { killSwitchId, targetKind },
    credential: credentialOf(row),
  };
}

function credentialOf(row: StateRow): ProxyKeyState["credential"] {
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
 * The state of a vault key at this moment: of one that does not exist, the one of a revoked key. One statement, for the
 * last look before the bytes. `customerId` is empty where the spend has none.
 */
export async function proxyKeyState(
  database: Database,
  workspace: string,
  asked: { readonly vaultKeyId: string; readonly vendor: string; readonly customerId: string },
): Promise<ProxyKeyState> {
  const values = [workspace, asked.vaultKeyId, asked.vendor, asked.customerId];
  const [row] = await run<StateRow>(database, keyStateStatement, values);
  if (row === undefined) throw new Error("proxy_key_state returned no row");
  return stateOf(row);
}
