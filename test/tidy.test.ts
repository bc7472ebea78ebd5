import { readdirSync, readFileSync } from "node:fs";
import { dirname, join, normalize } from "node:path";
import { expect, test } from "vitest";

const root = join(import.meta.dirname, "..");
/** What is not source: installed, built, generated, or data of a run. Read from the folder, which needs no git. */
const passedOver = new Set(["node_modules", "dist", ".git", ".holdfast", ".tmp", "coverage"]);
const generated = new Set(["gen", "third_party"]);

function* filesIn(folder: string): Generator<string> {
  for (const entry of readdirSync(join(root, folder), { withFileTypes: true })) {
    const path = join(folder, entry.name);
    if (passedOver.has(entry.name) || generated.has(path) || entry.name.startsWith(".install-")) continue;
    if (entry.isDirectory()) yield* filesIn(path);
    else if (entry.isFile()) yield path;
  }
}

const files = [...filesIn("")];
const sources = files.filter((file) => file.endsWith(".ts"));
// An example is a user's code: it imports the SDK by its name.
const product = sources.filter(
  (file) => (file.startsWith("server/") || file.startsWith("sdk/")) && !file.startsWith("sdk/examples/"),
);

const texts = new Map<string, string>();
function textOf(file: string): string {
  let text = texts.get(file);
  if (text === undefined) {
    text = readFileSync(join(root, file), "utf8");
    texts.set(file, text);
  }
  return text;
}

/** The modules that a file imports: relative ones as paths in the repository. */
function importsOf(file: string): string[] {
  const found = textOf(file).matchAll(/(?:^|\n)(?:import|export)\s(?:[^;"']*?\sfrom\s)?["']([^"']+)["']/g);
  return [...found].map(([, specifier = ""]) =>
    specifier.startsWith(".") ? normalize(join(dirname(file), specifier)) : specifier,
  );
}

/** Which layers each layer may import from; what is not listed is above it. */
const layers: Readonly<Record<string, readonly string[]>> = {
  "server/domain/": ["server/domain/"],
  "server/store/": [
    "server/store/",
    "server/domain/",
    "server/startup-error.ts",
    "server/config.ts",
    "server/telemetry-attributes.ts",
    "server/telemetry-metrics.ts",
  ],
  "server/rpc/": [
    "server/rpc/",
    "server/store/",
    "server/domain/",
    "server/startup-error.ts",
    "server/telemetry-attributes.ts",
    "server/telemetry-metrics.ts",
    "@holdfast/api/",
  ],
  "server/vendor/": [
    "server/vendor/",
    "server/store/",
    "server/domain/",
    "server/startup-error.ts",
    "server/telemetry-attributes.ts",
    "server/telemetry-metrics.ts",
    "@holdfast/sdk/stripe-vendor",
  ],
  "server/proxy/": [
    "server/proxy/",
    "server/rpc/",
    "server/store/",
    "server/domain/",
    "server/config.ts",
    "server/startup-error.ts",
    "server/telemetry-attributes.ts",
    "server/telemetry-metrics.ts",
    "@holdfast/sdk",
  ],
  "sdk/": ["sdk/", "@holdfast/api/"],
};

test("of the server only its vendors and its proxy know the SDK, and of the SDK only what is meant for them", () => {
  const importing = product
    .filter((file) => file.startsWith("server/"))
    .flatMap((file) => importsOf(file).map((path) => `${file} imports ${path}`))
    .filter((line) => line.includes(" imports @holdfast/sdk"));
  const wrong = importing.filter(
    (line) =>
      !/^server\/(?:vendor\/\S+ imports @holdfast\/sdk\/stripe-vendor|proxy\/\S+ imports @holdfast\/sdk(?:\/stripe-vendor)?)$/.test(
        line,
      ),
  );
  expect(wrong).toEqual([]);
});

test("imports go one way: domain, then store, then rpc; the SDK knows only the API", () => {
  const wrong = Object.entries(layers).flatMap(([layer, allowed]) =>
    product
      .filter((file) => file.startsWith(layer))
      .flatMap((file) =>
        importsOf(file)
          .filter((path) => path.startsWith("server/") || path.startsWith("sdk/") || path.startsWith("@holdfast/"))
          .filter((path) => !allowed.some((prefix) => path.startsWith(prefix)))
          .map((path) => `${file} imports ${path}`),
      ),
  );
  expect(wrong).toEqual([]);
});

test("the domain does no I/O and reads no clock and no randomness", () => {
  const impure =
    /\b(Date\.now|new Date\(\)|Math\.random|randomBytes|randomUUID|setTimeout|fetch\(|node:(fs|net|http|child_process))/;
  const wrong = product.filter((file) => file.startsWith("server/domain/") && impure.test(textOf(file)));
  expect(wrong).toEqual([]);
});

test("SQL stands only in the store", () => {
  const sql = /["'`]\s*(?:\/\*.*?\*\/\s*)?(?:select\s.+\sfrom\s|insert into\s|update\s+holdfast\.|delete from\s)/i;
  const wrong = product.filter((file) => !file.startsWith("server/store/") && sql.test(textOf(file)));
  expect(wrong).toEqual([]);
});

test("only the configuration and the command line read the environment", () => {
  const allowed = new Set(["server/config.ts", "server/main.ts"]);
  const reading = product.filter(
    (file) => !allowed.has(file) && /process\.env\[|process\.env\.|= process\.env\b/.test(stripStrings(file)),
  );
  expect(reading).toEqual([]);
});

test("no decision of the store uses the clock of its own process", () => {
  const wrong = product.filter(
    (file) => file.startsWith("server/store/") && /\bDate\.now\(\)|new Date\(\)/.test(textOf(file)),
  );
  expect(wrong).toEqual([]);
});

test("no migration reads the time but through holdfast.clock()", () => {
  const migrations = files.filter((file) => file.startsWith("server/store/migrations/"));
  const readings = migrations.flatMap((file) =>
    textOf(file)
      .split("\n")
      .filter((line) => !line.trimStart().startsWith("--"))
      .filter((line) =>
        /\b(now\(\)|current_timestamp|statement_timestamp|transaction_timestamp|localtimestamp|clock_timestamp)/i.test(
          line,
        ),
      ),
  );
  expect(migrations.length).toBeGreaterThan(0);
  expect(readings).toEqual(["as $$ select clock_timestamp() $$;"]);
});

test("no session advisory lock, notification or sequence is used", () => {
  const banned =
    /pg_advisory_lock\(|pg_try_advisory_lock\(|\blisten\s+"|\bnotify\s|create sequence|\bserial\b|create trigger (?!audit_events_append_only\b)|as enum/i;
  const wrong = files.filter(
    (file) => file.startsWith("server/store/") && /\.(ts|sql)$/.test(file) && banned.test(textOf(file)),
  );
  expect(wrong).toEqual([]);
});

test("files stay short enough to be read", () => {
  const max = (file: string): number => (file.startsWith("test/") ? 600 : 400);
  const long = sources.filter((file) => textOf(file).split("\n").length > max(file));
  expect(long).toEqual([]);
});

test("no file is named after nothing", () => {
  const vague = /(^|\/)(utils?|common|helpers?|types|misc|manager)\.ts$/;
  expect(sources.filter((file) => vague.test(file))).toEqual([]);
});

test("one word per thing: no synonym of the glossary names anything in the product", () => {
  // Identifiers only: `reservation`, `approval`, `budget` and `quota` are other words for authorization and cap.
  const banned =
    /\b\w*(reservation|Reservation|approval|Approval|budgetCap|quotaCap|ApiKey|apiKeyId|chargeIntent|unlockSpend)\w*\b/;
  const wrong = product.flatMap((file) =>
    textOf(file)
      .split("\n")
      .filter((line) => !/^\s*(\/\/|\*|\/\*)/.test(line))
      .filter((line) => banned.test(line))
      .map((line) => `${file}: ${line.trim()}`),
  );
  expect(wrong).toEqual([]);
});

test("no lock file records where a package was downloaded from", () => {
  const locks = files.filter((file) => file.endsWith("package-lock.json"));
  expect(locks.length).toBeGreaterThan(1);
  expect(locks.filter((file) => textOf(file).includes('"resolved": "http'))).toEqual([]);
});

test("every test and file that ARCHITECTURE.md names exists", () => {
  const named = [...textOf("ARCHITECTURE.md").matchAll(/`((?:test|server|sdk|tools)\/[\w./-]+)`/g)].map(
    ([, path = ""]) => path,
  );
  expect(named.length).toBeGreaterThan(20);
  expect(named.filter((path) => !files.some((file) => file === path || file.startsWith(path)))).toEqual([]);
});

/** The text without strings and comments, where a name may be mentioned. */
function stripStrings(file: string): string {
  return textOf(file)
    .replaceAll(/\/\*[\s\S]*?\*\//g, "")
    .replaceAll(/\/\/.*$/gm, "")
    .replaceAll(/`(?:[^`\\]|\\.)*`|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'/g, '""');
}
