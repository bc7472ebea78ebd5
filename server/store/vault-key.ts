import { HoldfastError } from "../domain/errors.ts";
import { toMicros } from "../domain/money.ts";
import { defaultProxyPolicy, type ProxyPolicy } from "../domain/proxy-policy.ts";
import type { CreationRequest, StoredSecret } from "../domain/secret.ts";
import type { NewVaultKey, VaultKey, VaultKeyPolicy, VaultKeyState } from "../domain/vault-key.ts";
import { epochMicros } from "./authorization.ts";
import { type Database, run, statement } from "./database.ts";

const keyColumns = (
  now: string,
) => `k.vault_key_id, k.state, k.vendor, k.allowed_endpoints, k.billing_periods, k.purposes, k.customers,
  k.max_per_spend_micros, k.max_per_spend_currency, k.attached_caps, k.labels, k.proxy, k.version,
  k.reason,
  ${epochMicros("k.expire_time")} as expire_time, ${epochMicros("k.create_time")} as create_time,
  ${epochMicros("k.update_time")} as update_time, ${epochMicros("k.suspend_time")} as suspend_time,
  ${epochMicros("k.revoke_time")} as revoke_time,
  case when k.previous_secret_expire_time > ${now} then ${epochMicros("k.previous_secret_expire_time")} end
    as previous_secret_expire_time,
  (select ${epochMicros("u.use_time")} from holdfast.vault_key_uses u
   where u.workspace_id = $1::text and u.vault_key_id = k.vault_key_id) as last_use_time`;

const insertStatement = statement(
  "insert_vault_key",
  `insert into holdfast.vault_keys as k (
     workspace_id, vault_key_id, secret_sha256, vendor, allowed_endpoints, billing_periods, purposes, customers,
     max_per_spend_micros, max_per_spend_currency, expire_time, attached_caps, labels, proxy, request_id,
     request_sha256, create_time, update_time
   )
   select $1::text, $2::text, $3::bytea, $4::text, $5::text[], $6::text[], $7::text[], $8::text[], $9::bigint,
     $10::text, timestamptz 'epoch' + $11::bigint * interval '1 microsecond', $12::text[], $13::jsonb, $14::jsonb,
     $15::text, $16::bytea, now.t, now.t
   from (select holdfast.clock() as t) as now
   on conflict (workspace_id, vault_key_id) do nothing
   returning ${keyColumns("k.create_time")}`,
);

const requestStatement = statement(
  "find_vault_key_by_request",
  `select k.request_sha256, ${keyColumns("holdfast.clock()")} from holdfast.vault_keys k
   where k.workspace_id = $1::text and k.request_id = $2::text`,
);

const getStatement = statement(
  "get_vault_key",
  `select ${keyColumns("holdfast.clock()")} from holdfast.vault_keys k
   where k.workspace_id = $1::text and k.vault_key_id = $2::text`,
);

const listStatement = statement(
  "list_vault_keys",
  `select ${keyColumns("holdfast.clock()")} from holdfast.vault_keys k
   where k.workspace_id = $1::text and k.vault_key_id > $2::text and k.labels @> $3::jsonb
   order by k.vault_key_id limit $4::integer`,
);

const updateStatement = statement(
  "update_vault_key",
  `update holdfast.vault_keys k set
     allowed_endpoints = $3::text[], billing_periods = $4::text[], purposes = $5::text[], customers = $6::text[],
     max_per_spend_micros = $7::bigint, max_per_spend_currency = $8::text,
     expire_time = timestamptz 'epoch' + $9::bigint * interval '1 microsecond',
     attached_caps = $10::text[], labels = $11::jsonb, proxy = $12::jsonb,
     version = k.version + 1, update_time = now.t
   from (select holdfast.clock() as t) as now
   where k.workspace_id = $1::text and k.vault_key_id = $2::text
   returning ${keyColumns("now.t")}`,
);

// What is in the state already is left as it is: the first reason and time count.
const stateStatement = statement(
  "change_vault_key_state",
  `update holdfast.vault_keys k set state = $3::text, reason = $4::text,
     suspend_time = case when $3::text = 'SUSPENDED' then now.t end,
     revoke_time = case when $3::text = 'REVOKED' then now.t end,
     version = k.version + 1, update_time = now.t
   from (select holdfast.clock() as t) as now
   where k.workspace_id = $1::text and k.vault_key_id = $2::text and k.state not in ($3::text, 'REVOKED')
   returning ${keyColumns("now.t")}`,
);

const rotateStatement = statement(
  "rotate_vault_key",
  `update holdfast.vault_keys k set secret_sha256 = $3::bytea,
     previous_secret_sha256 = case when $4::bigint > 0 then k.secret_sha256 end,
     previous_secret_expire_time = now.previous_until,
     version = k.version + 1, update_time = now.t
   from (
     select holdfast.clock() as t,
       case when $4::bigint > 0 then holdfast.clock() + $4::bigint * interval '1 millisecond' end as previous_until
     offset 0
   ) as now
   where k.workspace_id = $1::text and k.vault_key_id = $2::text
   returning ${keyColumns("now.t")}`,
);

const secretsStatement = statement(
  "vault_key_secrets",
  `select k.secret_sha256, k.previous_secret_sha256,
     floor(extract(epoch from k.previous_secret_expire_time - holdfast.clock()) * 1000)::bigint as previous_ms
   from holdfast.vault_keys k where k.workspace_id = $1::text and k.vault_key_id = $2::text`,
);

const attachableStatement = statement(
  "attachable_caps",
  `select c.cap_id, case when c.archive_time is not null then 'ARCHIVED' when c.attached_only then 'ATTACHABLE'
     else 'BY_SCOPE' end as verdict
   from holdfast.caps c where c.workspace_id = $1::text and c.cap_id = any ($2::text[])`,
);

interface KeyRow {
  readonly vault_key_id: string;
  readonly state: VaultKeyState;
  readonly vendor: string;
  readonly allowed_endpoints: string[];
  readonly billing_periods: string[] | null;
  readonly purposes: string[] | null;
  readonly customers: string[] | null;
  readonly max_per_spend_micros: bigint | null;
  readonly max_per_spend_currency: string | null;
  readonly attached_caps: string[];
  readonly labels: Record<string, string>;
  readonly proxy: ProxyPolicy | null;
  readonly version: bigint;
  readonly reason: string;
  readonly expire_time: bigint | null;
  readonly create_time: bigint;
  readonly update_time: bigint;
  readonly suspend_time: bigint | null;
  readonly revoke_time: bigint | null;
  readonly previous_secret_expire_time: bigint | null;
  readonly last_use_time: bigint | null;
}

/** Throws ALREADY_EXISTS. The workspace row must have been taken by `beginPolicyChange`. */
export async function insertVaultKey(
  transaction: Database,
  workspace: string,
  key: NewVaultKey,
  secretSha256: Uint8Array,
  request?: CreationRequest,
): Promise<VaultKey> {
  const row = await one(transaction, insertStatement, [
    workspace,
    key.vaultKeyId,
    secretSha256,
    key.vendor,
    ...policyValues(key),
    request?.requestId ?? null,
    request?.sha256 ?? null,
  ]);
  if (row !== undefined) return row;
  throw new HoldfastError("ALREADY_EXISTS", `The vault key vaultKeys/${key.vaultKeyId} exists; choose another id.`, {
    metadata: { name: `vaultKeys/${key.vaultKeyId}` },
  });
}

/** The key that a creation with this request id has made, and of what. */
export async function findVaultKeyByRequest(
  database: Database,
  workspace: string,
  requestId: string,
): Promise<{ readonly vaultKey: VaultKey; readonly sha256: Uint8Array } | undefined> {
  const [row] = await run<KeyRow & { request_sha256: Uint8Array }>(database, requestStatement, [workspace, requestId]);
  return row === undefined ? undefined : { vaultKey: readKey(row), sha256: row.request_sha256 };
}

export async function getVaultKey(database: Database, workspace: string, id: string): Promise<VaultKey | undefined> {
  return await one(database, getStatement, [workspace, id]);
}

export interface VaultKeyFilter {
  /** The id of the last key of the page before, or empty. */
  readonly after: string;
  /** All of these labels. */
  readonly labels: Readonly<Record<string, string>>;
  readonly limit: number;
}

/** By id. */
export async function listVaultKeys(
  database: Database,
  workspace: string,
  { after, labels, limit }: VaultKeyFilter,
): Promise<VaultKey[]> {
  const values = [workspace, after, JSON.stringify(labels), limit];
  return (await run<KeyRow>(database, listStatement, values)).map(readKey);
}

/** Undefined if there is no such key. The workspace row must have been taken by `beginPolicyChange`. */
export async function updateVaultKey(
  transaction: Database,
  workspace: string,
  id: string,
  policy: VaultKeyPolicy,
): Promise<VaultKey | undefined> {
  return await one(transaction, updateStatement, [workspace, id, ...policyValues(policy)]);
}

/**
 * Suspends, resumes or revokes. Undefined if nothing was changed: the key is in that state already, is revoked, or does
 * not exist. The workspace row must have been taken by `beginPolicyChange`.
 */
export async function changeVaultKeyState(
  transaction: Database,
  workspace: string,
  id: string,
  change: { readonly state: VaultKeyState; readonly reason: string },
): Promise<VaultKey | undefined> {
  return await one(transaction, stateStatement, [workspace, id, change.state, change.reason]);
}

/** Undefined if there is no such key. The workspace row must have been taken by `beginPolicyChange`. */
export async function rotateVaultKey(
  transaction: Database,
  workspace: string,
  id: string,
  change: { readonly secretSha256: Uint8Array; readonly overlapMs: number },
): Promise<VaultKey | undefined> {
  return await one(transaction, rotateStatement, [workspace, id, change.secretSha256, change.overlapMs]);
}

/** Whether each cap may be attached to a key; one that does not exist is not in the answer. */
export async function attachableCaps(
  database: Database,
  workspace: string,
  capIds: readonly string[],
): Promise<ReadonlyMap<string, "ATTACHABLE" | "ARCHIVED" | "BY_SCOPE">> {
  const rows = await run<{ cap_id: string; verdict: "ATTACHABLE" | "ARCHIVED" | "BY_SCOPE" }>(
    database,
    attachableStatement,
    [workspace, capIds],
  );
  return new Map(rows.map((row) => [row.cap_id, row.verdict]));
}

/** What opens the key now; also of a suspended or revoked one, which may still settle what it was granted. */
export async function vaultKeySecrets(
  database: Database,
  workspace: string,
  id: string,
): Promise<readonly StoredSecret[]> {
  const [row] = await run<SecretsRow>(database, secretsStatement, [workspace, id]);
  return row === undefined ? [] : readSecrets(row);
}

export interface SecretsRow {
  readonly secret_sha256: Uint8Array;
  readonly previous_secret_sha256: Uint8Array | null;
  readonly previous_ms: bigint | null;
}

export function readSecrets(row: SecretsRow): readonly StoredSecret[] {
  const secrets: StoredSecret[] = [{ sha256: row.secret_sha256, validForMs: undefined }];
  if (row.previous_secret_sha256 !== null && row.previous_ms !== null && row.previous_ms > 0n) {
    secrets.push({ sha256: row.previous_secret_sha256, validForMs: Number(row.previous_ms) });
  }
  return secrets;
}

async function one(
  database: Database,
  sql: typeof getStatement,
  values: readonly unknown[],
): Promise<VaultKey | undefined> {
  const [row] = await run<KeyRow>(database, sql, [...values]);
  return row === undefined ? undefined : readKey(row);
}

function policyValues(policy: VaultKeyPolicy): readonly unknown[] {
  return [
    policy.allowedEndpoints,
    policy.billingPeriods ?? null,
    policy.purposes ?? null,
    policy.customers ?? null,
    policy.maxPerSpend?.micros ?? null,
    policy.maxPerSpend?.currency ?? null,
    policy.expireTime ?? null,
    policy.attachedCaps,
    JSON.stringify(policy.labels),
    policy.proxy === undefined ? null : JSON.stringify(policy.proxy),
  ];
}

function readKey(row: KeyRow): VaultKey {
  return {
    vaultKeyId: row.vault_key_id,
    state: row.state,
    vendor: row.vendor,
    allowedEndpoints: row.allowed_endpoints,
    billingPeriods: row.billing_periods ?? undefined,
    purposes: row.purposes ?? undefined,
    customers: row.customers ?? undefined,
    maxPerSpend:
      row.max_per_spend_micros === null || row.max_per_spend_currency === null
        ? undefined
        : { currency: row.max_per_spend_currency, micros: toMicros(row.max_per_spend_micros) },
    expireTime: row.expire_time ?? undefined,
    attachedCaps: row.attached_caps,
    labels: row.labels,
    proxy: row.proxy === null ? undefined : { ...defaultProxyPolicy, ...row.proxy },
    version: row.version,
    createTime: row.create_time,
    updateTime: row.update_time,
    suspendTime: row.suspend_time ?? undefined,
    revokeTime: row.revoke_time ?? undefined,
    reason: row.reason,
    previousSecretExpireTime: row.previous_secret_expire_time ?? undefined,
    lastUseTime: row.last_use_time ?? undefined,
  };
}
