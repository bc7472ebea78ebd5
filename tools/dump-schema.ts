// Writes server/store/schema.sql: what a migrated database looks like, read from its catalog. For review and for
// the diff in .ci/run; nothing reads it at run time.
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { startEmbeddedPostgres } from "../server/store/embedded-postgres.ts";
import { migrate } from "../server/store/migrate.ts";
import { createPool } from "../server/store/postgres.ts";

const tables = `
  select format(E'create table holdfast.%I (\\n%s\\n)%s;', c.relname, string_agg(x.line, E',\\n' order by x.kind, x.place),
    case c.relkind when 'p' then ' partition by ' || pg_get_partkeydef(c.oid) else '' end) as text
  from pg_class c
  cross join lateral (
    select 1 as kind, lpad(a.attnum::text, 4, '0') as place, format('  %I %s%s%s', a.attname, format_type(a.atttypid, a.atttypmod),
      coalesce(' default ' || pg_get_expr(d.adbin, d.adrelid), ''), case when a.attnotnull then ' not null' else '' end)
      as line
    from pg_attribute a left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
    where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    union all
    select 2, k.conname, format('  constraint %I %s', k.conname, pg_get_constraintdef(k.oid))
    from pg_constraint k where k.conrelid = c.oid and k.contype <> 'n'
  ) x
  where c.relnamespace = 'holdfast'::regnamespace and c.relkind in ('r', 'p')
  group by c.oid, c.relname, c.relkind order by c.relname`;

const indexes = `
  select pg_get_indexdef(i.indexrelid) || ';' as text
  from pg_index i join pg_class c on c.oid = i.indexrelid
  where c.relnamespace = 'holdfast'::regnamespace
    and not exists (select from pg_constraint k where k.conindid = i.indexrelid)
  order by c.relname`;

const functions = `
  select format('-- function holdfast.%s(%s) returns %s', p.proname, pg_get_function_identity_arguments(p.oid),
    pg_get_function_result(p.oid)) as text
  from pg_proc p where p.pronamespace = 'holdfast'::regnamespace order by p.proname`;

const folder = mkdtempSync(join(tmpdir(), "holdfast-schema-"));
const postgres = await startEmbeddedPostgres({ dataFolder: folder });
try {
  await migrate(postgres.connection);
  const pool = createPool({ connection: postgres.connection, max: 2 });
  const sections: string[] = ["-- Printed from a migrated database by npm run generate."];
  for (const query of [tables, indexes, functions]) {
    const { rows } = await pool.query<{ text: string }>(query);
    sections.push(rows.map((row) => row.text).join("\n\n"));
  }
  await pool.end();
  writeFileSync("server/store/schema.sql", `${sections.join("\n\n")}\n`);
} finally {
  await postgres.close();
  rmSync(folder, { recursive: true, force: true });
}
