import { HoldfastError } from "../domain/errors.ts";
import type { Actor } from "../domain/spend.ts";
import { type Database, run, statement } from "./database.ts";

const createStatement = statement(
  "create_workspace",
  `insert into holdfast.workspaces (workspace_id, create_time) values ($1::text, holdfast.clock())
   on conflict (workspace_id) do nothing`,
);

const setOperatorStatement = statement(
  "set_operator_token",
  `insert into holdfast.operator_tokens (workspace_id, operator_id, secret_sha256, create_time)
   values ($1::text, $2::text, $3::bytea, holdfast.clock())
   on conflict (workspace_id, operator_id) do update set secret_sha256 = excluded.secret_sha256`,
);

const operatorSecretStatement = statement(
  "operator_secret",
  `select o.secret_sha256 from holdfast.operator_tokens o
   where o.workspace_id = $1::text and o.operator_id = $2::text`,
);

const listStatement = statement(
  "list_workspaces",
  "select w.workspace_id from holdfast.workspaces w order by w.workspace_id",
);

const announceStatement = statement(
  "announce_policy_change",
  `insert into holdfast.policy_gates as g (workspace_id, waiting, closed_until_time)
   select w.workspace_id, 1, holdfast.clock() + interval '5 seconds'
   from holdfast.workspaces w where w.workspace_id = $1::text
   on conflict (workspace_id) do update set
     waiting = case when g.closed_until_time > excluded.closed_until_time - interval '5 seconds'
       then g.waiting + 1 else 1 end,
     closed_until_time = excluded.closed_until_time`,
);

const takeTurnStatement = statement(
  "take_policy_turn",
  `update holdfast.policy_gates g set waiting = greatest(0, g.waiting - 1) where g.workspace_id = $1::text`,
);

const changePolicyStatement = statement(
  "change_policy",
  `update holdfast.workspaces w set policy_version = w.policy_version + 1
   where w.workspace_id = $1::text returning w.policy_version`,
);

const auditStatement = statement(
  "append_audit",
  `select holdfast.append_audit($1::text, holdfast.clock(), $2::text, $3::text, $4::text, $5::text, $6::jsonb)`,
);

/** Creates the workspace if it does not exist. */
export async function ensureWorkspace(database: Database, workspace: string): Promise<void> {
  await run(database, createStatement, [workspace]);
}

/** Sets the one secret of an operator. A server that knew the token before may accept it for 10 s more. */
export async function setOperatorToken(
  database: Database,
  workspace: string,
  operatorId: string,
  secretSha256: Uint8Array,
): Promise<void> {
  await run(database, setOperatorStatement, [workspace, operatorId, secretSha256]);
}

export async function operatorSecret(
  database: Database,
  workspace: string,
  operatorId: string,
): Promise<Uint8Array | undefined> {
  const rows = await run<{ secret_sha256: Uint8Array }>(database, operatorSecretStatement, [workspace, operatorId]);
  return rows[0]?.secret_sha256;
}

export async function listWorkspaces(database: Database): Promise<string[]> {
  const rows = await run<{ workspace_id: string }>(database, listStatement, []);
  return rows.map((row) => row.workspace_id);
}

/**
 * Makes grants that begin from now on queue behind a change of policy. Must be committed before the transaction of
 * the change begins; without it that transaction could wait as long as grants overlap.
 */
export async function announcePolicyChange(database: Database, workspace: string): Promise<void> {
  await run(database, announceStatement, [workspace]);
}

/**
 * Takes the workspace row for a change of policy. Waits until every grant that saw the old policy has ended, and
 * holds back new ones until the transaction ends. Must come first in the transaction.
 */
export async function beginPolicyChange(transaction: Database, workspace: string): Promise<void> {
  await run(transaction, takeTurnStatement, [workspace]);
  const rows = await run(transaction, changePolicyStatement, [workspace]);
  if (rows.length === 0) throw new HoldfastError("NOT_FOUND", `The workspace ${workspace} does not exist.`);
}

export async function appendAudit(
  transaction: Database,
  workspace: string,
  event: { readonly kind: string; readonly actor: Actor; readonly traceId: string; readonly detail: object },
): Promise<void> {
  const detail = JSON.stringify(event.detail, (_key, value: unknown) =>
    typeof value === "bigint" ? value.toString() : value,
  );
  const values = [workspace, event.kind, event.actor.kind, event.actor.id, event.traceId, detail];
  await run(transaction, auditStatement, values);
}
