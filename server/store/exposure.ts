import type { Authorization } from "../domain/spend.ts";
import { type AuthorizationRow, authorizationColumns, readAuthorization } from "./authorization.ts";
import { type Database, run, statement } from "./database.ts";

// One statement for every target: the partial index holds the open ones only, so the filters read little else.
const openStatement = statement(
  "list_open_authorizations",
  `select ${authorizationColumns("t")}, count(*) over () as open_count
   from holdfast.authorizations t
   where t.workspace_id = $1::text and t.state in ('HELD', 'IN_DOUBT')
     and ($2::text is null or t.vault_key_id = $2::text)
     and ($3::text is null or t.vendor = $3::text)
     and ($4::text is null or t.customer_id = $4::text)
   order by t.grant_time desc, t.spend_key, t.generation limit $5::integer`,
);

/** What is set must match; nothing set is the whole workspace. */
export interface ExposureFilter {
  readonly vaultKeyId?: string;
  readonly vendor?: string;
  readonly customerId?: string;
}

/** What was granted before and is still open. */
export interface Exposure {
  /** Newest first. */
  readonly authorizations: readonly Authorization[];
  /** How many in all. */
  readonly count: bigint;
}

/**
 * Reads what is held or in doubt: at most `limit`, and how many there are. Read it after the change that stops new
 * grants has been committed; then it is the whole exposure.
 */
export async function readExposure(
  database: Database,
  workspace: string,
  filter: ExposureFilter,
  limit: number,
): Promise<Exposure> {
  const values = [workspace, filter.vaultKeyId ?? null, filter.vendor ?? null, filter.customerId ?? null, limit];
  const rows = await run<AuthorizationRow & { open_count: bigint }>(database, openStatement, values);
  return {
    authorizations: rows.map(readAuthorization).filter((row) => row !== undefined),
    count: rows[0]?.open_count ?? 0n,
  };
}
