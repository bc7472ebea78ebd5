import { describe, expect, it } from "vitest";
import { publishedManifest } from "../../tools/pack-packages.ts";
import { packageShapeProblems } from "../../tools/package-shape.ts";

const manifest = {
  name: "@holdfast/sdk",
  version: "0.1.0",
  license: "Apache-2.0",
  description: "A package.",
  keywords: ["billing"],
  type: "module",
  engines: { node: ">=22.18" },
  sideEffects: false,
  publishConfig: { access: "public" },
  exports: { ".": { types: "./dist/index.d.ts", default: "./dist/index.js" }, "./package.json": "./package.json" },
  dependencies: { "@connectrpc/connect": "^2.3.0" },
  peerDependencies: { stripe: ">=18.0.0 <24" },
};
const files = {
  "package.json": "",
  "README.md": "",
  LICENSE: "",
  "dist/index.js": 'import { Code } from "@connectrpc/connect";\nexport { key } from "./key.js";\n',
  "dist/index.d.ts": 'import type Stripe from "stripe";\n',
  "dist/key.js": 'import { createHash } from "node:crypto";\n',
  "dist/key.d.ts": "",
};

function problems(change: { manifest?: object; files?: Record<string, string | undefined> } = {}): readonly string[] {
  const all = Object.entries({ ...files, ...change.files });
  const kept = all.filter((entry): entry is [string, string] => entry[1] !== undefined);
  return packageShapeProblems({ manifest: { ...manifest, ...change.manifest }, files: new Map(kept) });
}

describe("the check of a package's shape", () => {
  it("finds nothing wrong with a good one", () => {
    expect(problems()).toEqual([]);
  });

  it.each<[string, string, Parameters<typeof problems>[0]]>([
    ["a side effect flag that hinders tree-shaking", "sideEffects is true.", { manifest: { sideEffects: true } }],
    ["CommonJS", 'type is "commonjs".', { manifest: { type: "commonjs" } }],
    ["a private package", "private is true.", { manifest: { private: true } }],
    ["a script that runs on install", 'scripts is {"install":"x"}.', { manifest: { scripts: { install: "x" } } }],
    ["no engines", "engines is missing.", { manifest: { engines: undefined } }],
    [
      "an export of a file that is not packed",
      'exports["."] leads to ./dist/main.js, which is not in the package.',
      { manifest: { exports: { ".": { types: "./dist/index.d.ts", default: "./dist/main.js" } } } },
    ],
    [
      "the condition for sources",
      'exports["."] has the conditions holdfast-source, types, default.',
      { manifest: { exports: { ".": { "holdfast-source": "./dist/index.js", ...manifest.exports["."] } } } },
    ],
    [
      "types that come too late",
      'exports["."] has the conditions default, types.',
      { manifest: { exports: { ".": { default: "./dist/index.js", types: "./dist/index.d.ts" } } } },
    ],
    ["no licence text", "LICENSE is missing.", { files: { LICENSE: undefined } }],
    ["a source", "index.ts does not belong in the package.", { files: { "index.ts": "" } }],
    ["an example", "examples/retry.js does not belong in the package.", { files: { "examples/retry.js": "" } }],
    ["a map", "dist/index.js.map does not belong in the package.", { files: { "dist/index.js.map": "" } }],
    [
      "a file that names a map",
      "dist/key.d.ts names a source map.",
      { files: { "dist/key.d.ts": "export {};\n//# sourceMappingURL=key.d.ts.map" } },
    ],
    ["a file without types", "dist/key.js has no types.", { files: { "dist/key.d.ts": undefined } }],
    [
      "an import that nobody installs",
      "dist/key.js imports rxjs, which is not declared.",
      { files: { "dist/key.js": 'export { retry } from "rxjs/operators";' } },
    ],
    [
      "a dependency that nobody imports",
      "left-pad is declared and not imported.",
      { manifest: { peerDependencies: { ...manifest.peerDependencies, "left-pad": "^1.0.0" } } },
    ],
    [
      "a dependency that only this repository has",
      "stripe has the range file:../stripe.",
      { manifest: { peerDependencies: { stripe: "file:../stripe" } } },
    ],
  ])("finds %s", (_, problem, change) => {
    expect(problems(change)).toContain(problem);
  });

  it("is not needed for the condition that packing removes", () => {
    const exports = { ".": { "holdfast-source": "./index.ts", types: "./dist/index.d.ts" } };
    expect(publishedManifest({ name: "x", files: ["dist"], exports })).toEqual({
      name: "x",
      files: ["dist"],
      exports: { ".": { types: "./dist/index.d.ts" } },
    });
  });
});
