/** What a reader makes of parameters: texts, lists and groups in each other. */
export type Tree = string | Tree[] | Map<string, Tree>;

/**
 * Reads parameters as Rack does, the server library of Ruby: names with brackets are groups, "[]" adds to a list, and in
 * a list of groups a member that is there already begins the next group. Written after its `parse_nested_query`, with
 * ';' between parameters as its versions before 3 have it. @throws Error where Rack raises one
 */
export function readLikeRack(text: string): Map<string, Tree> {
  const root = new Map<string, Tree>();
  for (const part of text.split(/[&;] */)) {
    if (part === "") continue;
    const at = part.indexOf("=");
    const name = unescape(at < 0 ? part : part.slice(0, at));
    normalize(root, name, at < 0 ? "" : unescape(part.slice(at + 1)), 0);
  }
  return root;
}

function unescape(text: string): string {
  const bytes = Buffer.from(
    text
      .replaceAll("+", " ")
      .replaceAll(/%([0-9A-Fa-f]{2})/g, (_, digits: string) => String.fromCharCode(Number.parseInt(digits, 16))),
    "latin1",
  );
  return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
}

function split(name: string, depth: number): readonly [key: string, after: string] {
  if (depth === 0) {
    const at = name.indexOf("[", 1);
    return at < 0 ? [name, ""] : [name.slice(0, at), name.slice(at)];
  }
  if (name.startsWith("[]")) return ["[]", name.slice(2)];
  const at = name.startsWith("[") ? name.indexOf("]", 1) : -1;
  return at < 0 ? [name, ""] : [name.slice(1, at), name.slice(at + 1)];
}

function normalize(group: Map<string, Tree>, name: string, value: string, depth: number): void {
  const [key, after] = split(name, depth);
  if (key === "") return;
  if (after === "" || after === "[") {
    group.set(after === "" ? key : name, value);
    return;
  }
  const inList = /^\[\]\[([^[\]]+)\]$/.exec(after)?.[1] ?? /^\[\](.+)$/.exec(after)?.[1];
  if (after !== "[]" && inList === undefined) {
    const member = group.get(key) ?? new Map<string, Tree>();
    if (!(member instanceof Map)) throw new Error(`${key} is no group`);
    group.set(key, member);
    normalize(member, after, value, depth + 1);
    return;
  }
  const list = group.get(key) ?? [];
  if (!Array.isArray(list)) throw new Error(`${key} is no list`);
  group.set(key, list);
  if (inList === undefined) {
    list.push(value);
    return;
  }
  const last = list.at(-1);
  const next = last instanceof Map && !last.has(inList) ? last : new Map<string, Tree>();
  if (next !== last) list.push(next);
  normalize(next, inList, value, depth + 1);
}
