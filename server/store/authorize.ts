import {
  type Authorization,
  type AuthorizeCommand,
  type AuthorizeDecision,
  type DenialRule,
  type Disposition,
  spendKeyOf,
} from "../domain/spend.ts";
import { authorizationJson, epochMicros, milliseconds, readAuthorizationJson } from "./authorization.ts";
import { batchJson } from "./batch-json.ts";
import { type CapDrawJson, capFiguresColumns, type CapFiguresRow, readCapDraw, readCapFigures } from "./cap-figures.ts";
import { type Database, run, statement } from "./database.ts";
import { type EngagedRow, readEngaged } from "./kill-switch.ts";

const authorizeBatchStatement = statement(
  "authorize_batch",
  `select f.disposition, f.error_reason, f.differing_fields, f.may_have_been_sent, f.retry_after_ms,
     f.failed_generation, f.rule, ${capFiguresColumns}, f.draws::text as draws,
     f.kill_switch, f.kill_switch_target, ${epochMicros("f.grant_time")} as new_grant_time,
     case when f.visible and f.grant_time is null then ${authorizationJson("(f.authorization_row)")} end as authorization_row
   from holdfast.authorize_batch(holdfast.where_granting($1::text), $2::jsonb) as f
   order by f.ord`,
);

interface DecisionRow extends CapFiguresRow, EngagedRow {
  readonly new_grant_time: bigint | null;
  /** JSON. */
  readonly authorization_row: string | null;
  readonly disposition: Disposition | null;
  readonly error_reason: "SPEND_MISMATCH" | "GENERATION_NOT_FOUND" | null;
  readonly differing_fields: string[];
  readonly may_have_been_sent: boolean;
  readonly retry_after_ms: bigint | null;
  readonly failed_generation: number | null;
  readonly rule: DenialRule | null;
  /** JSON; null unless rehearsed. */
  readonly draws: string | null;
}

/**
 * Judges a batch of one workspace in arrival order; one statement, one commit. Answers in the same order. A rehearsal,
 * which the caller rolls back, also says what each spend draws on.
 */
export async function authorizeBatch(
  database: Database,
  workspace: string,
  commands: readonly AuthorizeCommand[],
  rehearsed = false,
): Promise<AuthorizeDecision[]> {
  const requests = batchJson(commands.map((command, index) => authorizeRequest(command, index, rehearsed)));
  const rows = await run<DecisionRow>(database, authorizeBatchStatement, [workspace, requests]);
  return rows.map((row, index) => readDecision(row, commands[index]));
}

function authorizeRequest(command: AuthorizeCommand, index: number, rehearsed: boolean) {
  return {
    ord: index + 1,
    spend_key: spendKeyOf(command.spend),
    customer_id: command.spend.customerId,
    billing_period: command.spend.billingPeriod,
    purpose: command.spend.purpose,
    vault_key_id: command.vaultKeyId,
    vendor: command.vendor,
    vendor_account: command.vendorAccount,
    endpoint: command.endpoint,
    direction: command.direction,
    refund_of: command.refundOf,
    currency: command.amount.currency,
    amount_micros: command.amount.micros.toString(),
    settlement: command.settlement,
    resend_safe_for: command.resendSafeForMs === undefined ? undefined : milliseconds(command.resendSafeForMs),
    attempt_id: command.attemptId,
    body_fingerprint: command.bodyFingerprint,
    credential_fingerprint: command.credentialFingerprint,
    same_body_required: command.sameBodyRequired,
    hold_for: milliseconds(command.holdForMs),
    lease: command.fence?.lease,
    lease_period: command.fence?.billingPeriod,
    holder_id: command.fence?.holderId,
    fencing_token: command.fence?.fencingToken.toString(),
    trace_id: command.traceId,
    retry_after_generation: command.retryAfterGeneration,
    continue_reference: command.continueVendorReference,
    rehearsed,
  };
}

function readDecision(row: DecisionRow, asked: AuthorizeCommand | undefined): AuthorizeDecision {
  return {
    disposition: row.disposition ?? undefined,
    errorReason: row.error_reason ?? undefined,
    differingFields: row.differing_fields,
    mayHaveBeenSent: row.may_have_been_sent,
    retryAfterMs: row.retry_after_ms === null ? undefined : Number(row.retry_after_ms),
    failedGeneration: row.failed_generation ?? undefined,
    rule: row.rule ?? undefined,
    cap: readCapFigures(row),
    killSwitch: readEngaged(row),
    draws: row.draws === null ? [] : (JSON.parse(row.draws) as CapDrawJson[]).map(readCapDraw),
    authorization: authorizationOf(row, asked),
  };
}

function authorizationOf(row: DecisionRow, asked: AuthorizeCommand | undefined): Authorization | undefined {
  if (asked !== undefined && row.new_grant_time !== null) return newAuthorization(asked, row.new_grant_time);
  return row.authorization_row === null ? undefined : readAuthorizationJson(row.authorization_row);
}

/** The first generation of a spend as it was granted at that time, in microseconds since 1970: it is what was asked for. */
function newAuthorization(command: AuthorizeCommand, grantTime: bigint): Authorization {
  const { spend, amount, vaultKeyId, vendor, vendorAccount, endpoint, direction, refundOf, settlement } = command;
  const key = spendKeyOf(spend);
  return {
    spendKey: key,
    generation: 1,
    spend,
    amount,
    held: amount.micros,
    // Its end is the stable key: not hashed again.
    idempotencyKey: key.slice(-32),
    vaultKeyId,
    vendor,
    vendorAccount,
    endpoint,
    direction,
    refundOf,
    settlement,
    state: "HELD",
    grantTime,
    holdExpireTime: grantTime + BigInt(command.holdForMs) * 1000n,
    vendorReference: undefined,
    vendorState: "",
    followUntilTime: undefined,
    committed: undefined,
    refunded: undefined,
    commitTime: undefined,
    voidEvidence: undefined,
    voidReason: undefined,
    voidTime: undefined,
    inDoubtTime: undefined,
    reconciliation: undefined,
    traceId: command.traceId,
  };
}
