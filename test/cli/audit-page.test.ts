import { execFile } from "node:child_process";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { OperatorRole } from "@holdfast/api/holdfast/v1/operator_pb";
import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { startTestServer, type TestServer } from "../support/server.ts";
import { blocksOf } from "./page.ts";
import { granted } from "./terminal.ts";

const root = join(import.meta.dirname, "../..");
const page = await readFile(join(root, "docs/audit.md"), "utf8");
const lines = blocksOf(page, "sh").flatMap((body) => body.trimEnd().split("\n"));

let server: TestServer;
let folder: string;

beforeAll(async () => {
  server = await startTestServer();
  folder = await mkdtemp(join(tmpdir(), "holdfast-audit-page-"));
});
afterAll(async () => {
  await server.close();
  await rm(folder, { recursive: true, force: true });
});

const npx = `npx() { shift; "$NODE" --conditions=holdfast-source "$ROOT/server/main.ts" "$@"; }`;

test("every command of the page does what it says, with an auditor's token but for the one that makes it", async () => {
  const token = await server.vaultKey("nightly");
  const { name } = await granted(server, token, { customerId: "cust_123" });
  const auditor = await server.admin.createOperator({ operatorId: "reader", role: OperatorRole.AUDITOR });
  // Until nothing in the cluster holds a listing that is oldest first back.
  await vi.waitFor(
    async () => {
      const { auditEvents } = await server.admin.listAuditEvents({ kind: "operator.created" });
      expect(auditEvents.length).toBeGreaterThan(0);
    },
    { timeout: 60_000, interval: 50 },
  );
  expect(lines.length).toBeGreaterThan(10);
  const outputs = new Map<string, string>();
  for (const line of lines) {
    const env = {
      PATH: process.env["PATH"],
      ROOT: root,
      NODE: process.execPath,
      NODE_COMPILE_CACHE: join(folder, "cache"),
      HOLDFAST_URL: server.apps[0]?.url,
      HOLDFAST_OPERATOR_TOKEN: line.includes("operators create") ? server.operatorToken : auditor.token,
      AUTHORIZATION: name,
    };
    const script = `set -euo pipefail\n${npx}\n${line}\n`;
    const { stdout, stderr } = await promisify(execFile)("bash", ["--norc", "-c", script], { env, cwd: folder });
    expect([line, stderr]).toEqual([line, ""]);
    outputs.set(line, stdout);
  }
  for (const [line, out] of outputs) {
    if (line.includes("story")) expect(out, line).toContain("spend.granted");
    if (line.includes("wc -l")) expect(Number(out), line).toBe(1);
    if (line.includes("--key nightly")) expect(out, line).toContain("vault_key.created");
  }
  const exported = (await readFile(join(folder, "audit.jsonl"), "utf8")).trimEnd().split("\n");
  expect(exported.map((one) => (JSON.parse(one) as { kind: string }).kind)).toContain("spend.granted");
  const csv = (await readFile(join(folder, "november.csv"), "utf8")).trimEnd().split("\r\n");
  expect(csv).toHaveLength(2);
  expect(csv[1]).toContain("cust_123");
}, 300_000);
