import { randomBytes } from "node:crypto";
import { Writable } from "node:stream";
import { Code, ConnectError } from "@connectrpc/connect";
import { ErrorInfoSchema } from "@holdfast/api/google/rpc/error_details_pb";
import { AuthorizationState } from "@holdfast/api/holdfast/v1/spend_pb";
import pino from "pino";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { startApp } from "../../server/app.ts";
import { type Config, readConfig } from "../../server/config.ts";
import { createToken, tokenHash } from "../../server/rpc/auth.ts";
import { exitCodes, StartupError } from "../../server/startup-error.ts";
import { createCredentialCipher } from "../../server/store/credential-cipher.ts";
import { insertOperator } from "../../server/store/operator.ts";
import { ensureWorkspace } from "../../server/store/workspace.ts";
import { startOtlpReceiver } from "../support/otlp-receiver.ts";
import {
  credentialKey,
  liveSecret,
  otherSecret,
  platform,
  secret,
  startVendorWorld,
  strangersSecret,
  type VendorWorld,
} from "./world.ts";

let world: VendorWorld;
beforeEach(async () => {
  world = await startVendorWorld();
});
afterEach(() => world.close());

const name = "vendorCredentials/stripe";
const create = (fields: object = {}) =>
  world.server.admin.createVendorCredential({ vendorCredentialId: "stripe", vendor: "stripe", secret, ...fields });

async function refusal(call: Promise<unknown>) {
  const error = await call.then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
  if (!(error instanceof ConnectError)) throw new Error("the call was not refused", { cause: error });
  const [info] = error.findDetails(ErrorInfoSchema);
  return { code: error.code, reason: info?.reason, message: error.rawMessage };
}

describe("a credential", () => {
  test("is tried, stored encrypted, shown masked, exchanged, tried again and deleted", async () => {
    const { vendorCredential } = await create();
    expect(vendorCredential).toMatchObject({
      name,
      vendor: "stripe",
      vendorAccountId: platform,
      maskedSecret: "sk_test_…p7dc",
    });
    expect(vendorCredential?.lastAcceptedTime).toBeDefined();
    const { admin } = world.server;
    expect((await admin.getVendorCredential({ name })).vendorCredential).toEqual(vendorCredential);
    expect((await admin.listVendorCredentials({})).vendorCredentials).toEqual([vendorCredential]);
    const rotated = await admin.rotateVendorCredential({ name, secret: otherSecret });
    expect(rotated.vendorCredential?.maskedSecret).toBe("sk_test_…GjLsR".replace("GjLsR", otherSecret.slice(-4)));
    expect(rotated.vendorCredential?.rotateTime).toBeDefined();
    expect(await admin.testVendorCredential({ name })).toMatchObject({ accepted: true });
    await admin.deleteVendorCredential({ name, reason: "no longer" });
    expect((await admin.listVendorCredentials({})).vendorCredentials).toEqual([]);
    expect(await refusal(admin.getVendorCredential({ name }))).toMatchObject({ code: Code.NotFound });
    // Oldest first would wait for whatever else runs in the cluster.
    const { auditEvents } = await admin.listAuditEvents({ kind: "vendor_credential", newestFirst: true });
    expect(auditEvents.map(({ kind }) => kind)).toEqual([
      "vendor_credential.deleted",
      "vendor_credential.rotated",
      "vendor_credential.created",
    ]);
  });

  test("that the vendor does not know, or that is none, is not stored", async () => {
    const unknown = `sk_live_${"a".repeat(24)}`;
    const refused = await refusal(create({ secret: unknown }));
    expect(refused).toMatchObject({ code: Code.InvalidArgument });
    expect(refused.message).not.toContain(unknown);
    for (const wrong of ["pk_test_4eC39HqLyjWDarjtT1zdp7dc", "sk_test_short", "op_acme_x_y"]) {
      expect(await refusal(create({ secret: wrong }))).toMatchObject({ code: Code.InvalidArgument });
    }
    expect(await refusal(create({ vendor: "twilio" }))).toMatchObject({ code: Code.InvalidArgument });
    world.simulator.fault({ mode: "html_502", match: { path: "/v1/account" }, times: 1 });
    expect(await refusal(create())).toMatchObject({ code: Code.FailedPrecondition, reason: "STATE_NOT_ALLOWED" });
    expect((await world.server.admin.listVendorCredentials({})).vendorCredentials).toEqual([]);
  });

  test("stays of one account, and one account of one workspace", async () => {
    await create();
    const { admin, database, apps } = world.server;
    expect(await refusal(admin.rotateVendorCredential({ name, secret: strangersSecret }))).toMatchObject({
      code: Code.InvalidArgument,
    });
    expect(await refusal(admin.rotateVendorCredential({ name, secret: liveSecret }))).toMatchObject({
      code: Code.InvalidArgument,
      message: expect.stringContaining("test mode"),
    });
    expect(await refusal(create({ vendorCredentialId: "another" }))).toMatchObject({ code: Code.AlreadyExists });
    const token = createToken("op", "other", "root");
    await ensureWorkspace(database.pool, "other");
    await insertOperator(database.pool, "other", {
      operatorId: "root",
      role: "OPERATOR",
      secretSha256: tokenHash(token),
    });
    expect(apps).toHaveLength(1);
    const stranger = world.server.adminAs(token);
    const mine = { vendorCredentialId: "stripe", vendor: "stripe", secret };
    expect(await refusal(stranger.createVendorCredential(mine))).toMatchObject({ code: Code.AlreadyExists });
    await admin.deleteVendorCredential({ name, reason: "moves" });
    expect((await stranger.createVendorCredential(mine)).vendorCredential?.vendorAccountId).toBe(platform);
  });

  test("that was exchanged is used for the next read", async () => {
    await create();
    await world.server.admin.rotateVendorCredential({ name, secret: otherSecret });
    const one = await world.doubted({ charged: 4900 });
    await world.becomes(one.name, AuthorizationState.COMMITTED);
  });

  test("cannot be stored without a key of the server", async () => {
    await world.close();
    world = await startVendorWorld({ withoutKey: true });
    expect(await refusal(create())).toMatchObject({ reason: "STATE_NOT_ALLOWED" });
  });
});

describe("at rest", () => {
  const start = async (credentialKeys: Config["credentialKeys"]) => {
    const { credentialKeys: _, ...config } = readConfig({}, []);
    const app = await startApp(
      {
        ...config,
        port: 0,
        logLevel: "silent",
        alteredClock: "allowed",
        ...(credentialKeys === undefined ? {} : { credentialKeys }),
      },
      { connection: world.server.database.connection, fsyncOff: "allowed" },
    );
    await app.close();
  };
  const refused = async (credentialKeys: Config["credentialKeys"]) => {
    const error = await start(credentialKeys).then(
      () => undefined,
      (thrown: unknown) => thrown,
    );
    expect(error).toBeInstanceOf(StartupError);
    expect((error as StartupError).exitCode).toBe(exitCodes.credentialKey);
  };
  const keyIds = async () =>
    (await world.server.database.pool.query<{ key_id: string }>("select key_id from holdfast.vendor_credentials")).rows;

  test("a server without the key, or with another one, refuses to start", async () => {
    await create();
    await refused(undefined);
    await refused({ current: randomBytes(32), previous: undefined });
    await refused({ current: randomBytes(32), previous: randomBytes(32) });
    await start({ current: credentialKey, previous: undefined });
  });

  test("a key is exchanged: what the previous one has encrypted is encrypted anew", async () => {
    await create();
    const before = await keyIds();
    const next = randomBytes(32);
    // Servers that know the next key beside the present one change nothing.
    await start({ current: credentialKey, previous: next });
    expect(await keyIds()).toEqual(before);
    await start({ current: next, previous: credentialKey });
    expect(await keyIds()).not.toEqual(before);
    await start({ current: next, previous: undefined });
    await refused({ current: credentialKey, previous: undefined });
  });

  test("a row opens in its own place only, and no bit of it may change", () => {
    const cipher = createCredentialCipher({ current: credentialKey, previous: undefined }, randomBytes);
    const place = { workspace: "acme", vendor: "stripe", credentialId: "main" };
    const sealed = cipher.seal(secret, place);
    expect(cipher.open(sealed, place)).toBe(secret);
    for (const other of [{ workspace: "evil" }, { vendor: "twilio" }, { credentialId: "other" }]) {
      expect(cipher.open(sealed, { ...place, ...other })).toBeUndefined();
    }
    for (let at = 0; at < sealed.ciphertext.length; at += 1) {
      const ciphertext = Uint8Array.from(sealed.ciphertext);
      ciphertext[at] = (ciphertext[at] ?? 0) ^ 1;
      expect(cipher.open({ ...sealed, ciphertext }, place)).toBeUndefined();
    }
    expect(cipher.seal(secret, place).nonce).not.toEqual(sealed.nonce);
  });
});

test("no sink ever holds a secret: logs, errors, traces, metrics, audit and every table", async () => {
  await world.close();
  const receiver = await startOtlpReceiver();
  const lines: string[] = [];
  const log = pino(
    { level: "trace" },
    new Writable({ write: (chunk: Buffer, _encoding, done) => (lines.push(chunk.toString()), done()) }),
  );
  world = await startVendorWorld({ config: { otlpEndpoint: receiver.endpoint, metricIntervalMs: 200 }, log });
  const said: string[] = [];
  const { admin, database } = world.server;
  said.push(
    JSON.stringify((await create()).vendorCredential, (_, value: unknown) =>
      typeof value === "bigint" ? `${value}` : value,
    ),
  );
  for (const call of [
    () => create(),
    () => create({ vendorCredentialId: "UPPER" }),
    () => create({ secret: strangersSecret }),
    () => admin.rotateVendorCredential({ name, secret: strangersSecret }),
    () => admin.rotateVendorCredential({ name: "vendorCredentials/none", secret: otherSecret }),
  ]) {
    said.push(JSON.stringify(await refusal(call())));
  }
  await admin.rotateVendorCredential({ name, secret: otherSecret });
  world.simulator.fault({ mode: "drop_before_execute", match: { method: "GET", path: "/v1/events" }, times: 2 });
  const one = await world.doubted({ charged: 4900 });
  await world.becomes(one.name, AuthorizationState.COMMITTED);
  const { rows: tables } = await database.pool.query<{ name: string }>(
    "select relname as name from pg_class where relnamespace = 'holdfast'::regnamespace and relkind in ('r', 'p')",
  );
  for (const { name: table } of tables) {
    const { rows } = await database.pool.query<{ row: string }>(`select t::text as row from holdfast.${table} t`);
    said.push(...rows.map(({ row }) => row));
  }
  await world.server.close();
  const sinks = [...said, ...lines, receiver.bytes().toString("latin1")].join("\n");
  for (const canary of [secret, otherSecret, strangersSecret]) {
    expect(sinks).not.toContain(canary.slice(8, 24));
    expect(sinks).not.toContain(Buffer.from(canary).toString("hex"));
    expect(sinks).not.toContain(Buffer.from(canary).toString("base64"));
  }
  expect(lines.length).toBeGreaterThan(0);
  await receiver.close();
});
