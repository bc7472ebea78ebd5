import { execFile } from "node:child_process";
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { promisify } from "node:util";
import { fromJsonString, toJson } from "@bufbuild/protobuf";
import { CapSchema, CreateCapRequestSchema } from "@holdfast/api/holdfast/v1/cap_pb";
import { afterAll, beforeAll, expect, test } from "vitest";
import { startTestServer, type TestServer } from "../support/server.ts";

let server: TestServer;

beforeAll(async () => {
  server = await startTestServer();
});
afterAll(() => server.close());

const page = await readFile(new URL("../../docs/caps.md", import.meta.url), "utf8");
const examples = [...page.matchAll(/^\{"cap_id".*\}$/gm), ...page.matchAll(/(?<=^call CreateCap ').*(?='$)/gm)].map(
  ([text]) => text,
);

test("every example of the page on caps is a cap that can be made, and is shown with what it says", async () => {
  expect(examples.length).toBeGreaterThan(12);
  for (const example of examples) {
    const request = fromJsonString(CreateCapRequestSchema, example);
    const { cap } = await server.admin.createCap(request);
    if (cap === undefined) throw new Error("no cap");
    const { cap: said } = JSON.parse(example) as { cap: object };
    expect(toJson(CapSchema, cap, { useProtoFieldName: true }), example).toMatchObject(said);
    await server.admin.getCap({ name: `caps/${request.capId}` });
  }
});

const root = join(import.meta.dirname, "../..");
const require = createRequire(import.meta.url);
const buf = join(dirname(require.resolve(`@bufbuild/buf-linux-${process.arch}/package.json`)), "bin/buf");

/** What `npx` finds in this repository, without the seconds that it takes to find it. */
const npx = `npx() {
  local name="$1"; shift
  case "$name" in
    holdfast) "$NODE" --conditions=holdfast-source "$ROOT/server/main.ts" "$@" ;;
    buf) "$BUF" "$@" ;;
    *) echo "npx $name is not meant" >&2; return 1 ;;
  esac
}`;

test("every command of the page does what it says, with the variables of the README", async () => {
  const own = await startTestServer();
  try {
    const endpoint = "POST /v1/payment_intents";
    const env = {
      PATH: process.env["PATH"],
      ROOT: root,
      BUF: buf,
      NODE: process.execPath,
      HOLDFAST_URL: own.apps[0]?.url,
      HOLDFAST_OPERATOR_TOKEN: own.operatorToken,
      VAULT_KEY: await own.vaultKey("dry", { allowedEndpoints: [endpoint] }),
    };
    const lines = [...page.matchAll(/^npx (?:holdfast|buf) .*$/gm)].map(([line]) => line);
    expect(lines.map((line) => line.split(" ", 2).join(" "))).toEqual(["npx holdfast", "npx buf"]);
    const outputs: string[] = [];
    for (const line of lines) {
      const script = `set -euo pipefail\n${npx}\n${line}\n`;
      outputs.push((await promisify(execFile)("bash", ["--norc", "-c", script], { env })).stdout);
    }
    expect(JSON.parse(outputs.at(-1) ?? "")).toMatchObject({
      disposition: "DISPOSITION_GRANTED",
      draws: [{ cap: "caps/weekly", fits: true, amount: { amount: "49" } }],
    });
    const readme = await readFile(join(root, "README.md"), "utf8");
    const quickstart = await readFile(join(root, "server/quickstart.ts"), "utf8");
    const texts = [readme, page, quickstart].join("\n");
    const used = texts.matchAll(/(?:process\.env\.|\$)((?:[A-Z]+_)*(?:TOKEN|KEY|OPERATOR))\b/g);
    for (const [, name = ""] of used) {
      expect(`${readme}${page}`, name).toMatch(new RegExp(`^export (?:.* )?${name}=`, "m"));
    }
  } finally {
    await own.close();
  }
});
