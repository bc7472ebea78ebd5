import { HoldfastError } from "../domain/errors.ts";
import type { Actor } from "../domain/spend.ts";
import { type Database, run, statement } from "./database.ts";

const createStatement = statement(
  "create_workspace",
  `insert into holdfast.workspaces (workspace_id, create_time) values ($1::text, holdfast.clock())
   on conflict (workspace_id) do nothing
   returning workspace_id`,
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
     waiting = case when excluded.closed_until_time - g.closed_until_time < interval '5 seconds'
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

const revokedStatement = statement(
  "is_revoked_operator",
  `select from holdfast.operators o
   where o.workspace_id = $1::text and o.operator_id = $2::text and o.revoke_time is not null`,
);

const auditStatement = statement(
  "append_audit",
  `select holdfast.append_audit($1::text, holdfast.clock(), $2::text, $3::text, $4::text, $5::text, $6::jsonb)`,
);

/** Creates the workspace if it does not exist, and says whether it did. */
export async function ensureWorkspace(database: Database, workspace: string): Promise<boolean> {
  return (await run(database, createStatement, [workspace])).length === 1;
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

/** Takes an announcement back: its change has not happened, and nobody has to queue behind it. */
export async function withdrawPolicyChange(database: Database, workspace: string): Promise<void> {
  await run(database, takeTurnStatement, [workspace]);
}

/** Read in a statement of its own after the workspace row was taken: what was committed meanwhile is seen. */
export async function isRevokedOperator(
  transaction: Database,
  workspace: string,
  operatorId: string,
): Promise<boolean> {
  return (await run(transaction, revokedStatement, [workspace, operatorId])).length === 1;
}

/** Writes one event. The names of its figures are those of SQL and of the contract, whatever they are called here. */
export async function appendAudit(
  transaction: Database,
  workspace: string,
  event: { readonly kind: string; readonly actor: Actor; readonly traceId: string; readonly detail: object },
): Promise<void> {
  const detail = JSON.stringify(event.detail, (_key, value: unknown) => {
    if (typeof value === "bigint") return value.toString();
    if (typeof value !== "object" || value === null || Array.isArray(value)) return value;
    return Object.fromEntries(Object.entries(value).map(([name, member]) => [snakeCase(name), member]));
  });
  const values = [workspace, event.kind, event.actor.kind, event.actor.id, event.traceId, detail];
  await run(transaction, auditStatement, values);
}

function snakeCase(name: string): string {
  return name.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}
