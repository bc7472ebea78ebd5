import { mkdtempSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { OperatorRole } from "@holdfast/api/holdfast/v1/operator_pb";
import { afterAll, beforeAll, expect, test } from "vitest";
import { startApp } from "../../server/app.ts";
import { readConfig } from "../../server/config.ts";
import { openQuickstart, quickstartConfig } from "../../server/quickstart.ts";
import { startTestServer, type TestServer } from "../support/server.ts";

let server: TestServer;
const folder = mkdtempSync(join(tmpdir(), "holdfast-quickstart-"));

beforeAll(async () => {
  server = await startTestServer();
});
afterAll(async () => {
  await server.close();
  rmSync(folder, { recursive: true, force: true });
});

async function tryOpen(operatorToken: string) {
  return await openQuickstart(server.apps[0]?.url ?? "", { ...readConfig({}, []), operatorToken }, folder);
}

async function open(operatorToken = server.operatorToken) {
  return (await tryOpen(operatorToken)) ?? expect.fail("the token was refused");
}

test("what is shown at the first start is shown again, until the key is revoked", async () => {
  const first = await open();
  expect(first.vaultKey).toMatch(/^vk_default_quickstart_/);
  expect(await open()).toEqual(first);
  // Only its owner reads the tokens.
  expect(statSync(join(folder, "credentials.json")).mode & 0o077).toBe(0);
  await server.admin.revokeVaultKey({ name: "vaultKeys/quickstart" });
  const second = await open();
  expect(second.vaultKey).toMatch(/^vk_default_quickstart2_/);
  expect(await open()).toEqual(second);
});

test("an operator token that was rotated shows nothing, and the newer one is remembered", async () => {
  await server.admin.createOperator({ operatorId: "second", role: OperatorRole.OPERATOR });
  const { token: first } = await server.admin.rotateOperator({ name: "operators/second", overlap: {} });
  const { vaultKey } = await open(first);
  const { token: second } = await server.admin.rotateOperator({ name: "operators/second", overlap: {} });
  expect(await tryOpen(first)).toBeUndefined();
  expect(quickstartConfig(readConfig({}, []), folder).operatorToken).toBe(first);
  expect(await open(second)).toMatchObject({ operatorToken: second, vaultKey });
  expect(quickstartConfig(readConfig({}, []), folder).operatorToken).toBe(second);
});

test("an address that is taken is named, with what to do", async () => {
  const { port = 0 } = server.apps[0] ?? {};
  const config = { ...readConfig({}, []), port, alteredClock: "allowed" as const, logLevel: "silent" as const };
  const second = startApp(config, { connection: server.database.connection, fsyncOff: "allowed" });
  await expect(second).rejects.toMatchObject({
    code: "address",
    exitCode: 68,
    message: expect.stringMatching(/another program listens there.*HOLDFAST_PORT/s),
  });
});
