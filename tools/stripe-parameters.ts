import { existsSync, globSync, readFileSync } from "node:fs";
import { join } from "node:path";

/** Per write, as "POST /v1/charges/:id/capture", the names of its parameters. */
export type ParametersByWrite = Map<string, Set<string>>;

/** Where one major of stripe-node keeps its resources and their types. */
interface Layout {
  readonly sources: string;
  /** The file of the types that belong to a resource. */
  readonly typesOf: (resource: string) => string;
}

const layouts: readonly Layout[] = [
  { sources: "cjs/resources", typesOf: (resource) => `cjs/resources/${resource}.d.ts` },
  { sources: "cjs/resources", typesOf: (resource) => `types/${resource}Resource.d.ts` },
  { sources: "lib/resources", typesOf: (resource) => `types/2020-08-27/${resource}.d.ts` },
];

/** Reads what a stripe-node package says in its types about the parameters of each write. */
export function readParameters(folder: string): ParametersByWrite {
  const found: ParametersByWrite = new Map();
  for (const { sources, typesOf } of layouts) {
    for (const file of globSync("**/*.js", { cwd: join(folder, sources) })) {
      const types = join(folder, typesOf(file.slice(0, -".js".length)));
      if (!existsSync(types)) continue;
      const declared = readFileSync(types, "utf8");
      for (const { method, endpoint } of callsIn(readFileSync(join(folder, sources, file), "utf8"))) {
        if (endpoint.startsWith("GET ")) continue;
        const names = found.get(endpoint) ?? new Set();
        for (const name of parametersOf(declared, method)) names.add(name);
        found.set(endpoint, names);
      }
    }
  }
  return found;
}

/** The reads that a stripe-node package knows, as "GET /v1/charges/:id", and whether each lists or searches. */
export function readReads(folder: string): ReadonlyMap<string, boolean> {
  const files = layouts.flatMap(({ sources }) => globSync(join(sources, "**/*.js"), { cwd: folder }));
  return new Map(
    files
      .flatMap((file) => callsIn(readFileSync(join(folder, file), "utf8")))
      .filter(({ endpoint }) => endpoint.startsWith("GET "))
      .map(({ endpoint, lists }) => [endpoint, lists]),
  );
}

interface Call {
  /** Its name in JavaScript. */
  readonly method: string;
  readonly endpoint: string;
  readonly lists: boolean;
}

/** The calls of a resource, in the three ways in which stripe-node has written them down. */
function callsIn(source: string): Call[] {
  const base = /^ {2}path: '([^']*)'/m.exec(source)?.[1];
  const calls: Call[] = [];
  const specified = /^ +(\w+): stripeMethod\(\{\s*method: '(\w+)',\s*(fullPath|path): '([^']*)'([^}]*)/gm;
  for (const [, method = "", verb = "", kind, path = "", rest = ""] of source.matchAll(specified)) {
    const whole = kind === "fullPath" ? path : `/v1/${base}${path === "" || path.startsWith("/") ? path : `/${path}`}`;
    const endpoint = `${verb} ${whole.replaceAll("//", "/").replaceAll(/\{\w+\}/g, ":id")}`;
    calls.push({ method, endpoint, lists: rest.includes("methodType: ") });
  }
  let method = "";
  for (const line of source.split("\n")) {
    method = /^ {4}(?:async )?(\w+)\(.*\) \{$/.exec(line)?.[1] ?? method;
    const [, verb, path] = /_makeRequest\('(\w+)', ['`]([^'`]*)['`]/.exec(line) ?? [];
    if (path === undefined) continue;
    const lists = /^(?:list|search)/.test(method);
    calls.push({ method, endpoint: `${verb} ${path.replaceAll(/\$\{.*?\)\}/g, ":id")}`, lists });
  }
  return calls;
}

function* parametersOf(types: string, method: string): Generator<string> {
  const signatures = types.matchAll(new RegExp(`^ +${method}\\(([^)]*)\\)`, "gm"));
  for (const [, signature = ""] of signatures) {
    const type = /\bparams\??:\s*([\w.]+)/.exec(signature)?.[1]?.split(".").at(-1);
    if (type !== undefined) yield* membersOf(types, type);
  }
}

function membersOf(types: string, type: string): string[] {
  const [, indent = "", body = ""] =
    new RegExp(`^( *)(?:export )?interface ${type}(?: extends [^{]*)? \\{\n(.*?)^\\1\\}`, "ms").exec(types) ?? [];
  // One level: two spaces in the older packages, four in the newer ones.
  return [...body.matchAll(new RegExp(`^${indent}(?:  |    )["']?(\\w+)["']?\\??:`, "gm"))].map(
    ([, name = ""]) => name,
  );
}
