import { readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { apiExports, apiReference, internalEntries } from "../../tools/api-reference.ts";

const sdk = join(import.meta.dirname, "..", "..", "sdk");
const read = (path: string): string => readFileSync(join(sdk, path), "utf8");
const manifest = JSON.parse(read("package.json")) as {
  exports: Readonly<Record<string, string | { readonly "holdfast-source": string }>>;
};
const entries = Object.entries(manifest.exports).flatMap(([path, target]) =>
  typeof target === "string" || internalEntries.has(path) ? [] : [target["holdfast-source"]],
);

describe("the API reference", () => {
  it.each(entries)("has something to say about every export of %s", (entry) => {
    const exported = apiExports(read(entry), read);
    expect(exported.length).toBeGreaterThan(0);
    expect(exported.filter(({ doc }) => doc.length < 20).map(({ name }) => name)).toEqual([]);
  });

  it("is written for every export that the sources have now", () => {
    const text = read("API.md");
    const names = entries.flatMap((entry) => apiExports(read(entry), read).map(({ name }) => name));
    expect(new Set([...text.matchAll(/^### (\S+)$/gm)].map(([, name]) => name))).toEqual(new Set(names));
    for (const name of names) expect(text).toContain(`(#${name.toLowerCase()})`);
  });
});

const modules: Readonly<Record<string, string>> = {
  "./money.ts": `/** Not exported. */
declare function hidden(): void;
/**
 * Adds two amounts;
 * see \`Money\`.
 */
export declare function add(a: { readonly "x;}": string }, b: Money): Money;
export declare function add(a: Money): Money;
/** Money. */
export interface Money {
    /** Digits; no braces }. */
    readonly amount: string;
}
export type Bare = "a;b" | { readonly kind: "c" };
`,
  "./errors.ts": `/** Goes wrong. */
export declare class WrongError extends Error {
    readonly code = "wrong";
}
`,
};
const readModule = (specifier: string): string => modules[specifier] ?? "";

describe("its extractor", () => {
  const entry = 'export { add, type Money } from "./money.ts";\nexport * from "./errors.ts";\n';

  it("finds what an entry point exports, with comments, overloads and members, and nothing else", () => {
    const exported = apiExports(entry, readModule);
    expect(exported.map(({ kind, name }) => `${kind} ${name}`)).toEqual([
      "function add",
      "interface Money",
      "class WrongError",
    ]);
    expect(exported[0]?.doc).toBe("Adds two amounts;\nsee `Money`.");
    expect(exported[0]?.code.split("\n")).toEqual([
      'export declare function add(a: { readonly "x;}": string }, b: Money): Money;',
      "export declare function add(a: Money): Money;",
    ]);
    expect(exported[1]?.code).toMatch(/^export interface Money \{[^]*readonly amount: string;\n\}$/);
  });

  it("fails on an export without a comment, and on one that is not declared", () => {
    const bare = apiExports('export type { Bare } from "./money.ts";\n', readModule);
    expect(bare).toEqual([
      { name: "Bare", kind: "type", doc: "", code: 'export type Bare = "a;b" | { readonly kind: "c" };' },
    ]);
    expect(() => apiReference([{ specifier: "x", exports: bare }])).toThrow("Without a TSDoc comment: Bare.");
    expect(() => apiExports('export { gone } from "./money.ts";\n', readModule)).toThrow("gone is exported");
  });
});
