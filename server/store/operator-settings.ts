import { type Database, run, statement } from "./database.ts";
import type { ChangePolicy } from "./policy.ts";

const currentStatement = statement(
  "operator_settings_token",
  `select o.revoke_time is not null as revoked, o.secret_sha256 = $3::bytea as current, exists (
     select from holdfast.retired_operator_secrets r
     where r.workspace_id = o.workspace_id and r.operator_id = o.operator_id and r.secret_sha256 = $3::bytea
   ) as retired
   from holdfast.operators o where o.workspace_id = $1::text and o.operator_id = $2::text`,
);

const createStatement = statement(
  "create_settings_operator",
  `insert into holdfast.operators (workspace_id, operator_id, role, secret_sha256, create_time)
   values ($1::text, $2::text, 'OPERATOR', $3::bytea, holdfast.clock())`,
);

const replaceStatement = statement(
  "replace_settings_operator_token",
  `with retired as (
     insert into holdfast.retired_operator_secrets (workspace_id, operator_id, secret_sha256)
     select o.workspace_id, o.operator_id, o.secret_sha256 from holdfast.operators o
     where o.workspace_id = $1::text and o.operator_id = $2::text
     on conflict (workspace_id, operator_id, secret_sha256) do nothing
   )
   update holdfast.operators o set secret_sha256 = $3::bytea, rotate_time = now.t,
     previous_secret_sha256 = null, previous_secret_expire_time = null
   from (select holdfast.clock() as t) as now
   where o.workspace_id = $1::text and o.operator_id = $2::text`,
);

/**
 * What became of the operator token of a server's settings. RETIRED: it was replaced before, by other settings or by
 * RotateOperator, and the newer one stays. REVOKED: so is its operator, and for ever.
 */
export type SettingsToken = "CREATED" | "REPLACED" | "UNCHANGED" | "RETIRED" | "REVOKED";

export interface OperatorSettings {
  readonly workspace: string;
  readonly operatorId: string;
  readonly secretSha256: Uint8Array;
}

interface CurrentRow {
  readonly revoked: boolean;
  readonly current: boolean;
  readonly retired: boolean;
}

const kindOf = {
  CREATED: "operator.created",
  REPLACED: "operator.rotated",
  RETIRED: "operator.settings_refused",
  REVOKED: "operator.settings_refused",
} as const satisfies Partial<Record<SettingsToken, string>>;

/**
 * Gives an operator the token that a server's settings name, as a change of policy with an event in the audit. A secret
 * that was ever replaced is not put back: servers of a rolling deployment start with older and newer settings in any
 * order, and a secret is often replaced because it leaked. What was refused is in the audit too.
 */
export async function applyOperatorSettings(
  database: Database,
  changePolicy: ChangePolicy,
  settings: OperatorSettings,
): Promise<SettingsToken> {
  // Nearly every start of a server; grants need not wait for it.
  if ((await judge(database, settings)) === "UNCHANGED") return "UNCHANGED";
  const { workspace, operatorId } = settings;
  const principal = { role: "server", workspace, id: "settings" } as const;
  const event = { principal, kind: "operator.settings_read", traceId: "", detail: {} };
  return await changePolicy(event, async (transaction, audit) => {
    audit.unchanged();
    const verdict = await judge(transaction, settings);
    if (verdict === "UNCHANGED") return verdict;
    const values = [workspace, operatorId, settings.secretSha256];
    if (verdict === "CREATED") await run(transaction, createStatement, values);
    if (verdict === "REPLACED") await run(transaction, replaceStatement, values);
    const why = verdict === "RETIRED" || verdict === "REVOKED" ? { reason: verdict } : {};
    audit.also(kindOf[verdict], { operatorId, source: "settings", ...why });
    return verdict;
  });
}

async function judge(database: Database, settings: OperatorSettings): Promise<SettingsToken> {
  const values = [settings.workspace, settings.operatorId, settings.secretSha256];
  const [row] = await run<CurrentRow>(database, currentStatement, values);
  if (row === undefined) return "CREATED";
  if (row.revoked) return "REVOKED";
  if (row.current) return "UNCHANGED";
  return row.retired ? "RETIRED" : "REPLACED";
}
