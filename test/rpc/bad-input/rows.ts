import type pg from "pg";

/** Events that a refused call of the domain writes on purpose. */
const refusedKinds = ["spend.denied", "spend.hold_increase_denied"];

/** A hash over all rows, by table, without what refused calls write down on purpose, each for itself or folded. */
export async function hashRows(pool: pg.Pool): Promise<Readonly<Record<string, string>>> {
  const { rows: tables } = await pool.query<{ name: string }>(
    `select c.oid::regclass::text as name from pg_class c
     where c.relnamespace = 'holdfast'::regnamespace and c.relkind in ('r', 'p') and c.relname <> 'audit_folds' order by 1`,
  );
  const union = tables.map(
    ({ name }) =>
      `select '${name}' as name, md5(coalesce(string_agg(md5(t::text), ',' order by md5(t::text)), '')) as hash from ${rowsOf(name)} t
       ${name.includes("audit_events") ? "where kind <> all ($1) and kind not like 'spend.%\\_refused'" : ""}`,
  );
  const { rows } = await pool.query<{ name: string; hash: string }>(
    `select * from (${union.join(" union all ")}) u order by 1`,
    [refusedKinds],
  );
  return Object.fromEntries(rows.map(({ name, hash }) => [name, hash]));
}

/** A change that is refused has announced itself before: only the time of that may differ. */
function rowsOf(table: string): string {
  return table.endsWith("policy_gates") ? `(select workspace_id, waiting from ${table})` : table;
}
