import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { extendAudit } from "../../server/store/audit-partitions.ts";
import { startTestServer, type TestServer } from "../support/server.ts";
import { endAudit, startAudit, whenOver } from "../store/audit-parts.ts";
import { granted, type Terminal, terminalOf } from "./terminal.ts";

let server: TestServer;
let terminal: Terminal;
let folder: string;
let early: string;
let env: Record<string, string>;

// A grant in January of 2025 and one in June, and two years later.
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "holdfast-detach-"));
  server = await startTestServer();
  terminal = terminalOf(server);
  const { host, user, database } = server.database.connection;
  env = { DATABASE_URL: `postgres://${user}@localhost/${database}?host=${encodeURIComponent(host)}` };
  const {
    clock,
    database: { pool },
  } = server;
  await startAudit(pool);
  await clock.set("2025-01-10T12:00:00Z");
  const token = await server.vaultKey("main");
  await server.cap("all", "1000");
  early = (await granted(server, token, { customerId: "early" })).name;
  await terminal.ok(`audit export --output ${join(folder, "begun.jsonl")}`);
  for (const [instant, customerId] of [
    ["2025-06-10T12:00:00Z", "june"],
    ["2027-01-10T12:00:00Z", "now"],
  ] as const) {
    await endAudit(pool, 1);
    await pool.query("select pg_current_xact_id()");
    await extendAudit(pool);
    await clock.set(instant);
    await granted(server, token, { customerId });
  }
  await whenOver(pool);
}, 60_000);
afterAll(async () => {
  await server.close();
  await rm(folder, { recursive: true, force: true });
});

test("the parts of the audit are listed, with when, how many and how large", async () => {
  const out = await terminal.ok("audit partitions", { env });
  expect(out).toMatch(/^events_0 +2025-01-10 +2025-01-10 +\d+ +0 +over$/m);
  expect(out).toMatch(/^events_\d+ +2025-06-10 +2025-06-10 +1 +0 +over$/m);
  expect(out).toMatch(/^events_\d+ +2027-01-10 +2027-01-10 +~\d+ +0 +open$/m);
  expect(out).toMatch(/^events_\d+ +~0 +0 +ahead$/m);
  const { partitions } = (await terminal.json("audit partitions", { env })) as {
    partitions: Record<string, unknown>[];
  };
  expect(partitions[0]).toMatchObject({
    table: "holdfast_audit.events_0",
    from_transaction: "0",
    to_transaction: partitions[1]?.["from_transaction"],
    state: "over",
    first_time: "2025-01-10T12:00:00.000Z",
    is_estimate: false,
    detached_by: null,
  });
});

describe("audit detach refuses", () => {
  test.each([
    ["audit detach --before 2025-13 --by anna", 64, "Write a month"],
    ["audit detach --before 2025-02", 64, "--by"],
  ])("%s", async (line, code, text) => {
    const ran = await terminal.run(line, { env });
    expect(ran.code).toBe(code);
    expect(ran.err).toContain(text);
  });

  test("without the database's address", async () => {
    const ran = await terminal.run("audit partitions");
    expect(ran).toMatchObject({ code: 64, out: "" });
    expect(ran.err).toContain("Set DATABASE_URL");
  });
});

test("audit detach shows what it would do, and changes nothing without --yes", async () => {
  const out = await terminal.ok("audit detach --before 2025-02 --by anna", { env });
  expect(out).toContain("events_0");
  expect(out.match(/^events_/gm)).toHaveLength(1);
  expect(out).toContain("Nothing was changed.");
  expect(await terminal.ok("audit detach --before 2025-01 --by anna", { env })).toContain("Nothing is wholly before");
  expect(await terminal.ok("authorizations story " + early)).toContain("spend.granted");
});

test("audit detach detaches, says how to go on, and every reader says what it has no more", async () => {
  const out = await terminal.ok("audit detach --before 2025-02 --by anna --yes", { env, columns: 160 });
  expect(out).toContain("detached holdfast_audit.events_0");
  for (const text of [
    "pg_dump --table=holdfast_audit.events_0",
    "attach partition",
    "update holdfast.audit_partitions set detach_time = null, detached_by = null where from_xid = '0';",
    "drop table holdfast_audit.events_0;",
  ])
    expect(out).toContain(text);
  expect(out).toContain("What comes next stays: it has events of 2025-02 or later.");
  expect(await terminal.ok("audit partitions", { env })).toMatch(/^events_0 .* detached$/m);

  const gone = "Events up to 2025-01-10T12:00:00Z are not part of this audit any more: they were detached.\n";
  const whole = await terminal.run("--json audit export");
  expect(whole).toMatchObject({ code: 0, err: gone });
  expect(whole.out).not.toContain('"early"');
  const tail = await terminal.run("--json audit tail --limit 100");
  expect(tail).toMatchObject({ code: 0, err: gone });
  expect(tail.out).toContain('"detached_by":"anna"');
  // Nothing is missed where nothing of it was asked for.
  expect(await terminal.run("audit tail --limit 1")).toMatchObject({ code: 0, err: "" });
  expect(await terminal.run("audit export --since 2025-02-01")).toMatchObject({ code: 0, err: "" });
  const story = await terminal.ok(`authorizations story ${early}`);
  expect(story).toContain("Events up to 2025-01-10T12:00:00Z are not part of this audit any more");
  expect(story).toContain("early");

  const { auditEvents, detachedUntilTime } = await server.admin.listAuditEvents({});
  expect(detachedUntilTime?.seconds).toBe(BigInt(Date.parse("2025-01-10T12:00:00Z") / 1000));
  expect(auditEvents[0]?.customerId).toBe("june");
  for await (const message of server.admin.watchAuditEvents({ kind: "none" })) {
    expect(message.detachedUntilTime).toEqual(detachedUntilTime);
    break;
  }
});

test("whoever goes on from before what was detached is told, instead of missing it", async () => {
  const before = await readFile(join(folder, "begun.jsonl"), "utf8");
  const ran = await terminal.run(`audit export --output ${join(folder, "begun.jsonl")} --resume`);
  expect(ran.code).toBe(65);
  expect(ran.err).toContain("stands before events up to 2025-01-10T12:00:00.000Z that were detached from the audit");
  expect(await readFile(join(folder, "begun.jsonl"), "utf8")).toBe(before);
  const { resume_token: resumeToken } = JSON.parse(await readFile(join(folder, "begun.jsonl.resume"), "utf8")) as {
    resume_token: string;
  };
  const watching = server.admin.watchAuditEvents({ resumeToken })[Symbol.asyncIterator]();
  await expect(watching.next()).rejects.toThrow("resume_token: stands before events");
  const { resumeToken: now } = await server.admin.listAuditEvents({ kind: "none" });
  expect((await server.admin.listAuditEvents({ pageToken: now, kind: "none" })).auditEvents).toEqual([]);
});
