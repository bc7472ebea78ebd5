/** A package as it is published: its manifest, and its files by path, for example "dist/index.js". */
export interface PublishedPackage {
  readonly manifest: Readonly<Record<string, unknown>>;
  readonly files: ReadonlyMap<string, string>;
}

/** What is wrong with a package that is about to be published, one sentence each. */
export function packageShapeProblems({ manifest, files }: PublishedPackage): readonly string[] {
  return [
    ...fieldProblems(manifest),
    ...exportProblems(manifest["exports"], files),
    ...fileProblems(files),
    ...dependencyProblems(manifest, files),
  ];
}

const expectedFields: Readonly<Record<string, unknown>> = {
  type: "module",
  license: "Apache-2.0",
  sideEffects: false,
  private: undefined,
  scripts: undefined,
  bin: undefined,
};

function* fieldProblems(manifest: PublishedPackage["manifest"]): Generator<string> {
  for (const [name, expected] of Object.entries(expectedFields)) {
    if (manifest[name] !== expected) yield `${name} is ${JSON.stringify(manifest[name])}.`;
  }
  for (const name of ["name", "version", "description", "keywords", "engines", "publishConfig"]) {
    if (manifest[name] === undefined) yield `${name} is missing.`;
  }
}

/** Types come before everything else, and every path leads to a file. */
function* exportProblems(exports: unknown, files: PublishedPackage["files"]): Generator<string> {
  for (const [entry, target] of Object.entries((exports ?? {}) as Record<string, unknown>)) {
    const conditions = typeof target === "string" ? { default: target } : (target as Record<string, string>);
    const names = Object.keys(conditions);
    if (typeof target !== "string" && names.join(" ") !== "types default") {
      yield `exports["${entry}"] has the conditions ${names.join(", ")}.`;
    }
    for (const path of Object.values(conditions)) {
      if (!reachesFile(path, files)) yield `exports["${entry}"] leads to ${path}, which is not in the package.`;
    }
  }
}

function reachesFile(path: string, files: PublishedPackage["files"]): boolean {
  const [before = "", after] = path.replace(/^\.\//, "").split("*");
  if (after === undefined) return files.has(before);
  return [...files.keys()].some((file) => file.startsWith(before) && file.endsWith(after));
}

const alwaysThere = ["package.json", "README.md", "LICENSE"];

function* fileProblems(files: PublishedPackage["files"]): Generator<string> {
  for (const file of alwaysThere) if (!files.has(file)) yield `${file} is missing.`;
  for (const [file, text] of files) {
    if (alwaysThere.includes(file)) continue;
    if (!/^dist\/.+\.(js|d\.ts)$/.test(file)) yield `${file} does not belong in the package.`;
    if (file.endsWith(".js") && !files.has(file.replace(/\.js$/, ".d.ts"))) yield `${file} has no types.`;
    // A map is not published, so nothing may ask for one.
    if (/^\/\/# sourceMappingURL=/m.test(text)) yield `${file} names a source map.`;
  }
}

/** What a file imports is a file of the package, of Node, or of a declared dependency with a range. */
function* dependencyProblems(
  manifest: PublishedPackage["manifest"],
  files: PublishedPackage["files"],
): Generator<string> {
  const declared = { ...(manifest["dependencies"] as object), ...(manifest["peerDependencies"] as object) };
  const ranges = new Map<string, string>(Object.entries(declared));
  for (const [name, range] of ranges) {
    if (!/^[\d^~>=<|. -]+$/.test(range)) yield `${name} has the range ${range}.`;
  }
  const used = new Set<string>();
  for (const [file, text] of files) {
    if (!file.startsWith("dist/")) continue;
    for (const specifier of importsOf(text)) {
      if (specifier.startsWith("node:") || specifier.startsWith(".")) continue;
      const name = specifier.split("/", specifier.startsWith("@") ? 2 : 1).join("/");
      used.add(name);
      if (!ranges.has(name)) yield `${file} imports ${name}, which is not declared.`;
    }
  }
  for (const name of ranges.keys()) if (!used.has(name)) yield `${name} is declared and not imported.`;
}

function importsOf(text: string): string[] {
  const found = text.matchAll(
    /(?:^|\n)\s*(?:import|export)\s(?:[^;"']*?\sfrom\s)?["']([^"']+)["']|import\("([^"]+)"\)/g,
  );
  return [...found].map(([, specifier, dynamic]) => specifier ?? dynamic ?? "");
}
