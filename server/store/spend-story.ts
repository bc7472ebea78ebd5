import type { ProxiedRequestSummary } from "../domain/proxied-request.ts";
import type { Authorization, Contradiction, SpendIdentity } from "../domain/spend.ts";
import { authorizationColumns, type AuthorizationRow, epochMicros, readAuthorization } from "./authorization.ts";
import { contradictionColumns, type ContradictionRow, readContradiction } from "./contradiction.ts";
import { type Database, run, statement } from "./database.ts";

const generationsStatement = statement(
  "list_generations",
  `select ${authorizationColumns("t")} from holdfast.authorizations t
   where t.workspace_id = $1::text and t.spend_key = $2::text
   order by t.generation desc limit $3::integer`,
);

const contradictionsStatement = statement(
  "list_contradictions_of_spend",
  `select ${contradictionColumns("k")} from holdfast.contradictions k
   where k.workspace_id = $1::text and k.spend_key = $2::text
   order by k.create_time desc, k.contradiction_id desc limit $3::integer`,
);

const requestsStatement = statement(
  "list_proxied_requests_of_spend",
  `select p.vault_key_id, p.endpoint, p.state, p.generation, p.status, p.declined,
     ${epochMicros("p.create_time")} as create_time, ${epochMicros("p.answer_time")} as answer_time
   from holdfast.proxied_requests p
   where p.workspace_id = $1::text and p.customer_id = $2::text and p.billing_period = $3::text
     and p.purpose = $4::text
   order by p.create_time desc, p.request_key limit $5::integer`,
);

// What was granted is known for ever; what was only ever denied, for as long as its events are part of the audit.
const identityStatement = statement(
  "find_spend_identity",
  `(select t.customer_id, t.billing_period, t.purpose from holdfast.authorizations t
   where t.workspace_id = $1::text and t.spend_key = $2::text limit 1)
   union all
   (select e.customer_id, e.billing_period, e.purpose from holdfast.audit_events e
   where e.workspace_id = $1::text and e.spend_key = $2::text and e.purpose is not null limit 1)
   limit 1`,
);

interface RequestRow {
  readonly vault_key_id: string;
  readonly endpoint: string;
  readonly state: "OPEN" | "ANSWERED";
  readonly generation: number;
  readonly status: number | null;
  readonly declined: boolean;
  readonly create_time: bigint;
  readonly answer_time: bigint | null;
}

/** The latest of each, in the order in which they came. */
export interface SpendParts {
  readonly authorizations: readonly Authorization[];
  readonly contradictions: readonly Contradiction[];
  readonly proxiedRequests: readonly ProxiedRequestSummary[];
}

/** Which spend a key stands for; undefined for one that nobody has asked for. */
export async function spendOfKey(
  database: Database,
  workspace: string,
  spendKey: string,
): Promise<SpendIdentity | undefined> {
  type Row = { readonly customer_id: string; readonly billing_period: string; readonly purpose: string };
  const [row] = await run<Row>(database, identityStatement, [workspace, spendKey]);
  if (row === undefined) return undefined;
  return { customerId: row.customer_id, billingPeriod: row.billing_period, purpose: row.purpose };
}

/** What there is about a spend besides its events, at most `limit` of each. */
export async function readSpendParts(
  database: Database,
  workspace: string,
  query: { readonly spendKey: string; readonly spend: SpendIdentity; readonly limit: number },
): Promise<SpendParts> {
  const { spendKey, spend, limit } = query;
  const { customerId, billingPeriod, purpose } = spend;
  const [generations, contradictions, requests] = await Promise.all([
    run<AuthorizationRow>(database, generationsStatement, [workspace, spendKey, limit]),
    run<ContradictionRow>(database, contradictionsStatement, [workspace, spendKey, limit]),
    run<RequestRow>(database, requestsStatement, [workspace, customerId, billingPeriod, purpose, limit]),
  ]);
  return {
    authorizations: generations
      .toReversed()
      .map(readAuthorization)
      .filter((one) => one !== undefined),
    contradictions: contradictions.toReversed().map(readContradiction),
    proxiedRequests: requests.toReversed().map(readRequest),
  };
}

function readRequest(row: RequestRow): ProxiedRequestSummary {
  return {
    vaultKeyId: row.vault_key_id,
    endpoint: row.endpoint,
    isOpen: row.state === "OPEN",
    generation: row.generation,
    status: row.status ?? undefined,
    declined: row.declined,
    createTime: row.create_time,
    answerTime: row.answer_time ?? undefined,
  };
}
