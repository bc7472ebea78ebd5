import type pino from "pino";
import type { Config } from "./config.ts";
import { tokenHash } from "./rpc/auth.ts";
import type { Database } from "./store/database.ts";
import { applyOperatorSettings, type SettingsToken } from "./store/operator-settings.ts";
import type { ChangePolicy } from "./store/policy.ts";
import { ensureWorkspace } from "./store/workspace.ts";

const refusals: Partial<Record<SettingsToken, string>> = {
  RETIRED:
    "HOLDFAST_OPERATOR_TOKEN was replaced before, by the settings of another server or by RotateOperator, and opens " +
    "nothing; the newer token stays. Give this server the newer one, or set one that was never used.",
  REVOKED: "the operator of HOLDFAST_OPERATOR_TOKEN is revoked, and for ever; name another one",
};

/**
 * Makes the workspace and the operator of the settings. A token that is refused is an error in the log and an event in
 * the audit, and the server goes on: in a rolling deployment it is the older one of two, and spends need no operator.
 */
export async function bootstrap(
  database: Database,
  changePolicy: ChangePolicy,
  { workspace, operatorToken }: Pick<Config, "workspace" | "operatorToken">,
  log: pino.Logger,
): Promise<void> {
  await ensureWorkspace(database, workspace);
  if (operatorToken === undefined) return;
  const operatorId = operatorToken.split("_")[2] ?? "";
  const settings = { workspace, operatorId, secretSha256: tokenHash(operatorToken) };
  const refusal = refusals[await applyOperatorSettings(database, changePolicy, settings)];
  if (refusal !== undefined) log.error({ operatorId }, refusal);
}
