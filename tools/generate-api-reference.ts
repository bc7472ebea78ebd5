// Writes sdk/API.md: every export of the SDK with its comment and its declaration, as the compiler emits it.
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { spawnSync } from "node:child_process";
import { apiExports, apiReference, internalEntries } from "./api-reference.ts";

const root = resolve(import.meta.dirname, "..");
mkdirSync(join(root, ".tmp"), { recursive: true });
const folder = mkdtempSync(join(root, ".tmp", "api-reference-"));

/** The declaration files of the SDK. The API is read from its sources, whose types are the same. */
function emitDeclarations(): void {
  const config = {
    extends: join(root, "sdk", "tsconfig.build.json"),
    compilerOptions: {
      emitDeclarationOnly: true,
      outDir: folder,
      rootDir: root,
      customConditions: ["holdfast-source"],
    },
    include: [join(root, "sdk", "*.ts")],
  };
  writeFileSync(join(folder, "tsconfig.json"), JSON.stringify(config));
  const tsc = join(root, "node_modules", ".bin", "tsc");
  const { status, error } = spawnSync(tsc, ["-p", join(folder, "tsconfig.json")], { stdio: "inherit" });
  if (status !== 0) throw new Error("The SDK does not compile.", { cause: error });
}

function readModule(specifier: string): string {
  return readFileSync(join(folder, "sdk", specifier.replace(/\.ts$/, ".d.ts")), "utf8");
}

try {
  emitDeclarations();
  const { name, exports } = JSON.parse(readFileSync(join(root, "sdk", "package.json"), "utf8")) as {
    name: string;
    exports: Readonly<Record<string, string | { readonly "holdfast-source"?: string }>>;
  };
  const entries = Object.entries(exports).flatMap(([path, target]) => {
    const source = typeof target === "string" ? undefined : target["holdfast-source"];
    if (source === undefined || internalEntries.has(path)) return [];
    return [{ specifier: join(name, path), exports: apiExports(readModule(source), readModule) }];
  });
  writeFileSync(join(root, "sdk", "API.md"), apiReference(entries));
} finally {
  rmSync(folder, { recursive: true, force: true });
}
