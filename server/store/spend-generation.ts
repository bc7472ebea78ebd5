import type { AuthorizationState, SpendIdentity, VoidEvidence } from "../domain/spend.ts";
import { spendKeyOf } from "../domain/spend.ts";
import { type Database, run, statement } from "./database.ts";

const latestStatement = statement(
  "latest_generation",
  `select t.generation, t.state, t.void_evidence, t.vault_key_id
   from holdfast.authorizations t
   where t.workspace_id = $1::text and t.spend_key = $2::text
   order by t.generation desc limit 1`,
);

// What was claimed a minute ago and has no grant that lives belongs to nobody any more: its process has died before it
// asked, or was told no and could not write that down.
const oldest = `(select holdfast.clock() - interval '1 minute' as t) as oldest`;
const abandoned = `p.open_time < oldest.t and not exists (
       select from holdfast.authorizations t
       where t.workspace_id = $1::text and t.spend_key = $4::text and t.state <> 'VOIDED'`;

const releaseStatement = statement(
  "release_abandoned_request",
  `delete from holdfast.proxied_requests p using ${oldest}
   where p.workspace_id = $1::text and p.vault_key_id = $2::text and p.request_key = $3::bytea
     and p.state = 'OPEN' and p.answer_generation is null and ${abandoned})
   returning p.generation`,
);

// What was declined before, and was opened again by a process that has died, is declined as it was. A grant that lives
// because the declined object is kept is nobody's as long as the object waits for another payment method.
const closeStatement = statement(
  "close_abandoned_request",
  `update holdfast.proxied_requests p set state = 'ANSWERED', reopened_sha256 = null
   from ${oldest}
   where p.workspace_id = $1::text and p.vault_key_id = $2::text and p.request_key = $3::bytea
     and p.state = 'OPEN' and p.answer_generation is not null
     and ${abandoned} and not (t.state = 'HELD' and t.vendor_state <> '' and t.vendor_state = $5::text))
   returning p.generation`,
);

/** The last try of a spend. */
export interface SpendGeneration {
  readonly spendKey: string;
  readonly generation: number;
  readonly state: AuthorizationState;
  readonly voidEvidence: VoidEvidence | undefined;
  readonly vaultKeyId: string;
}

interface GenerationRow {
  readonly generation: number;
  readonly state: AuthorizationState;
  readonly void_evidence: VoidEvidence | null;
  readonly vault_key_id: string;
}

/** Undefined for a spend that nobody was ever granted. */
export async function latestGeneration(
  database: Database,
  workspace: string,
  spend: SpendIdentity,
): Promise<SpendGeneration | undefined> {
  const key = spendKeyOf(spend);
  const [row] = await run<GenerationRow>(database, latestStatement, [workspace, key]);
  if (row === undefined) return undefined;
  const { generation, state, void_evidence: evidence, vault_key_id: vaultKeyId } = row;
  return { spendKey: key, generation, state, voidEvidence: evidence ?? undefined, vaultKeyId };
}

/**
 * Takes back a claim that nobody follows, so that the spend may be asked for in other words. True if it was one.
 * `declinedState` is the vendor's word for an object that was declined and waits for another payment method.
 */
export async function releaseAbandonedRequest(
  database: Database,
  workspace: string,
  request: { readonly vaultKeyId: string; readonly requestKey: Uint8Array },
  spend: SpendIdentity,
  declinedState: string,
): Promise<boolean> {
  const values = [workspace, request.vaultKeyId, request.requestKey, spendKeyOf(spend)];
  if ((await run(database, releaseStatement, values)).length === 1) return true;
  return (await run(database, closeStatement, [...values, declinedState])).length === 1;
}
