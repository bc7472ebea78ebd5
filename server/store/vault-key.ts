import { HoldfastError } from "../domain/errors.ts";
import { toMicros } from "../domain/money.ts";
import type { Authorization } from "../domain/spend.ts";
import type { NewVaultKey, VaultKey, VaultKeyState } from "../domain/vault-key.ts";
import { type AuthorizationRow, authorizationColumns, epochMicros, readAuthorization } from "./authorization.ts";
import { type Database, run, statement } from "./database.ts";

const keyColumns = `k.vault_key_id, k.state, k.vendor, k.allowed_endpoints, k.billing_periods, k.purposes, k.customers,
  k.max_per_spend_micros, k.max_per_spend_currency, ${epochMicros("k.expire_time")} as expire_time,
  ${epochMicros("k.create_time")} as create_time, ${epochMicros("k.revoke_time")} as revoke_time`;

const insertStatement = statement(
  "insert_vault_key",
  `insert into holdfast.vault_keys as k (
     workspace_id, vault_key_id, secret_sha256, vendor, allowed_endpoints, billing_periods, purposes, customers,
     max_per_spend_micros, max_per_spend_currency, expire_time, create_time
   )
   values ($1::text, $2::text, $3::bytea, $4::text, $5::text[], $6::text[], $7::text[], $8::text[], $9::bigint,
     $10::text, timestamptz 'epoch' + $11::bigint * interval '1 microsecond', holdfast.clock())
   on conflict (workspace_id, vault_key_id) do nothing
   returning ${keyColumns}`,
);

const getStatement = statement(
  "get_vault_key",
  `select ${keyColumns} from holdfast.vault_keys k where k.workspace_id = $1::text and k.vault_key_id = $2::text`,
);

const listStatement = statement(
  "list_vault_keys",
  `select ${keyColumns} from holdfast.vault_keys k
   where k.workspace_id = $1::text and k.vault_key_id > $2::text
   order by k.vault_key_id limit $3::integer`,
);

const revokeStatement = statement(
  "revoke_vault_key",
  `update holdfast.vault_keys k set state = 'REVOKED', revoke_time = coalesce(k.revoke_time, holdfast.clock())
   where k.workspace_id = $1::text and k.vault_key_id = $2::text
   returning ${keyColumns}`,
);

const secretStatement = statement(
  "vault_key_secret",
  `select k.secret_sha256 from holdfast.vault_keys k where k.workspace_id = $1::text and k.vault_key_id = $2::text`,
);

const openStatement = statement(
  "open_authorizations_of_vault_key",
  `select ${authorizationColumns("t")}, count(*) over () as open_count
   from holdfast.authorizations t
   where t.workspace_id = $1::text and t.vault_key_id = $2::text and t.state in ('HELD', 'IN_DOUBT')
   order by t.grant_time desc, t.spend_key limit $3::integer`,
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
  readonly expire_time: bigint | null;
  readonly create_time: bigint;
  readonly revoke_time: bigint | null;
}

/** Throws ALREADY_EXISTS. The workspace row must have been taken by `beginPolicyChange`. */
export async function insertVaultKey(
  transaction: Database,
  workspace: string,
  key: NewVaultKey,
  secretSha256: Uint8Array,
): Promise<VaultKey> {
  const [row] = await run<KeyRow>(transaction, insertStatement, [
    workspace,
    key.vaultKeyId,
    secretSha256,
    key.vendor,
    key.allowedEndpoints,
    key.billingPeriods ?? null,
    key.purposes ?? null,
    key.customers ?? null,
    key.maxPerSpend?.micros ?? null,
    key.maxPerSpend?.currency ?? null,
    key.expireTime ?? null,
  ]);
  if (row !== undefined) return readKey(row);
  throw new HoldfastError("ALREADY_EXISTS", `The vault key vaultKeys/${key.vaultKeyId} exists; choose another id.`, {
    metadata: { name: `vaultKeys/${key.vaultKeyId}` },
  });
}

export async function getVaultKey(database: Database, workspace: string, id: string): Promise<VaultKey | undefined> {
  const [row] = await run<KeyRow>(database, getStatement, [workspace, id]);
  return row === undefined ? undefined : readKey(row);
}

/** By id, beginning after `after`. */
export async function listVaultKeys(
  database: Database,
  workspace: string,
  after: string,
  limit: number,
): Promise<VaultKey[]> {
  return (await run<KeyRow>(database, listStatement, [workspace, after, limit])).map(readKey);
}

/** Undefined if there is no such key. The workspace row must have been taken by `beginPolicyChange`. */
export async function revokeVaultKey(
  transaction: Database,
  workspace: string,
  id: string,
): Promise<VaultKey | undefined> {
  const [row] = await run<KeyRow>(transaction, revokeStatement, [workspace, id]);
  return row === undefined ? undefined : readKey(row);
}

/** SHA-256 of the key's token; also of a revoked key, which may still settle what it was granted. */
export async function vaultKeySecret(
  database: Database,
  workspace: string,
  id: string,
): Promise<Uint8Array | undefined> {
  const [row] = await run<{ secret_sha256: Uint8Array }>(database, secretStatement, [workspace, id]);
  return row?.secret_sha256;
}

/** What the key was granted and is not settled: newest first, at most `limit`, and how many in all. */
export async function openAuthorizationsOf(
  database: Database,
  workspace: string,
  id: string,
  limit: number,
): Promise<{ readonly authorizations: readonly Authorization[]; readonly count: bigint }> {
  const rows = await run<AuthorizationRow & { open_count: bigint }>(database, openStatement, [workspace, id, limit]);
  return {
    authorizations: rows.map(readAuthorization).filter((row) => row !== undefined),
    count: rows[0]?.open_count ?? 0n,
  };
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
    createTime: row.create_time,
    revokeTime: row.revoke_time ?? undefined,
  };
}
