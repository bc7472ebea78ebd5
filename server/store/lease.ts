import type { BillingLease, LeaseAnswer, LeaseCommand } from "../domain/lease.ts";
import { HoldfastError } from "../domain/errors.ts";
import { epochMicros } from "./authorization.ts";
import { type Database, run, statement } from "./database.ts";

const leaseColumns = `(f.lease_row).lease, (f.lease_row).billing_period, (f.lease_row).holder_id,
  (f.lease_row).fencing_token, (f.lease_row).completed, ${epochMicros("(f.lease_row).expire_time")} as expire_time`;

const acquireStatement = statement(
  "acquire_billing_lease",
  `select f.answer, f.remaining_ms, ${leaseColumns}
   from holdfast.acquire_billing_lease($1::text, $2::text, $3::text, $4::text, $5::interval, $6::text,
     holdfast.where_granting($7::text)) as f`,
);

const renewStatement = statement(
  "renew_billing_lease",
  `select f.renewed as done, f.remaining_ms, ${leaseColumns}
   from holdfast.renew_billing_lease($1::text, $2::text, $3::text, $4::text, $5::bigint, $6::interval, $7::text,
     holdfast.where_granting($8::text)) as f`,
);

const releaseStatement = statement(
  "release_billing_lease",
  `select f.released as done, ${leaseColumns}
   from holdfast.release_billing_lease($1::text, $2::text, $3::text, $4::text, $5::bigint, $6::boolean, $7::text,
     $8::text) as f`,
);

const listStatement = statement(
  "list_billing_leases",
  `select ${leaseColumns} from (
     select t as lease_row from holdfast.billing_leases t
     where t.workspace_id = $1::text and ($2::text is null or t.lease = $2::text)
       and ($3::text is null or (t.lease, t.billing_period) > ($3::text, $4::text))
     order by t.lease, t.billing_period limit $5::integer
   ) f order by (f.lease_row).lease, (f.lease_row).billing_period`,
);

const reopenStatement = statement(
  "reopen_billing_lease",
  `select f.reopened as done, ${leaseColumns}
   from holdfast.reopen_billing_lease($1::text, $2::text, $3::text,
     holdfast.actor_in_force($1::text, 'operator', $4::text), $5::text, $6::text) as f`,
);

interface LeaseRow {
  readonly lease: string | null;
  readonly billing_period: string;
  readonly holder_id: string;
  readonly fencing_token: bigint;
  readonly completed: boolean;
  readonly expire_time: bigint;
  readonly remaining_ms: bigint;
}

const stateOfDenial: Readonly<Record<string, { readonly name: string; readonly words: string }>> = {
  VAULT_KEY_REVOKED: { name: "REVOKED", words: "is revoked" },
  VAULT_KEY_SUSPENDED: { name: "SUSPENDED", words: "is suspended" },
  VAULT_KEY_EXPIRED: { name: "EXPIRED", words: "has expired" },
};

/** Throws STATE_NOT_ALLOWED for a vault key that is suspended, revoked or expired: it gets nothing new. */
export async function acquireBillingLease(
  database: Database,
  workspace: string,
  command: LeaseCommand & { readonly ttlMs: number },
): Promise<{ readonly answer: LeaseAnswer; readonly lease: BillingLease; readonly remainingMs: number }> {
  const values = [
    workspace,
    command.lease,
    command.billingPeriod,
    command.holderId,
    `${command.ttlMs} milliseconds`,
    command.vaultKeyId,
    command.traceId,
  ];
  const [row] = await run<LeaseRow & { answer: LeaseAnswer }>(database, acquireStatement, values);
  const state = stateOfDenial[row?.answer ?? ""];
  if (state !== undefined) {
    throw new HoldfastError(
      "STATE_NOT_ALLOWED",
      `The vault key ${command.vaultKeyId} ${state.words}, so it may not run ${command.lease}. Use another key, or ask an operator.`,
      { metadata: { state: state.name } },
    );
  }
  const lease = row === undefined ? undefined : readLease(row);
  if (row === undefined || lease === undefined) throw new Error("acquire_billing_lease returned no lease");
  return { answer: row.answer, lease, remainingMs: Number(row.remaining_ms) };
}

export async function renewBillingLease(
  database: Database,
  workspace: string,
  command: LeaseCommand & { readonly fencingToken: bigint; readonly ttlMs: number },
): Promise<{ readonly renewed: boolean; readonly lease: BillingLease | undefined; readonly remainingMs: number }> {
  const values = [
    workspace,
    command.lease,
    command.billingPeriod,
    command.holderId,
    command.fencingToken,
    `${command.ttlMs} milliseconds`,
    command.vaultKeyId,
    command.traceId,
  ];
  const [row] = await run<LeaseRow & { done: boolean }>(database, renewStatement, values);
  if (row === undefined) throw new Error("renew_billing_lease returned no row");
  return { renewed: row.done, lease: readLease(row), remainingMs: Number(row.remaining_ms) };
}

export async function releaseBillingLease(
  database: Database,
  workspace: string,
  command: LeaseCommand & { readonly fencingToken: bigint; readonly completed: boolean },
): Promise<{ readonly released: boolean; readonly lease: BillingLease | undefined }> {
  const values = [
    workspace,
    command.lease,
    command.billingPeriod,
    command.holderId,
    command.fencingToken,
    command.completed,
    command.vaultKeyId,
    command.traceId,
  ];
  const [row] = await run<LeaseRow & { done: boolean }>(database, releaseStatement, values);
  if (row === undefined) throw new Error("release_billing_lease returned no row");
  return { released: row.done, lease: readLease(row) };
}

export interface LeaseFilter {
  readonly lease: string | undefined;
  /** The last one of the page before. */
  readonly after: Pick<BillingLease, "lease" | "billingPeriod"> | undefined;
  readonly limit: number;
}

/** By job, then by period. */
export async function listBillingLeases(
  database: Database,
  workspace: string,
  { lease, after, limit }: LeaseFilter,
): Promise<BillingLease[]> {
  const values = [workspace, lease ?? null, after?.lease ?? null, after?.billingPeriod ?? null, limit];
  return (await run<LeaseRow>(database, listStatement, values)).map(readLease).filter((row) => row !== undefined);
}

/** Opens a completed job of a period again. The lease is undefined if there is none; `reopened` is false if it is open. */
export async function reopenBillingLease(
  database: Database,
  workspace: string,
  command: Pick<LeaseCommand, "lease" | "billingPeriod" | "traceId"> & {
    readonly operatorId: string;
    readonly reason: string;
  },
): Promise<{ readonly reopened: boolean; readonly lease: BillingLease | undefined }> {
  const { lease, billingPeriod, operatorId, reason, traceId } = command;
  const values = [workspace, lease, billingPeriod, operatorId, reason, traceId];
  const [row] = await run<LeaseRow & { done: boolean }>(database, reopenStatement, values);
  if (row === undefined) throw new Error("reopen_billing_lease returned no row");
  return { reopened: row.done, lease: readLease(row) };
}

function readLease(row: LeaseRow): BillingLease | undefined {
  if (row.lease === null) return undefined;
  return {
    lease: row.lease,
    billingPeriod: row.billing_period,
    holderId: row.holder_id,
    fencingToken: row.fencing_token,
    expireTime: row.expire_time,
    completed: row.completed,
  };
}
