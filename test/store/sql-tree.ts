import type pg from "pg";

/** One node of a parsed statement, as Postgres keeps it in its catalog. */
export interface SqlNode {
  readonly type: string;
  readonly fields: ReadonlyMap<string, SqlValue>;
}
export type SqlValue = string | SqlNode | readonly SqlValue[];

/** A parameter of a statement: a name and a type, as in the head of a function. */
export interface SqlParameter {
  readonly name?: string;
  readonly type: string;
}

/**
 * Parses a statement as Postgres does, names and operators resolved, without running it: as the body of a function that is
 * dropped again. Nothing else says which functions an operator or a cast calls.
 *
 * @throws DatabaseError where the statement does not parse with these parameters.
 */
export async function parseStatement(
  client: pg.ClientBase,
  text: string,
  parameters: readonly SqlParameter[],
): Promise<SqlNode> {
  const head = parameters.map(({ name, type }) => `${name === undefined ? "" : `"${name}" `}${type}`).join(", ");
  // Followed by something that answers a row, so that it does not matter whether the statement itself does.
  const body = `${text};\nselect 1;`;
  await client.query("begin");
  try {
    await client.query(`create function pg_temp.parsed(${head}) returns integer language sql begin atomic ${body} end`);
    const { rows } = await client.query<{ tree: string }>(
      "select prosqlbody::text as tree from pg_proc where pronamespace = pg_my_temp_schema() and proname = 'parsed'",
    );
    const query = nodesIn(readTree(rows[0]?.tree ?? "")).find(({ type }) => type === "QUERY");
    if (query === undefined) throw new Error("The statement has no query.");
    return query;
  } finally {
    await client.query("rollback");
  }
}

/** The text without its comments. */
export function withoutComments(text: string): string {
  return text.replace(/\/\*[^]*?\*\//g, " ").replace(/--[^\n]*/g, " ");
}

/** Reads `{NODE :field value …}` and `(…)`; whatever else is there is text. */
export function readTree(text: string): SqlValue {
  const tokens = text.match(/"(?:\\.|[^"\\])*"|[(){}]|(?:\\.|[^\s(){}\\])+/g) ?? [];
  let at = 0;
  const value = (): SqlValue => {
    const token = tokens[at++] ?? "";
    if (token === "(") {
      const list: SqlValue[] = [];
      while (at < tokens.length && tokens[at] !== ")") list.push(value());
      at++;
      return list;
    }
    if (token !== "{") return token;
    const type = tokens[at++] ?? "";
    const fields = new Map<string, SqlValue>();
    while (at < tokens.length && tokens[at] !== "}") {
      const name = (tokens[at++] ?? "").slice(1);
      const values: SqlValue[] = [];
      while (at < tokens.length && tokens[at] !== "}" && !tokens[at]?.startsWith(":")) values.push(value());
      fields.set(name, values.length === 1 ? (values[0] ?? "") : values);
    }
    at++;
    return { type, fields };
  };
  return value();
}

/** Every node in it, itself first. */
export function nodesIn(value: SqlValue | undefined): SqlNode[] {
  if (value === undefined || typeof value === "string") return [];
  if (isNode(value)) return [value, ...[...value.fields.values()].flatMap(nodesIn)];
  return value.flatMap(nodesIn);
}

function word(node: SqlNode, field: string): string {
  const value = node.fields.get(field);
  return typeof value === "string" ? value : "";
}

function isNode(value: SqlValue): value is SqlNode {
  return typeof value === "object" && "fields" in value;
}

export type Volatility = "i" | "s" | "v";

/** How every function of the database behaves, by its oid. */
export type Functions = ReadonlyMap<string, { readonly name: string; readonly volatility: Volatility }>;

export async function readFunctions(client: pg.ClientBase): Promise<Functions> {
  const { rows } = await client.query<{ oid: string; name: string; volatility: Volatility }>(
    `select p.oid::text as oid, p.provolatile as volatility,
       case when n.nspname = 'pg_catalog' then '' else n.nspname || '.' end || p.proname as name
     from pg_proc p join pg_namespace n on n.oid = p.pronamespace`,
  );
  return new Map(rows.map(({ oid, ...row }) => [oid, row]));
}

/** The functions that a node itself calls, by its own name or as an operator. */
function callsOf(node: SqlNode): string[] {
  const oids = ["funcid", "opfuncid", "aggfnoid", "winfnoid"].map((field) => node.fields.get(field));
  return oids.filter((oid) => typeof oid === "string" && oid !== "0") as string[];
}

function called(value: SqlValue | undefined, functions: Functions, kinds: readonly Volatility[]): string[] {
  const found: string[] = [];
  for (const node of nodesIn(value)) {
    if (node.type === "SQLVALUEFUNCTION" && kinds.includes("s")) found.push("current_time and the like");
    for (const oid of callsOf(node)) {
      const one = functions.get(oid);
      if (one !== undefined && kinds.includes(one.volatility)) found.push(one.name);
    }
  }
  return [...new Set(found)];
}

/**
 * What a Citus coordinator refuses in a statement that changes rows of a distributed table, for it must come to the same on
 * every node: in DO UPDATE and RETURNING anything but immutable functions; in what an UPDATE sets and in the WHERE of an
 * UPDATE or DELETE volatile ones, stable ones of a column, and stable ones inside CASE or COALESCE.
 */
export function unstableChanges(query: SqlNode, functions: Functions): string[] {
  return nodesIn(query)
    .filter((node) => node.type === "QUERY" && ["2", "3", "4"].includes(word(node, "commandType")))
    .flatMap((change) => {
      const command = word(change, "commandType");
      const conflict = nodesIn(change.fields.get("onConflict"))[0];
      const join = nodesIn(change.fields.get("jointree"))[0];
      // Of CmdType: 2 updates, 3 inserts, 4 deletes.
      const found: [string, string[]][] = [
        ["returning", called(change.fields.get("returningList"), functions, ["s", "v"])],
        ["do update", called(conflict?.fields.get("onConflictSet"), functions, ["s", "v"])],
        ["do update where", called(conflict?.fields.get("onConflictWhere"), functions, ["s", "v"])],
      ];
      if (command === "2") found.push(["set", perRow(change.fields.get("targetList"), functions)]);
      if (command !== "3") found.push(["where", perRow(join?.fields.get("quals"), functions)]);
      return found.flatMap(([where, names]) => names.map((name) => `${where}: ${name}`));
    });
}

function perRow(value: SqlValue | undefined, functions: Functions): string[] {
  const found = called(value, functions, ["v"]);
  for (const node of nodesIn(value)) {
    const stable = callsOf(node).filter((oid) => functions.get(oid)?.volatility === "s");
    const ofColumn = nodesIn(node.fields.get("args")).some(({ type }) => type === "VAR");
    if (ofColumn) found.push(...stable.map((oid) => `${functions.get(oid)?.name} of a column`));
    if (node.type === "CASEEXPR" || node.type === "CASE" || node.type === "COALESCEEXPR" || node.type === "COALESCE") {
      found.push(...called(node, functions, ["s"]).map((name) => `${name} in ${node.type.slice(0, 4).toLowerCase()}`));
    }
  }
  return [...new Set(found)];
}
