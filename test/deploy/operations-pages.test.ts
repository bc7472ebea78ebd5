import { execFile, spawnSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createClient } from "@connectrpc/connect";
import { Settlement } from "@holdfast/api/holdfast/v1/spend_pb";
import { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import { afterAll, beforeAll, expect, test } from "vitest";
import { blocksOf } from "../cli/page.ts";
import { transportOf } from "../crash/policy.ts";
import { type DurablePostgres, startDurablePostgres } from "../injection/durable-postgres.ts";
import { databaseUrl, type ServerProcess, startServerProcess } from "../injection/server-process.ts";
import { ask } from "../support/standby.ts";
import { root } from "./container.ts";

const pages = join(root, "docs/operations");
const textOf = (name: string): string => readFileSync(join(pages, `${name}.md`), "utf8");

// The next ones find what the ones before have made, and the last one ends all leases and holds.
const order = [
  "install",
  "upgrade",
  "key-rotation",
  "kill-switch-drill",
  "in-doubt",
  "audit-growth",
  "scaling",
  "failover",
  "restore",
] as const;

let postgres: DurablePostgres;
let server: ServerProcess;
let folder: string;
let operatorToken: string;
const variables: Record<string, string> = {};

const missing = ["curl", "openssl"].filter((program) => spawnSync(program, ["--version"]).error !== undefined);

beforeAll(async () => {
  if (missing.length > 0) return;
  folder = await mkdtemp(join(tmpdir(), "holdfast-operations-"));
  postgres = await startDurablePostgres();
  operatorToken = await runScript(`${madeToken}\nprintf %s "$HOLDFAST_OPERATOR_TOKEN"`);
  server = await startServerProcess({
    connection: postgres.connection,
    env: { HOLDFAST_OPERATOR_TOKEN: operatorToken },
  });
  Object.assign(variables, {
    DATABASE_URL: databaseUrl(postgres.connection),
    HOLDFAST_URL: server.url,
    HOLDFAST_PORT: new URL(server.url).port,
    HOLDFAST_OPERATOR_TOKEN: operatorToken,
  });
  const admin = createClient(AdminService, transportOf(server.url, operatorToken));
  const { token } = await admin.createVaultKey({
    vaultKeyId: "doubted",
    vaultKey: { vendor: "acme", allowedEndpoints: ["POST /v1/charges"] },
  });
  for (const name of ["AUTHORIZATION", "OTHER_AUTHORIZATION"]) variables[name] = await doubted(token, name);
});
afterAll(async () => {
  await server?.end("SIGKILL");
  await postgres?.close();
  if (missing.length === 0) await rm(folder, { recursive: true, force: true });
});

async function doubted(token: string, purpose: string): Promise<string> {
  const spends = createClient(SpendControlService, transportOf(server.url, token));
  const attemptId = randomBytes(16).toString("hex");
  const amount = { currency: "usd", amount: "49" };
  const { authorization } = await spends.authorizeSpend({
    spend: { customerId: "cust_1", billingPeriod: "2026-11", purpose, amount },
    vendor: "acme",
    endpoint: "POST /v1/charges",
    attemptId,
    settlement: Settlement.SEND_ONCE,
  });
  const name = authorization?.name ?? "";
  await spends.reportUnknown({ authorization: name, attemptId });
  return name;
}

/** What `npx` finds in this repository, without the seconds that it takes to find it; and where a page has failed. */
const prelude = `set -Eeuo pipefail
trap 'echo "ended with $? at: $BASH_COMMAND" >&2' ERR
npx() { shift; "$NODE" --conditions=holdfast-source "$ROOT/server/main.ts" "$@"; }
`;

/** The line with which an operator makes the first token; the server of this test has it. */
const [madeToken = ""] = blocksOf(textOf("install"), "sh");

/** Runs the `sh` blocks of a page from top to bottom in one shell. */
function runPage(name: string): Promise<string> {
  const blocks = blocksOf(textOf(name).replaceAll(/^ +```/gm, "```"), "sh");
  return runScript(blocks.filter((block) => block !== madeToken).join("\n"));
}

/** What a script has printed. Rejects if it, or a command in it, has failed or has said anything on its standard error. */
function runScript(script: string): Promise<string> {
  const env = {
    PATH: process.env["PATH"],
    HOME: folder,
    ROOT: root,
    NODE: process.execPath,
    NODE_COMPILE_CACHE: join(folder, "cache"),
    ...variables,
  };
  return new Promise((resolve, reject) => {
    const child = execFile("bash", ["--norc", "-c", prelude + script], { cwd: folder, env }, (error, out, err) => {
      if (error === null && err === "") resolve(out);
      else reject(new Error(`${err}\n${out}\n${script}`));
    });
    child.stdin?.end();
  });
}

test("every page is run here, or by a test of its own", () => {
  const there = readdirSync(pages).map((name) => name.replace(/\.md$/, ""));
  expect(there.toSorted()).toEqual(["database-role", ...order].toSorted());
});

test("whatever is by hand says so, and every test that a page names is there", () => {
  for (const name of order) {
    const text = textOf(name);
    for (const match of text.matchAll(/^```console\n[\s\S]*?^```$/gm)) {
      const around = text.slice(Math.max(0, match.index - 200), match.index + match[0].length + 120);
      expect(around, `${name}: ${match[0]}`).toMatch(/by hand/i);
    }
    for (const [path] of text.matchAll(/\btest\/[\w/-]+\.test\.ts\b/g)) {
      expect(() => readFileSync(join(root, path)), path).not.toThrow();
    }
    for (const [, script = ""] of text.matchAll(/npm run ([\w:]+)/g)) {
      const { scripts } = createRequire(import.meta.url)(join(root, "package.json")) as { scripts: object };
      expect(Object.keys(scripts)).toContain(script);
    }
  }
});

test("links between the pages lead somewhere", () => {
  for (const name of order) {
    for (const [, path = ""] of textOf(name).matchAll(/\]\(([^)#]+)(?:#[^)]*)?\)/g)) {
      expect(() => readFileSync(join(pages, path)), `${name}: ${path}`).not.toThrow();
    }
  }
});

const title = "every command and statement of the pages does what it says";
const skipped = missing.length > 0 ? ` (skipped: ${missing.join(" and ")} not installed)` : "";
test.skipIf(missing.length > 0)(
  `${title}${skipped}`,
  async () => {
    const printed: Record<string, string> = {};
    for (const name of order) {
      for (const statement of blocksOf(textOf(name), "sql")) await ask(postgres.connection, statement);
      printed[name] = await runPage(name);
    }
    const { install, upgrade, restore } = printed;
    expect(install).toContain("serves");
    expect(upgrade).toContain("migrate: nothing to do");
    expect(printed["kill-switch-drill"]).toMatch(/GRANTED[\s\S]*DENIED[\s\S]*GRANTED[\s\S]*kill_switch\.released/);
    expect(printed["audit-growth"]).toMatch(/events_0[\s\S]*Nothing is wholly before 2025-01/);
    expect(printed["failover"]).toContain("recover: nothing to do");
    expect(restore).toMatch(/recover: nothing to do[\s\S]*recover: done \(asked for with --restored\)/);
  },
  900_000,
);
