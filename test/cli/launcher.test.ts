import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { lstatSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { startTestServer, type TestServer } from "../support/server.ts";

const root = join(import.meta.dirname, "../..");
const launcher = join(root, "server/holdfast.cjs");
let server: TestServer;
let env: NodeJS.ProcessEnv;

beforeAll(async () => {
  server = await startTestServer();
  await server.vaultKey("billing");
  env = {
    PATH: process.env["PATH"],
    HOLDFAST_URL: server.apps[0]?.url ?? "",
    HOLDFAST_OPERATOR_TOKEN: server.operatorToken,
  };
});
afterAll(() => server.close());

async function ran(script: string): Promise<{ code: unknown; out: string; err: string }> {
  const child = spawn("bash", ["--norc", "-c", `set -o pipefail; ${script}`], {
    env: { ...env, HOLDFAST: launcher, NODE: process.execPath },
  });
  let out = "";
  let err = "";
  child.stdout.setEncoding("utf8").on("data", (text: string) => (out += text));
  child.stderr.setEncoding("utf8").on("data", (text: string) => (err += text));
  child.stdin.end();
  const [code] = (await once(child, "close")) as [unknown];
  return { code, out, err };
}

test("the launcher is what npm links as holdfast, and can be executed", () => {
  const { bin } = JSON.parse(readFileSync(join(root, "server/package.json"), "utf8")) as { bin: object };
  expect(bin).toEqual({ holdfast: "./holdfast.cjs" });
  expect(readFileSync(launcher, "utf8").startsWith("#!/usr/bin/env node\n")).toBe(true);
  expect(lstatSync(launcher).mode & 0o111).not.toBe(0);
});

test("it calls a server and passes the exit code on", async () => {
  const listed = await ran('"$NODE" "$HOLDFAST" keys list');
  expect(listed).toMatchObject({ code: 0, err: "" });
  expect(listed.out).toContain("billing");
  expect(await ran('"$NODE" "$HOLDFAST" keys show none')).toMatchObject({ code: 66, out: "" });
});

test("whoever closes the pipe ends it quietly, and a pipe gets no colours", async () => {
  expect(await ran('"$NODE" "$HOLDFAST" --help | true')).toEqual({ code: 0, out: "", err: "" });
  const help = await ran('FORCE_COLOR=1 "$NODE" "$HOLDFAST" keys list 2>&1 | head -1');
  expect(help).toMatchObject({ code: 0, out: expect.stringMatching(/^KEY +STATE +VENDOR [A-Z ]+\n$/) });
});

test("a followed audit ends with success when it is interrupted", async () => {
  const args = [launcher, "audit", "tail", "--follow"];
  const child = spawn(process.execPath, args, { env, stdio: ["ignore", "pipe", "inherit"] });
  await once(child.stdout, "data");
  child.kill("SIGINT");
  const [code] = (await once(child, "exit")) as [number | null];
  expect(code).toBe(0);
});

test("the settings of the terminal are no reason for a command of the server to refuse", () => {
  // It ends at the database that is not there, not at HOLDFAST_URL, which a server does not use.
  const { status, stderr } = spawnSync(process.execPath, [launcher, "migrate"], {
    env: { ...env, DATABASE_URL: "postgres://127.0.0.1:1/none" },
    encoding: "utf8",
  });
  expect(stderr).not.toContain("HOLDFAST_URL");
  expect(status).toBe(69);
});
