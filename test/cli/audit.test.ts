import { randomBytes } from "node:crypto";
import { afterAll, beforeAll, expect, test } from "vitest";
import { startTestServer, type TestServer } from "../support/server.ts";
import { type Terminal, terminalOf } from "./terminal.ts";

let server: TestServer;
let terminal: Terminal;

beforeAll(async () => {
  server = await startTestServer();
  terminal = terminalOf(server);
  for (const id of ["one", "two", "three"]) await server.vaultKey(id);
});
afterAll(() => server.close());

async function suspend(id: string): Promise<string> {
  const reason = randomBytes(6).toString("hex");
  await server.admin.suspendVaultKey({ name: `vaultKeys/${id}`, reason });
  await server.admin.resumeVaultKey({ name: `vaultKeys/${id}`, reason: "again" });
  return reason;
}

test("the last events are shown oldest first, filtered, within the width", async () => {
  await suspend("one");
  const out = await terminal.ok("audit tail --limit 2");
  const kinds = [...out.matchAll(/^\S+Z (vault_key\.\S+)/gm)].map(([, kind]) => kind);
  expect(kinds).toEqual(["vault_key.suspended", "vault_key.resumed"]);
  expect(out).toContain("operators/test");
  const { out: lines } = await terminal.run("--json audit tail --kind vault_key.created --actor operators/test");
  const events = lines
    .trimEnd()
    .split("\n")
    .map((line) => JSON.parse(line) as { kind: string; event_time: string });
  expect(events.map(({ kind }) => kind)).toEqual(Array.from({ length: 3 }, () => "vault_key.created"));
  expect(events.map(({ event_time }) => event_time)).toEqual(events.map(({ event_time }) => event_time).toSorted());
  const since = events[1]?.event_time ?? "";
  const { out: later } = await terminal.run(`--json audit tail --kind vault_key.created --since ${since}`);
  expect(later.trimEnd().split("\n")).toHaveLength(2);
  const { out: before } = await terminal.run(`--json audit tail --kind vault_key.created --until ${since}`);
  expect(before.trimEnd().split("\n")).toHaveLength(1);
  expect(await terminal.ok("audit tail --customer nobody")).toBe("");
});

test("--follow shows what was there and what is added, each once and in order, and ends on the signal", async () => {
  const ending = new AbortController();
  const told: string[] = [];
  let heard = (): void => {};
  const reasons = () =>
    told.flatMap((line) => {
      const { kind, detail } = JSON.parse(line) as { kind: string; detail: { reason?: string } };
      return kind === "vault_key.suspended" ? [detail.reason] : [];
    });
  const earlier = [await suspend("two"), await suspend("two")];
  const running = terminal.run("--json audit tail --kind vault_key --limit 200 --follow", {
    signal: ending.signal,
    onOut: (text) => {
      told.push(text.trimEnd());
      heard();
    },
  });
  const shown = async (reason: string): Promise<void> => {
    while (!reasons().includes(reason)) {
      await new Promise<void>((resolve) => {
        heard = resolve;
      });
    }
  };
  await shown(earlier[1] ?? "");
  const added: string[] = [];
  for (let round = 0; round < 3; round += 1) {
    added.push(...(await Promise.all([suspend("one"), suspend("two"), suspend("three")])));
    // All at once and one after the other: some fall between two looks, some within one.
    await shown(added.at(-1) ?? "");
  }
  added.push(await suspend("three"));
  await shown(added.at(-1) ?? "");
  ending.abort();
  expect(await running).toMatchObject({ code: 0, err: "" });

  const names = told.map((line) => (JSON.parse(line) as { name: string }).name);
  expect(new Set(names).size).toBe(names.length);
  const all = (await server.admin.listAuditEvents({ pageSize: 200, kind: "vault_key" })).auditEvents;
  expect(names).toEqual(all.map(({ name }) => name));
  expect(reasons().filter((reason) => added.includes(reason ?? ""))).toHaveLength(added.length);
});
