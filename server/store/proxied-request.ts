import type { ClaimedRequest, ProxiedRequestClaim, ProxiedRequestId, StoredAnswer } from "../domain/proxied-request.ts";
import type { CredentialCipher, SealedSecret } from "./credential-cipher.ts";
import { type Database, run, statement } from "./database.ts";

const claimStatement = statement(
  "claim_proxied_request",
  `select c.* from holdfast.claim_proxied_request($1::text, $2::text, $3::bytea, $4::text, $5::bytea,
     $6::bytea, $7::text, $8::text, $9::text, $10::text, $11::boolean) c`,
);

// The first answer of a generation counts. Where the row was forgotten meanwhile, by a claim that has sent nothing, the
// answer of the one that has sent something makes it anew. A closed row takes the answer too that somebody still waited
// for when another claim gave the generation back.
const storeStatement = statement(
  "store_proxied_answer",
  `insert into holdfast.proxied_requests as p (
     workspace_id, vault_key_id, request_key, endpoint, body_sha256, retry_sha256, customer_id, billing_period, purpose,
     claim_id, generation, state, answer_generation, status, declined, answer_omitted, key_id, nonce, ciphertext,
     create_time, open_time, answer_time
   )
   select $1::text, $2::text, $3::bytea, $4::text, $5::bytea, $6::bytea, $7::text, $8::text, $9::text, $10::text,
     $11::integer, 'ANSWERED', $11::integer, $12::integer, $13::boolean, $16::bytea is null, $14::text, $15::bytea,
     $16::bytea, now.t, now.t, now.t
   from (select holdfast.clock() as t) as now
   on conflict (workspace_id, vault_key_id, request_key) do update set
     state = 'ANSWERED', body_sha256 = excluded.body_sha256, reopened_sha256 = null,
     answer_generation = excluded.answer_generation, status = excluded.status, declined = excluded.declined,
     answer_omitted = excluded.answer_omitted, key_id = excluded.key_id, nonce = excluded.nonce,
     ciphertext = excluded.ciphertext, answer_time = excluded.answer_time
   where p.generation = excluded.generation and coalesce(p.answer_generation, 0) < p.generation
     and p.endpoint = excluded.endpoint and p.retry_sha256 = excluded.retry_sha256
     and (p.answer_generation is not null or p.body_sha256 = excluded.body_sha256)
   returning p.generation`,
);

const reopenStatement = statement(
  "reopen_declined_request",
  `update holdfast.proxied_requests p set
     state = 'OPEN', claim_id = $4::text, reopened_sha256 = $5::bytea, generation = p.generation + 1,
     open_time = now.t
   from (select holdfast.clock() as t) as now
   where p.workspace_id = $1::text and p.vault_key_id = $2::text and p.request_key = $3::bytea
     and p.state = 'ANSWERED' and p.declined and p.generation = $6::integer
     and p.endpoint = $7::text and p.retry_sha256 = $8::bytea
   returning p.generation`,
);

const forgetStatement = statement(
  "forget_proxied_request",
  `delete from holdfast.proxied_requests p
   where p.workspace_id = $1::text and p.vault_key_id = $2::text and p.request_key = $3::bytea
     and p.state = 'OPEN' and p.claim_id = $4::text and p.answer_generation is null and not p.joined`,
);

const closeStatement = statement(
  "close_declined_request",
  `update holdfast.proxied_requests p set state = 'ANSWERED', reopened_sha256 = null
   where p.workspace_id = $1::text and p.vault_key_id = $2::text and p.request_key = $3::bytea
     and p.state = 'OPEN' and p.claim_id = $4::text and p.answer_generation is not null`,
);

const emptyStatement = statement(
  "empty_proxied_answers",
  `with due as materialized (
     select o.vault_key_id, o.request_key from holdfast.proxied_requests o
     where o.workspace_id = $1::text and o.ciphertext is not null
       and o.answer_time < (select holdfast.clock()) - $2::integer * interval '1 day'
     order by o.answer_time limit $3::integer for update skip locked
   )
   update holdfast.proxied_requests p set key_id = null, nonce = null, ciphertext = null, answer_omitted = true
   from due
   where p.workspace_id = $1::text and p.vault_key_id = due.vault_key_id and p.request_key = due.request_key
   returning p.vault_key_id`,
);

/** The most that is stored of an answer, in bytes of its JSON. */
const answerBytesMax = 65_536;

interface ClaimRow {
  readonly is_new: boolean;
  readonly state: "OPEN" | "ANSWERED";
  readonly same_body: boolean;
  readonly same_retry: boolean;
  readonly generation: number;
  readonly declined: boolean;
  readonly age_micros: bigint | null;
  readonly open_micros: bigint;
  readonly key_id: string | null;
  readonly nonce: Buffer | null;
  readonly ciphertext: Buffer | null;
}

/**
 * Claims a request, or reads what became of it. Of any number that claim it at once exactly one gets it as new; the same
 * claim gets that again if it asks again. Call it on a connection without a transaction, or in READ COMMITTED.
 */
export async function claimProxiedRequest(
  database: Database,
  cipher: CredentialCipher,
  workspace: string,
  claim: ProxiedRequestClaim,
): Promise<ClaimedRequest> {
  const [row] = await run<ClaimRow>(database, claimStatement, [workspace, ...claimValues(claim), claim.joins ?? false]);
  if (row === undefined) throw new Error("claim_proxied_request returned no row");
  const { generation, same_body: sameBody } = row;
  if (row.is_new) return { kind: "new", generation, openMicros: row.open_micros };
  if (row.state === "OPEN") return { kind: "open", generation, openMicros: row.open_micros, sameBody };
  return {
    kind: "answered",
    generation,
    sameBody,
    sameButPaymentMethod: !sameBody && row.same_retry,
    declined: row.declined,
    ageMicros: row.age_micros ?? 0n,
    answer: openAnswer(cipher, workspace, claim, row),
  };
}

/**
 * Stores what the vendor answered in a generation. False where an answer of that generation is there already: the first
 * one stays. What does not fit is not stored, and the answer then counts as omitted.
 */
export async function storeProxiedAnswer(
  database: Database,
  cipher: CredentialCipher,
  workspace: string,
  claim: ProxiedRequestClaim,
  given: { readonly generation: number; readonly declined: boolean; readonly answer: StoredAnswer },
): Promise<boolean> {
  const { status, headers, body } = given.answer;
  const text = JSON.stringify({ status, headers, body });
  const { vaultKeyId, requestKey } = claim;
  const sealed =
    Buffer.byteLength(text, "utf8") > answerBytesMax
      ? undefined
      : cipher.seal(text, { workspace, vaultKeyId, requestKey });
  const values = [workspace, ...claimValues(claim), given.generation, status, given.declined];
  const rows = await run(database, storeStatement, [
    ...values,
    sealed?.keyId ?? null,
    sealed?.nonce ?? null,
    sealed?.ciphertext ?? null,
  ]);
  return rows.length === 1;
}

/**
 * Opens a declined request again. Of any number that read the same generation exactly one gets the next one; undefined
 * for the others, who read again. The answer before stays until there is another one.
 */
export async function reopenDeclined(
  database: Database,
  workspace: string,
  claim: ProxiedRequestClaim,
  generation: number,
): Promise<number | undefined> {
  const { claimId, bodySha256, endpoint, retrySha256 } = claim;
  const values = [...idValues(workspace, claim), claimId, bodySha256, generation, endpoint, retrySha256];
  const [row] = await run<{ generation: number }>(database, reopenStatement, values);
  return row?.generation;
}

/**
 * Takes a claim back, unless somebody has joined it. Only with the proof that nothing was sent for it. What was declined before is declined again, with
 * its answer; its generation is not used twice.
 */
export async function forgetProxiedRequest(
  database: Database,
  workspace: string,
  claim: ProxiedRequestId & Pick<ProxiedRequestClaim, "claimId">,
): Promise<void> {
  const values = [...idValues(workspace, claim), claim.claimId];
  await run(database, forgetStatement, values);
  await run(database, closeStatement, values);
}

/** Empties up to `limit` answers that are older, and says how many. What the requests have asked for stays known. */
export async function emptyProxiedAnswers(
  database: Database,
  workspace: string,
  olderThanDays: number,
  limit: number,
): Promise<number> {
  return (await run(database, emptyStatement, [workspace, olderThanDays, limit])).length;
}

function idValues(workspace: string, { vaultKeyId, requestKey }: ProxiedRequestId): readonly unknown[] {
  return [workspace, vaultKeyId, requestKey];
}

function claimValues(claim: ProxiedRequestClaim): readonly unknown[] {
  const { vaultKeyId, requestKey, endpoint, bodySha256, retrySha256, spend, claimId } = claim;
  const identity = [spend?.customerId ?? null, spend?.billingPeriod ?? null, spend?.purpose ?? null];
  return [vaultKeyId, requestKey, endpoint, bodySha256, retrySha256, ...identity, claimId];
}

/** One that cannot be opened is as good as none: which key the server has is no matter of the client's. */
function openAnswer(
  cipher: CredentialCipher,
  workspace: string,
  { vaultKeyId, requestKey }: ProxiedRequestId,
  { key_id: keyId, nonce, ciphertext }: ClaimRow,
): StoredAnswer | undefined {
  if (keyId === null || nonce === null || ciphertext === null) return undefined;
  const sealed: SealedSecret = { keyId, nonce, ciphertext };
  const text = cipher.open(sealed, { workspace, vaultKeyId, requestKey });
  return text === undefined ? undefined : (JSON.parse(text) as StoredAnswer);
}
