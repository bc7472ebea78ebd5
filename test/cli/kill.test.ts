import { VaultKeyState } from "@holdfast/api/holdfast/v1/vault_key_pb";
import { afterAll, beforeAll, expect, test } from "vitest";
import { startTestServer, type TestServer } from "../support/server.ts";
import { field, granted, type Terminal, terminalOf } from "./terminal.ts";

let server: TestServer;
let terminal: Terminal;
let token: string;

beforeAll(async () => {
  server = await startTestServer();
  terminal = terminalOf(server);
  token = await server.vaultKey("billing");
  await server.cap("all", "1000000");
});
afterAll(() => server.close());

test.each([
  ["vendor stripe", "vendor stripe"],
  ["customer cust_1", "customer cust_1"],
  ["workspace", "the whole workspace"],
])("kill %s stops its spends and lists what is open, and its release lets them go on", async (target, stops) => {
  const customerId = "cust_1";
  await granted(server, token, { customerId, purpose: `before_${target.split(" ")[0]}` });
  const out = await terminal.ok(`kill ${target} --reason "an incident"`);
  expect(field(out, "stops")).toBe(stops);
  expect(out).toMatch(/\d+ granted before (is|are) open and may still be charged:/);
  await expect(granted(server, token, { customerId, purpose: `during_${target.split(" ")[0]}` })).rejects.toThrow(
    "not granted",
  );
  const name = field(out, "switch");
  const listed = await terminal.ok("kill list");
  expect(listed).toContain(stops);
  expect(listed).toContain(name.slice("killSwitches/".length));
  const released = await terminal.ok(`kill release ${name} --reason "it is over"`);
  expect(field(released, "why released")).toBe("it is over");
  await granted(server, token, { customerId, purpose: `after_${target.split(" ")[0]}` });
  expect(await terminal.ok("kill list")).toBe("Nothing is stopped by a kill switch.\n");
  expect((await terminal.json("kill list --released")).kill_switches).toContainEqual(expect.objectContaining({ name }));
});

test("kill key suspends a vault key", async () => {
  await server.vaultKey("leaky");
  const answer = await terminal.json('kill key leaky --reason "leaked"');
  expect(answer.vault_key).toMatchObject({ name: "vaultKeys/leaky", state: "VAULT_KEY_STATE_SUSPENDED" });
  const { vaultKey } = await server.admin.getVaultKey({ name: "vaultKeys/leaky" });
  expect(vaultKey?.state).toBe(VaultKeyState.SUSPENDED);
});

test("many switches for customers with long ids fit, and are limited", async () => {
  for (const letter of ["a", "b", "c"]) {
    const answer = await terminal.json(`kill customer ${letter.repeat(128)} --reason test`);
    expect(answer.kill_switch.target.customer_id).toBe(letter.repeat(128));
  }
  await terminal.ok("kill list");
  expect(await terminal.ok("kill list --limit 2")).toContain("more than 2");
  expect((await terminal.json("kill list --limit 2")).next_page_token).not.toBe("");
});
