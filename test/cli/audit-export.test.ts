import { mkdtemp, readFile, rm, stat, truncate, appendFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { csvLine } from "../../server/cli/audit-csv.ts";
import { startTestServer, type TestServer } from "../support/server.ts";
import { type Terminal, terminalOf } from "./terminal.ts";

/** 100,000 with AUDIT_EXPORT=full. */
const total = process.env["AUDIT_EXPORT"] === "full" ? 100_000 : 5_000;

let server: TestServer;
let terminal: Terminal;
let folder: string;

beforeAll(async () => {
  server = await startTestServer();
  terminal = terminalOf(server);
  folder = await mkdtemp(join(tmpdir(), "holdfast-export-"));
});
afterAll(async () => {
  await server.close();
  await rm(folder, { recursive: true, force: true });
});

async function add(kind: string, count: number): Promise<string[]> {
  const { rows } = await server.database.pool.query<{ name: string }>(
    `insert into holdfast.audit_events (workspace_id, xid, n, event_time, kind, actor_kind, actor_id, detail)
     select 'default', pg_current_xact_id(), s.n, holdfast.clock(), $1, 'server', 'test', jsonb_build_object('note', 'a,"b"')
     from generate_series(0, $2::integer - 1) s (n)
     returning 'auditEvents/' || xid || '-' || n as name`,
    [kind, count],
  );
  const names = rows.map(({ name }) => name);
  // Until nothing in the cluster holds the oldest-first reader back.
  await vi.waitFor(
    async () => {
      const { resumeToken } = await server.admin.listAuditEvents({ kind: "none" });
      const [, xid = "0"] = JSON.parse(Buffer.from(resumeToken, "base64url").toString()) as string[];
      expect(BigInt(xid)).toBeGreaterThanOrEqual(BigInt(/\/(\d+)-/.exec(names[0] ?? "")?.[1] ?? "0"));
    },
    { timeout: 120_000, interval: 50 },
  );
  return names;
}

const namesIn = (text: string): string[] =>
  text
    .split("\n")
    .filter((line) => line !== "")
    .map((line) => (JSON.parse(line) as { name: string }).name);

test("every event is exported once and in order, and the export says on a terminal how far it is", async () => {
  const names = await add("export.many", total);
  const path = join(folder, "many.jsonl");
  const { code, out, err } = await terminal.run(["audit", "export", "--kind", "export.many", "--output", path], {
    isTTY: true,
  });
  expect([code, out]).toEqual([0, ""]);
  expect(err).toMatch(new RegExp(`^${total} events, \\d+ per second$`, "m"));
  expect(namesIn(await readFile(path, "utf8"))).toEqual(names);
  expect((await stat(path)).mode & 0o777).toBe(0o600);
}, 600_000);

test("an export that was cut off goes on where it stood, and later with what was added", async () => {
  const names = await add("export.cut", 450);
  const path = join(folder, "cut.csv");
  const args = ["audit", "export", "--kind", "export.cut", "--format", "csv", "--output", path];
  const whole = join(folder, "whole.csv");
  expect(await terminal.run([...args.slice(0, -1), whole])).toMatchObject({ code: 0, err: "" });
  expect(await terminal.run(args)).toMatchObject({ code: 0, err: "" });
  // As a crash leaves it: half a page more than what the file beside it speaks of, and more than what is to come, which
  // would cover it up.
  const [header = "", first = ""] = (await readFile(path, "utf8")).split("\r\n");
  const standing = JSON.parse(await readFile(`${path}.resume`, "utf8")) as { bytes: number };
  await appendFile(path, "half a page ".repeat(1_000));
  expect((await stat(path)).size).toBeGreaterThan(standing.bytes);
  const more = await add("export.cut", 3);
  expect(await terminal.run([...args, "--resume"])).toMatchObject({ code: 0, err: "" });
  const lines = (await readFile(path, "utf8")).split("\r\n");
  expect(lines.pop()).toBe("");
  expect([lines[0], lines[1]]).toEqual([header, first]);
  expect(lines.slice(1).map((line) => line.split(",")[0])).toEqual([...names, ...more]);
  expect(first.endsWith(`,1,"{""note"":""a,\\""b\\""""}"`)).toBe(true);
  expect((await readFile(path, "utf8")).startsWith(await readFile(whole, "utf8"))).toBe(true);

  expect(await terminal.run(args)).toMatchObject({ code: 64, err: expect.stringContaining("give --resume") as string });
  const other = [...args.slice(0, 2), "--kind", "export.many", ...args.slice(4), "--resume"];
  expect(await terminal.run(other)).toMatchObject({
    code: 64,
    err: expect.stringContaining("another format or filter") as string,
  });
  await truncate(`${path}.resume`, 0);
  expect(await terminal.run([...args, "--resume"])).toMatchObject({ code: 64 });
  expect(await terminal.run("audit export --resume")).toMatchObject({ code: 64 });
});

test("standard output takes it too, as fast as it is read", async () => {
  const names = await add("export.out", 250);
  const { code, out } = await terminal.run("audit export --kind export.out");
  expect(code).toBe(0);
  expect(namesIn(out)).toEqual(names);
});

test.each([
  ["=1+1", "'=1+1"],
  ["+1", "'+1"],
  ["-1", "'-1"],
  ["@sum(a1)", "'@sum(a1)"],
  ["\t=1", "'\t=1"],
  [" =1", "' =1"],
  ["\uff1d1", "'\uff1d1"],
  ['=cmd|" /c"', `"'=cmd|"" /c"""`],
  ["a,b", '"a,b"'],
  ['say "so"', '"say ""so"""'],
  ["two\r\nlines", '"two\r\nlines"'],
  ["cust_1", "cust_1"],
  ["1-2", "1-2"],
  ["", ""],
])("a spreadsheet takes %j for text", (value, expected) => {
  expect(csvLine([value, "x"])).toBe(`${expected},x\r\n`);
});
