import type { ErrorReasonName } from "../domain/errors.ts";
import type { Actor, Authorization, AuthorizationId, CommitCommand, Look, VoidEvidence } from "../domain/spend.ts";
import {
  type AuthorizationRow,
  authorizationColumns,
  milliseconds,
  readAuthorization,
  timeOf,
} from "./authorization.ts";
import { batchJson } from "./batch-json.ts";
import { type Database, run, statement } from "./database.ts";

const commitBatchStatement = statement(
  "commit_batch",
  `select f.error_reason, f.over_committed, ${holdLeftMs("f.hold_left")} as hold_left_ms,
     ${authorizationColumns("(f.authorization_row)")}
   from holdfast.commit_batch($1::text, $2::jsonb) as f
   order by f.ord`,
);

const voidSpendStatement = statement(
  "void_spend",
  `select f.error_reason, ${holdLeftMs("f.hold_left")} as hold_left_ms, ${authorizationColumns("(f.authorization_row)")}
   from holdfast.void_spend($1::text, $2::text, $3::integer, $4::text,
     holdfast.actor_in_force($1::text, $4::text, $5::text), $6::text, $7::text, $8::integer,
     $9::boolean, $10::text, $11::text, $12::text, ${timeOf("$13")}, $14::text) as f`,
);

const reportUnknownStatement = statement(
  "report_unknown",
  `select f.error_reason, ${authorizationColumns("(f.authorization_row)")}
   from holdfast.report_unknown($1::text, $2::text, $3::integer, $4::text, $5::text, $6::text, $7::text) as f`,
);

const bindStatement = statement(
  "bind_vendor_reference",
  `select f.error_reason, ${authorizationColumns("(f.authorization_row)")}
   from holdfast.bind_vendor_reference($1::text, $2::text, $3::integer, $4::text, $5::text, $6::text, $7::text,
     $8::interval,
     -- What is bound without a state is confirmed next.
     case when $7::text = '' then holdfast.where_granting($9::text) else $9::text end) as f`,
);

const getStatement = statement(
  "get_authorization",
  `select ${authorizationColumns("t")} from holdfast.authorizations t
   where t.workspace_id = $1::text and t.spend_key = $2::text and t.generation = $3::integer`,
);

const getByReferenceStatement = statement(
  "get_authorization_by_vendor_reference",
  `select ${authorizationColumns("t")} from holdfast.authorizations t
   where t.workspace_id = $1::text and t.vendor = $2::text and t.vendor_account = $3::text
     and t.vendor_reference = $4::text and ($5::text is null or t.vault_key_id = $5::text)
   order by t.state = 'COMMITTED' desc, t.state = 'VOIDED', t.grant_time desc, t.spend_key, t.generation desc
   limit 1`,
);

const listStatement = statement(
  "list_authorizations",
  `select ${authorizationColumns("t")} from holdfast.authorizations t
   where t.workspace_id = $1::text
     and ($2::text[] is null or t.state = any ($2::text[]))
     and ($3::text is null or t.customer_id = $3::text)
     and ($4::text is null or t.billing_period = $4::text)
     and ($5::text is null or t.vault_key_id = $5::text)
     and ($6::bigint is null
       or (t.grant_time, t.spend_key, t.generation)
         < (timestamptz 'epoch' + $6::bigint * interval '1 microsecond', $7::text, $8::integer))
   order by t.grant_time desc, t.spend_key desc, t.generation desc
   limit $9::integer`,
);

const sweepStatement = statement("sweep_expired", "select holdfast.sweep_expired($1::text, $2::integer) as changed");

/** What became of a settling call: the row as it is now, and why it was refused, if it was. */
export interface Settled {
  readonly errorReason: ErrorReasonName | undefined;
  /** Absent if it does not exist or belongs to another vault key. */
  readonly authorization: Authorization | undefined;
  /** How long the hold still runs of the attempt that an operator's word was refused for. */
  readonly holdLeftMs: number | undefined;
}

export interface CommitResult extends Settled {
  readonly overCommitted: boolean;
}

export interface SettledRow extends AuthorizationRow {
  readonly error_reason: ErrorReasonName | null;
  readonly hold_left_ms?: bigint | null;
}

interface CommitRow extends SettledRow {
  readonly over_committed: boolean;
}

/** Settles a batch of one workspace; one statement, one commit. Answers in the same order. */
export async function commitBatch(
  database: Database,
  workspace: string,
  commands: readonly CommitCommand[],
): Promise<CommitResult[]> {
  const requests = batchJson(
    commands.map((command, index) => ({
      ord: index + 1,
      spend_key: command.authorization.spendKey,
      generation: command.authorization.generation,
      amount_micros: command.amount.micros.toString(),
      currency: command.amount.currency,
      vendor_reference: command.vendorReference,
      attempt_id: command.attemptId,
      actor_kind: command.actor.kind,
      actor_id: command.actor.id,
      trace_id: command.traceId,
      resolution: command.resolution,
    })),
  );
  const rows = await run<CommitRow>(database, commitBatchStatement, [workspace, requests]);
  return rows.map((row) => ({
    ...readSettled(row),
    overCommitted: row.over_committed,
  }));
}

export interface VoidCommand {
  readonly actor: Actor;
  readonly authorization: AuthorizationId;
  readonly attemptId: string;
  readonly evidence: VoidEvidence;
  readonly vendorStatus: number;
  readonly vendorReplayed: boolean;
  readonly vendorReference: string;
  readonly reason: string;
  readonly traceId: string;
  /** With ABSENT_AFTER_QUARANTINE. */
  readonly look?: Look;
}

export async function voidSpend(database: Database, workspace: string, command: VoidCommand): Promise<Settled> {
  const { authorization, actor } = command;
  return await settle(database, voidSpendStatement, [
    workspace,
    authorization.spendKey,
    authorization.generation,
    actor.kind,
    actor.id,
    command.attemptId,
    command.evidence,
    command.vendorStatus,
    command.vendorReplayed,
    command.vendorReference,
    command.reason,
    command.traceId,
    command.look?.time ?? null,
    command.look?.account ?? "",
  ]);
}

export interface AttemptCommand {
  readonly vaultKeyId: string;
  readonly authorization: AuthorizationId;
  readonly attemptId: string;
  readonly traceId: string;
}

export async function reportUnknown(
  database: Database,
  workspace: string,
  command: AttemptCommand & { readonly reason: string },
): Promise<Settled> {
  const { spendKey, generation } = command.authorization;
  return await settle(database, reportUnknownStatement, [
    workspace,
    spendKey,
    generation,
    command.vaultKeyId,
    command.attemptId,
    command.reason,
    command.traceId,
  ]);
}

export interface BindCommand extends AttemptCommand {
  readonly vendorReference: string;
  readonly vendorState: string;
  readonly followForMs: number;
}

export async function bindVendorReference(
  database: Database,
  workspace: string,
  command: BindCommand,
): Promise<Settled> {
  const { spendKey, generation } = command.authorization;
  return await settle(database, bindStatement, [
    workspace,
    spendKey,
    generation,
    command.vaultKeyId,
    command.attemptId,
    command.vendorReference,
    command.vendorState,
    milliseconds(command.followForMs),
    command.traceId,
  ]);
}

export async function getAuthorization(
  database: Database,
  workspace: string,
  id: AuthorizationId,
): Promise<Authorization | undefined> {
  const rows = await run<AuthorizationRow>(database, getStatement, [workspace, id.spendKey, id.generation]);
  return rows[0] === undefined ? undefined : readAuthorization(rows[0]);
}

export interface ReferenceLookup {
  readonly vendor: string;
  readonly vendorAccount: string;
  readonly vendorReference: string;
}

/**
 * The authorization that a vendor object is bound to or settles: the committed one, else a live one, else a voided one.
 * With `vaultKeyId` among those of that key only, so that another key's binding of the same object hides nothing.
 */
export async function getAuthorizationByReference(
  database: Database,
  workspace: string,
  lookup: ReferenceLookup,
  vaultKeyId: string | undefined,
): Promise<Authorization | undefined> {
  const values = [workspace, lookup.vendor, lookup.vendorAccount, lookup.vendorReference, vaultKeyId ?? null];
  const rows = await run<AuthorizationRow>(database, getByReferenceStatement, values);
  return rows[0] === undefined ? undefined : readAuthorization(rows[0]);
}

export interface AuthorizationFilter {
  readonly states: readonly string[];
  readonly customerId: string | undefined;
  readonly billingPeriod: string | undefined;
  readonly vaultKeyId: string | undefined;
  /** The last authorization of the page before. */
  readonly after: (AuthorizationId & { readonly grantTime: bigint }) | undefined;
  readonly limit: number;
}

/** Newest grant first. */
export async function listAuthorizations(
  database: Database,
  workspace: string,
  filter: AuthorizationFilter,
): Promise<Authorization[]> {
  const rows = await run<AuthorizationRow>(database, listStatement, [
    workspace,
    filter.states.length === 0 ? null : filter.states,
    filter.customerId ?? null,
    filter.billingPeriod ?? null,
    filter.vaultKeyId ?? null,
    filter.after?.grantTime ?? null,
    filter.after?.spendKey ?? null,
    filter.after?.generation ?? null,
    filter.limit,
  ]);
  return rows.map(readAuthorization).filter((row) => row !== undefined);
}

/** Writes down which holds have run out. Returns how many rows changed, at most `limit`. */
export async function sweepExpired(database: Database, workspace: string, limit: number): Promise<number> {
  const rows = await run<{ changed: number }>(database, sweepStatement, [workspace, limit]);
  return rows[0]?.changed ?? 0;
}

async function settle(database: Database, sql: typeof voidSpendStatement, values: unknown[]): Promise<Settled> {
  const [row] = await run<SettledRow>(database, sql, values);
  if (row === undefined) throw new Error(`${sql.name} returned no row`);
  return readSettled(row);
}

/** An interval as whole milliseconds, rounded up. */
export function holdLeftMs(expression: string): string {
  return `ceil(extract(epoch from ${expression}) * 1000)::bigint`;
}

export function readSettled(row: SettledRow): Settled {
  const { error_reason: reason, hold_left_ms: left } = row;
  return {
    errorReason: reason ?? undefined,
    authorization: readAuthorization(row),
    holdLeftMs: left === null || left === undefined ? undefined : Number(left),
  };
}
