import { type AuthorizationId, type DenialRule, formatAuthorizationName } from "../domain/spend.ts";
import { type Database, run, statement } from "./database.ts";

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
  /** What the request was about, if it came that far. */
  readonly authorization: AuthorizationId | undefined;
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

/** Writes the events in one transaction, in their order. */
export async function recordProxyEvents(
  database: Database,
  workspace: string,
  events: readonly ProxyEvent[],
): Promise<void> {
  if (events.length === 0) return;
  const rows = events.map(({ vaultKeyId, disposition, reason, traceId, authorization, detail }) => ({
    vault_key: vaultKeyId,
    trace_id: traceId,
    disposition,
    reason,
    spend_key: authorization?.spendKey,
    generation: authorization?.generation,
    detail: {
      endpoint: detail.endpoint,
      status: detail.status,
      account: detail.account,
      request_id: detail.requestId,
      ...(authorization === undefined ? {} : { authorization: formatAuthorizationName(authorization) }),
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
