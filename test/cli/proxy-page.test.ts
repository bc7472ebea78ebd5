import { execFile, spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { startTestServer, type TestServer } from "../support/server.ts";
import { startStripeSimulator, type StripeSimulator } from "../support/stripe-simulator/index.ts";
import { blocksOf } from "./page.ts";

const root = join(import.meta.dirname, "../..");
const pageOf = (file: string): string => readFileSync(join(root, file), "utf8").replaceAll(/^ {3}/gm, "");

/** The commands of a page's shell blocks, each on one line. What starts a server is done here by other means. */
function commandsOf(page: string): readonly string[] {
  const lines = blocksOf(page, "sh").flatMap((block) => block.replaceAll(/\s*\\\n\s*/g, " ").split("\n"));
  return lines.filter((line) => /^(npx |curl |export HOLDFAST_CREDENTIAL_KEY)/.test(line));
}

const npx =
  'npx() { [ "$1" = holdfast ] && shift && "$NODE" --conditions=holdfast-source "$ROOT/server/main.ts" "$@"; }';

const readme = pageOf("README.md");
const proxySection = readme.slice(readme.indexOf("## Any language"), readme.indexOf("## Calls for operators"));

// The pages' own programs, which a machine with nothing but Node may lack.
const missing = ["curl", "openssl"].some((program) => spawnSync(program, ["version"]).error !== undefined);

describe.skipIf(missing).each([
  { file: "docs/proxy.md", page: pageOf("docs/proxy.md"), count: 4 },
  { file: "docs/jvm.md", page: pageOf("docs/jvm.md"), count: 2 },
  { file: "README.md", page: proxySection, count: 3 },
])("the commands of $file", ({ page, count }) => {
  let simulator: StripeSimulator;
  let server: TestServer;
  let folder: string;
  let vaultKey: string;

  beforeAll(async () => {
    simulator = await startStripeSimulator();
    server = await startTestServer({
      config: {
        credentialKeys: { current: Buffer.alloc(32, 7), previous: undefined },
        stripeOrigin: simulator.url,
        stripeProxy: { host: "127.0.0.1", port: 0, names: [] },
      },
    });
    vaultKey = await server.vaultKey("started", { allowedEndpoints: ["POST /v1/charges"] });
    folder = await mkdtemp(join(tmpdir(), "holdfast-page-"));
    await writeFile(join(folder, "stripe-secret-key.txt"), "sk_test_4eC39HqLyjWDarjtT1zdp7dc\n");
    await writeFile(join(folder, "policy.json"), blocksOf(page, "json")[0] ?? "");
  });

  afterAll(async () => {
    await server.close();
    await simulator.close();
    await rm(folder, { recursive: true, force: true });
  });

  function run(line: string): Promise<string> {
    const script = `set -euo pipefail\n${npx}\n${line.replaceAll("http://127.0.0.1:7072", '"$PROXY"')}\n`;
    const env = {
      PATH: process.env["PATH"],
      HOME: folder,
      ROOT: root,
      NODE: process.execPath,
      NODE_COMPILE_CACHE: join(folder, "cache"),
      HOLDFAST_URL: server.apps[0]?.url ?? "",
      HOLDFAST_OPERATOR_TOKEN: server.operatorToken,
      PROXY: server.apps[0]?.stripeProxyUrl ?? "",
      VAULT_KEY: vaultKey,
    };
    return new Promise((resolve, reject) => {
      execFile("bash", ["--norc", "-c", script], { cwd: folder, env }, (error, out, err) => {
        if (error === null) resolve(out);
        else reject(new Error(`${line}: ${err}`, { cause: error }));
      });
    });
  }

  test("do what the page says", async () => {
    const commands = commandsOf(page);
    expect(commands).toHaveLength(count);
    for (const command of commands) {
      const isKey = command.startsWith("export");
      const out = await run(isKey ? `${command}\nprintf %s "$HOLDFAST_CREDENTIAL_KEY"` : command);
      if (isKey) expect(Buffer.from(out, "base64")).toHaveLength(32);
      if (command.startsWith("curl")) expect(JSON.parse(out)).toMatchObject({ object: "charge", amount: 4900 });
      if (!command.startsWith("npx holdfast keys create")) continue;
      const [made = ""] = /vk_default_\w+/.exec(out) ?? [];
      const form = "amount=4900&currency=usd&customer=cus_page1&payment_method=pm_card_visa&confirm=true";
      const paid = await run(`curl -sS http://127.0.0.1:7072/v1/payment_intents -u ${made}: -d "${form}"`).catch(
        String,
      );
      // The page's policy says which spend it is: the request carries no idempotency key. The credential is stored before.
      if (commands.some((line) => line.includes("credentials create"))) {
        expect(JSON.parse(paid)).toMatchObject({ object: "payment_intent", status: "succeeded" });
      } else {
        expect(JSON.parse(paid)).toMatchObject({ error: { code: "vendor_credential_missing" } });
      }
    }
  });
});
