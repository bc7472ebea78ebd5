import type pg from "pg";
import { type Functions, parseStatement, type SqlParameter, unstableChanges, withoutComments } from "./sql-tree.ts";

/** What a statement may name the workspace by: a parameter, or a variable that has it. */
export type Workspace = readonly string[];

const notAnAlias =
  /^(?:as|cross|full|group|inner|join|left|limit|loop|offset|on|order|returning|select|set|union|using|values|where)$/;
const escaped = (text: string) => text.replace(/[.$]/g, "\\$&");

function plain(text: string): string {
  return withoutComments(text)
    .replace(/'(?:[^']|'')*'/g, "''")
    .toLowerCase();
}

/**
 * The distributed tables of a statement that it does not bind to the workspace: a table that is read or changed needs an
 * equality of its workspace_id, with the workspace or with that of a table that is bound; one that is inserted into takes
 * it as its first column. By alias, so that a table that is there twice is bound twice.
 */
export function unboundTables(text: string, tables: ReadonlySet<string>, workspace: Workspace): string[] {
  const clean = plain(text);
  const ours = workspace.map(escaped).join("|");
  const found: string[] = [];
  const aliases: string[] = [];
  const tableAt = /(\binsert into|\bfrom|\bjoin|\bupdate|\busing|,)\s+holdfast\.(\w+)(?![\w(])(?:\s+(?:as\s+)?(\w+))?/g;
  for (const { 1: keyword = "", 2: table = "", 3: word = "", index } of clean.matchAll(tableAt)) {
    if (!tables.has(table)) continue;
    const alias = word === "" || notAnAlias.test(word) ? table : word;
    if (keyword !== "insert into") aliases.push(alias);
    else if (!givesWorkspace(clean.slice(index), ours)) found.push(`insert into ${table}`);
  }
  const bound = new Set<string>();
  const equalities = [...clean.matchAll(/(\$?[\w.]+(?:::text)?) = (\$?[\w.]+(?:::text)?)/g)].map(
    ([, a = "", b = ""]) => [a, b],
  );
  const isOurs = new RegExp(`^(?:${ours})$`);
  const of = (side: string) => /^(\w+)\.workspace_id$/.exec(side)?.[1];
  for (let grown = true; grown; ) {
    grown = false;
    for (const [a = "", b = ""] of equalities) {
      for (const [left, right] of [
        [a, b],
        [b, a],
      ] as const) {
        const alias = of(left);
        const other = of(right);
        if (alias === undefined || bound.has(alias)) continue;
        if (isOurs.test(right) || (other !== undefined && bound.has(other))) grown = bound.add(alias) !== undefined;
      }
    }
  }
  for (const alias of new Set(aliases)) {
    const uses = aliases.filter((one) => one === alias).length;
    const times = equalities.filter((sides) => sides.some((side) => of(side) === alias)).length;
    if (!bound.has(alias) || times < uses) found.push(alias);
  }
  return found;
}

function givesWorkspace(insert: string, ours: string): boolean {
  const given = new RegExp(
    `^insert into holdfast\\.\\w+(?:\\s+as\\s+\\w+)?\\s*\\(\\s*workspace_id\\b[^)]*\\)\\s*` +
      `(?:values\\s*\\(|select\\s+(?:distinct\\s+)?)\\s*(?:(?:${ours})|\\w+\\.workspace_id)(?![\\w.])`,
  );
  return given.test(insert);
}

/** The functions of one workspace that a statement calls with anything but that workspace in front. */
export function foreignCalls(text: string, ofWorkspace: ReadonlySet<string>, workspace: Workspace): string[] {
  const clean = plain(text);
  const first = new RegExp(`^\\s*(?:holdfast\\.where_granting\\()?(?:${workspace.map(escaped).join("|")})(?![\\w.])`);
  return [...clean.matchAll(/holdfast\.(\w+)\(/g)]
    .filter(
      ({ 0: call, 1: name = "", index }) => ofWorkspace.has(name) && !first.test(clean.slice(index + call.length)),
    )
    .map(([, name = ""]) => name);
}

/** What needs a session of one node, or a number that all nodes would have to share. */
export function sessionWords(text: string): string[] {
  const words = plain(text).match(
    /\b(?:listen|unlisten|notify|pg_notify|pg_(?:try_)?advisory\w*|nextval|currval|setval)\b/g,
  );
  return [...new Set(words)];
}

/** A function of the schema, as the catalog has it. */
export interface StoredFunction {
  readonly name: string;
  readonly source: string;
  readonly language: string;
  readonly parameters: readonly SqlParameter[];
}

export async function readStoredFunctions(client: pg.ClientBase): Promise<StoredFunction[]> {
  const { rows } = await client.query<{
    name: string;
    source: string;
    language: string;
    names: string[];
    types: string[];
  }>(
    `select p.proname as name, p.prosrc as source, l.lanname as language,
       coalesce(p.proargnames, '{}') as names,
       array(select format_type(t, null) from unnest(coalesce(p.proallargtypes, p.proargtypes::oid[])) as t) as types
     from pg_proc p join pg_language l on l.oid = p.prolang
     where p.pronamespace = 'holdfast'::regnamespace order by p.proname`,
  );
  return rows.map(({ names, types, ...row }) => ({
    ...row,
    parameters: types.map((type, index) => ({ name: names[index] ?? `p_${index}`, type })),
  }));
}

/** The statements of a function, in their order, each from its first word of SQL. */
export function statementsOf(source: string): string[] {
  return withoutComments(source)
    .split(";")
    .map(
      (piece) =>
        /\b(?:with\s+\w+\s+as|select|perform|insert into|update holdfast|delete from|lock table)\b[^]*/.exec(
          piece,
        )?.[0],
    )
    .filter((piece) => piece !== undefined);
}

/**
 * What Citus refuses of the changes that a function makes, by Postgres' own parser. The variables of the function become
 * parameters, and what a loop reads into a record becomes null.
 */
export async function unstableChangesOf(
  client: pg.ClientBase,
  stored: StoredFunction,
  functions: Functions,
): Promise<string[]> {
  const declared = /\bdeclare\b([^]*?)\bbegin\b/.exec(withoutComments(stored.source))?.[1] ?? "";
  const parameters = new Map(stored.parameters.map(({ name = "", type }) => [name, type]));
  const records: string[] = [];
  for (const one of declared.split(";")) {
    for (const [, name = "", type = ""] of one.matchAll(/^\s*(\w+)\s+([\w.]+(?:\[\])?)/g)) {
      if (type === "record") records.push(name);
      else parameters.set(name, type);
    }
  }
  parameters.set("i", "integer");
  const found: string[] = [];
  for (const statement of statementsOf(stored.source)) {
    const change = /\b(?:with\s+\w+\s+as|insert into|update holdfast|delete from)\b[^]*/.exec(statement)?.[0];
    if (change === undefined || !/\b(?:insert into|update holdfast|delete from)\b/.test(change)) continue;
    // Where a table goes by the name of a record, the name means the table.
    const read = records.filter((name) => !new RegExp(`(?:holdfast\\.\\w+|\\)|\\bas)\\s+${name}\\b`).test(change));
    const text = change
      .replace(/\binto (?:v_\w+(?:, v_\w+)*|[a-z])\b(?!\.)/g, "")
      .replace(/\bloop\b[^]*$/, "")
      .replace(new RegExp(`\\b(?:${read.join("|") || "none"})\\.\\w+`, "g"), "null");
    const query = await parseStatement(
      client,
      text,
      [...parameters].map(([name, type]) => ({ name, type })),
    );
    found.push(...unstableChanges(query, functions));
  }
  return [...new Set(found)];
}
