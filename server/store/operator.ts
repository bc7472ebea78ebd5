import { HoldfastError } from "../domain/errors.ts";
import type { Operator, OperatorRole } from "../domain/operator.ts";
import type { CreationRequest, StoredSecret } from "../domain/secret.ts";
import { epochMicros } from "./authorization.ts";
import { type Database, run, statement } from "./database.ts";
import { readSecrets, type SecretsRow } from "./vault-key.ts";

const operatorColumns = (
  now: string,
) => `o.operator_id, o.role, o.revoke_reason, ${epochMicros("o.create_time")} as create_time,
  ${epochMicros("o.rotate_time")} as rotate_time, ${epochMicros("o.revoke_time")} as revoke_time,
  case when o.previous_secret_expire_time > ${now} then ${epochMicros("o.previous_secret_expire_time")} end
    as previous_secret_expire_time`;

const insertStatement = statement(
  "insert_operator",
  `insert into holdfast.operators as o (
     workspace_id, operator_id, role, secret_sha256, request_id, request_sha256, create_time
   )
   values ($1::text, $2::text, $3::text, $4::bytea, $5::text, $6::bytea, holdfast.clock())
   on conflict (workspace_id, operator_id) do nothing
   returning ${operatorColumns("o.create_time")}`,
);

const requestStatement = statement(
  "find_operator_by_request",
  `select o.request_sha256, ${operatorColumns("holdfast.clock()")} from holdfast.operators o
   where o.workspace_id = $1::text and o.request_id = $2::text`,
);

const getStatement = statement(
  "get_operator",
  `select ${operatorColumns("holdfast.clock()")} from holdfast.operators o
   where o.workspace_id = $1::text and o.operator_id = $2::text`,
);

const listStatement = statement(
  "list_operators",
  `select ${operatorColumns("holdfast.clock()")} from holdfast.operators o
   where o.workspace_id = $1::text and o.operator_id > $2::text
   order by o.operator_id limit $3::integer`,
);

const rotateStatement = statement(
  "rotate_operator",
  `with retired as (
     insert into holdfast.retired_operator_secrets (workspace_id, operator_id, secret_sha256)
     select o.workspace_id, o.operator_id, o.secret_sha256 from holdfast.operators o
     where o.workspace_id = $1::text and o.operator_id = $2::text and o.revoke_time is null
     on conflict (workspace_id, operator_id, secret_sha256) do nothing
   )
   update holdfast.operators o set secret_sha256 = $3::bytea, rotate_time = now.t,
     previous_secret_sha256 = case when $4::bigint > 0 then o.secret_sha256 end,
     previous_secret_expire_time = now.previous_until
   from (
     select holdfast.clock() as t,
       case when $4::bigint > 0 then holdfast.clock() + $4::bigint * interval '1 millisecond' end as previous_until
     offset 0
   ) as now
   where o.workspace_id = $1::text and o.operator_id = $2::text and o.revoke_time is null
   returning ${operatorColumns("now.t")}`,
);

const revokeStatement = statement(
  "revoke_operator",
  `update holdfast.operators o set revoke_time = now.t, revoke_reason = $3::text,
     previous_secret_sha256 = null, previous_secret_expire_time = null
   from (select holdfast.clock() as t) as now
   where o.workspace_id = $1::text and o.operator_id = $2::text and o.revoke_time is null
     and (o.role <> 'OPERATOR' or exists (
       select from holdfast.operators p
       where p.workspace_id = o.workspace_id and p.role = 'OPERATOR' and p.revoke_time is null
         and p.operator_id <> o.operator_id
     ))
   returning ${operatorColumns("now.t")}`,
);

const secretsStatement = statement(
  "operator_secrets",
  `select o.role, o.secret_sha256, o.previous_secret_sha256,
     floor(extract(epoch from o.previous_secret_expire_time - holdfast.clock()) * 1000)::bigint as previous_ms
   from holdfast.operators o
   where o.workspace_id = $1::text and o.operator_id = $2::text and o.revoke_time is null`,
);

interface OperatorRow {
  readonly operator_id: string;
  readonly role: OperatorRole;
  readonly create_time: bigint;
  readonly rotate_time: bigint | null;
  readonly previous_secret_expire_time: bigint | null;
  readonly revoke_time: bigint | null;
  readonly revoke_reason: string;
}

/** Throws ALREADY_EXISTS. The workspace row must have been taken by `beginPolicyChange`. */
export async function insertOperator(
  transaction: Database,
  workspace: string,
  operator: { readonly operatorId: string; readonly role: OperatorRole; readonly secretSha256: Uint8Array },
  request?: CreationRequest,
): Promise<Operator> {
  const { operatorId, role, secretSha256 } = operator;
  const values = [workspace, operatorId, role, secretSha256, request?.requestId ?? null, request?.sha256 ?? null];
  const made = await one(transaction, insertStatement, values);
  if (made !== undefined) return made;
  throw new HoldfastError("ALREADY_EXISTS", `The operator operators/${operatorId} exists; choose another id.`, {
    metadata: { name: `operators/${operatorId}` },
  });
}

/** The operator that a creation with this request id has made, and of what. */
export async function findOperatorByRequest(
  database: Database,
  workspace: string,
  requestId: string,
): Promise<{ readonly operator: Operator; readonly sha256: Uint8Array } | undefined> {
  const values = [workspace, requestId];
  const [row] = await run<OperatorRow & { request_sha256: Uint8Array }>(database, requestStatement, values);
  return row === undefined ? undefined : { operator: readOperator(row), sha256: row.request_sha256 };
}

export async function getOperator(database: Database, workspace: string, id: string): Promise<Operator | undefined> {
  return await one(database, getStatement, [workspace, id]);
}

/** By id, beginning after `after`, also the revoked ones. */
export async function listOperators(
  database: Database,
  workspace: string,
  after: string,
  limit: number,
): Promise<Operator[]> {
  return (await run<OperatorRow>(database, listStatement, [workspace, after, limit])).map(readOperator);
}

/** Undefined if there is no such operator, or it is revoked. */
export async function rotateOperator(
  transaction: Database,
  workspace: string,
  id: string,
  change: { readonly secretSha256: Uint8Array; readonly overlapMs: number },
): Promise<Operator | undefined> {
  return await one(transaction, rotateStatement, [workspace, id, change.secretSha256, change.overlapMs]);
}

/**
 * Undefined if nothing was changed: there is no such operator, it is revoked, or it is the last with role OPERATOR. The
 * workspace row must have been taken by `beginPolicyChange`, so that two cannot revoke each other.
 */
export async function revokeOperator(
  transaction: Database,
  workspace: string,
  id: string,
  reason: string,
): Promise<Operator | undefined> {
  return await one(transaction, revokeStatement, [workspace, id, reason]);
}

/** Who an operator token opens for. Undefined for an unknown or a revoked operator. */
export async function operatorSecrets(
  database: Database,
  workspace: string,
  id: string,
): Promise<{ readonly role: OperatorRole; readonly secrets: readonly StoredSecret[] } | undefined> {
  const [row] = await run<SecretsRow & { role: OperatorRole }>(database, secretsStatement, [workspace, id]);
  return row === undefined ? undefined : { role: row.role, secrets: readSecrets(row) };
}

async function one(database: Database, sql: typeof getStatement, values: unknown[]): Promise<Operator | undefined> {
  const [row] = await run<OperatorRow>(database, sql, values);
  return row === undefined ? undefined : readOperator(row);
}

function readOperator(row: OperatorRow): Operator {
  return {
    operatorId: row.operator_id,
    role: row.role,
    createTime: row.create_time,
    rotateTime: row.rotate_time ?? undefined,
    previousSecretExpireTime: row.previous_secret_expire_time ?? undefined,
    revokeTime: row.revoke_time ?? undefined,
    revokeReason: row.revoke_reason,
  };
}
