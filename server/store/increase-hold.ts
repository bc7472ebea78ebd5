import type { ErrorReasonName } from "../domain/errors.ts";
import type { DenialRule, IncreaseCommand, IncreaseDecision } from "../domain/spend.ts";
import { type AuthorizationRow, authorizationColumns, readAuthorization } from "./authorization.ts";
import { capFiguresColumns, type CapFiguresRow, readCapFigures } from "./cap-figures.ts";
import { type Database, run, statement } from "./database.ts";
import { type EngagedRow, readEngaged } from "./kill-switch.ts";

const increaseStatement = statement(
  "increase_hold",
  `select f.error_reason, f.rule, ${capFiguresColumns}, f.kill_switch, f.kill_switch_target,
     ${authorizationColumns("(f.authorization_row)")}
   from holdfast.increase_hold($1::text, $2::text, $3::integer, $4::text, $5::bigint, $6::text, $7::text,
     $8::text, $9::text, $10::text, $11::bigint, holdfast.where_granting($12::text)) as f`,
);

interface IncreaseRow extends AuthorizationRow, CapFiguresRow, EngagedRow {
  readonly error_reason: ErrorReasonName | null;
  readonly rule: DenialRule | null;
}

/** Raises what an authorization holds to `amount`, or denies and changes nothing; one statement, one commit. */
export async function increaseHold(
  database: Database,
  workspace: string,
  command: IncreaseCommand,
): Promise<IncreaseDecision> {
  const { fence } = command;
  const [row] = await run<IncreaseRow>(database, increaseStatement, [
    workspace,
    command.authorization.spendKey,
    command.authorization.generation,
    command.vaultKeyId,
    command.amount.micros,
    command.amount.currency,
    command.attemptId,
    fence?.lease ?? null,
    fence?.billingPeriod ?? null,
    fence?.holderId ?? null,
    fence?.fencingToken ?? null,
    command.traceId,
  ]);
  if (row === undefined) throw new Error("increase_hold returned no row");
  return {
    errorReason: row.error_reason ?? undefined,
    rule: row.rule ?? undefined,
    cap: readCapFigures(row),
    killSwitch: readEngaged(row),
    authorization: readAuthorization(row),
  };
}
