import { readFileSync } from "node:fs";
import { createServer } from "node:http2";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { Code, ConnectError } from "@connectrpc/connect";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { commandErrorFrom, commandExitCodes } from "../../server/cli/exit-codes.ts";
import { startTestServer, type TestServer } from "../support/server.ts";
import { run, type Terminal, terminalOf } from "./terminal.ts";

let server: TestServer;
let terminal: Terminal;

beforeAll(async () => {
  server = await startTestServer();
  terminal = terminalOf(server);
  await server.vaultKey("billing");
  await server.cap("all", "100");
});
afterAll(() => server.close());

test("the page names exactly the exit codes that there are", () => {
  const page = readFileSync(join(import.meta.dirname, "../../docs/terminal.md"), "utf8");
  const named = [...page.matchAll(/^\| (\d+) \|/gm)].map(([, code]) => Number(code));
  expect(named).toEqual(Object.values(commandExitCodes));
});

describe("each exit code is produced", () => {
  // 3 and 4 of `credentials test` are in credentials.test.ts, 4 of `doctor` is in doctor.test.ts.
  test.each([
    [0, "caps list", ""],
    [65, "keys create Wrong_Id --vendor stripe", "vault_key_id"],
    [65, 'caps create x --limit "-1 usd" --window day', "limit"],
    [66, "keys show none", ""],
    [66, "authorizations show 000000000000000000000000000000000000-1", ""],
    [67, "keys create billing --vendor stripe", ""],
    [75, 'caps update all --limit "5 usd" --etag stale', ""],
  ])("%i: %s", async (code, line, says) => {
    const ran = await terminal.run(line);
    expect(ran.code, ran.err).toBe(code);
    expect(ran.err).toContain(says);
    if (code !== 0) expect(ran.out).toBe("");
  });

  test("77: no token, a wrong one, or one whose role may not do this", async () => {
    const HOLDFAST_URL = server.apps[0]?.url ?? "";
    const wrong = `op_default_test_${"x".repeat(43)}`;
    const key = await server.vaultKey("spending");
    for (const token of [undefined, "", "nonsense", wrong, key]) {
      const { code, out, err } = await run(["caps", "list"], { env: { HOLDFAST_URL, HOLDFAST_OPERATOR_TOKEN: token } });
      expect({ code, out }).toEqual({ code: 77, out: "" });
      expect(err).toContain("HOLDFAST_OPERATOR_TOKEN");
      if (token !== undefined && token !== "") expect(err).not.toContain(token);
    }
  });

  test("69: the server cannot be reached", async () => {
    const { code, err } = await run(["caps", "list", "--url", "http://127.0.0.1:1"]);
    expect(code).toBe(69);
    expect(err).toContain("http://127.0.0.1:1 does not answer: ");
    expect(err).toContain("ECONNREFUSED");
  });

  test("70: the server failed", async () => {
    const failing = createServer((request, response) => {
      request.resume();
      response.writeHead(500, { "content-type": "application/json" });
      response.end('{"code": "internal", "message": "internal error"}');
    });
    await new Promise<void>((resolve) => failing.listen(0, "127.0.0.1", resolve));
    const { port } = failing.address() as AddressInfo;
    try {
      const ran = await run(["caps", "list", "--url", `http://127.0.0.1:${port}`]);
      expect(ran).toMatchObject({ code: 70, err: "holdfast: internal error\n" });
    } finally {
      await new Promise((resolve) => failing.close(resolve));
    }
  });

  test("1: an unexpected error, with its stack", () => {
    const { exitCode, message } = commandErrorFrom(new TypeError("x is not a function"), "");
    expect(exitCode).toBe(commandExitCodes.bug);
    expect(message).toContain("exit-codes.test.ts");
  });

  test("every code of the protocol has an exit code", () => {
    const codes = Object.values(Code).filter((code) => typeof code === "number");
    expect(codes.length).toBeGreaterThan(15);
    for (const code of codes) {
      const { exitCode } = commandErrorFrom(new ConnectError("x", code), "http://x");
      expect(exitCode).not.toBe(commandExitCodes.bug);
      expect(exitCode).not.toBe(commandExitCodes.ok);
    }
  });
});

describe("64: what is malformed is refused before anything is sent", () => {
  const nowhere = { env: { HOLDFAST_URL: "http://127.0.0.1:1" } };

  test.each([
    ["bogus"],
    ["keys"],
    ["keys bogus"],
    ["keys list extra"],
    ["keys show"],
    ["caps list --bogus"],
    ["caps list --limit"],
    ["caps list --limit 0"],
    ["caps list --limit -1"],
    ["caps list --limit many"],
    ["caps list --limit 9999999999"],
    ['caps create x --window day --limit "11000,00 usd"'],
    ['caps create x --window day --limit "11.000.00 usd"'],
    ['caps create x --window day --limit "1e4 usd"'],
    ['caps create x --window day --limit "11000"'],
    ['caps create x --window day --limit "$11000"'],
    ['caps create x --window day --limit "11000 dollars"'],
    ['caps create x --window hour --limit "1 usd"'],
    ['caps create x --limit "1 usd"'],
    ["caps create x --window day --count 1.5"],
    ['caps create x --window fixed --limit "1 usd" --from 2026-13-01 --to 2027-01-01'],
    ['caps create x --window fixed --limit "1 usd" --from 2026-02-30 --to 2027-01-01'],
    ['caps create x --window fixed --limit "1 usd" --from 2026-02-28T10:00:00 --to 2027-01-01'],
    ['caps create x --window week --limit "1 usd" --week-start caturday'],
    ["keys rotate x --overlap 15"],
    ["keys rotate x --overlap 1h30m"],
    ["keys rotate x --overlap -5m"],
    ["keys create x --vendor stripe --label team"],
    ["keys create x --vendor stripe --label =billing"],
    ["keys create x --vendor stripe --expires tomorrow"],
    ["keys revoke x"],
    ["kill vendor stripe"],
    ["operators create anna"],
    ["operators create anna --role king"],
    ["authorizations list --state lost"],
    ["audit tail --since yesterday"],
    ["reconcile --since yesterday"],
    ["--url nowhere caps list"],
    ["--url ftp://127.0.0.1 caps list"],
    ["--ca-file /nonexistent/ca.pem caps list"],
  ])("%s", async (line) => {
    const ran = await terminal.run(line, nowhere);
    expect(ran.code, ran.err).toBe(64);
    expect(ran.out).toBe("");
    expect(ran.err).not.toBe("");
  });
});

test("an instant keeps its zone and its microseconds", async () => {
  await terminal.ok(
    'caps create zoned --window fixed --limit "1 usd" --from 2026-12-01T01:00:00.000007+01:00 --to 2030-01-01',
  );
  const { cap } = await server.admin.getCap({ name: "caps/zoned" });
  expect(cap?.startTime).toMatchObject({ seconds: BigInt(Date.parse("2026-12-01T00:00:00Z") / 1000), nanos: 7000 });
});

test("help is no error, is written to standard output, and fits", async () => {
  for (const line of ["--help", "keys --help", "keys create --help", "help caps", "serve --help"]) {
    const out = await terminal.ok(line);
    expect(out).toMatch(/^Usage: holdfast/);
    expect(out.includes("\u001b"), "colour codes").toBe(false);
  }
});

test("commands that need no server get their arguments as they were given", async () => {
  const given: (readonly string[])[] = [];
  const local = (args: readonly string[]) => {
    given.push(args);
    return Promise.resolve(7);
  };
  for (const line of ["serve --embedded", "workspace create acme", "recover --restored", "migrate"]) {
    expect(await terminal.run(line, { local })).toEqual({ code: 7, out: "", err: "" });
  }
  expect(given).toEqual([
    ["serve", "--embedded"],
    ["workspace", "create", "acme"],
    ["recover", "--restored"],
    ["migrate"],
  ]);
});
