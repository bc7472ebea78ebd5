import { timestampFromMs } from "@bufbuild/protobuf/wkt";
import { afterAll, beforeAll, expect, test } from "vitest";
import { createPool } from "../../server/store/postgres.ts";
import { migrate } from "../../server/store/migrate.ts";
import { startDurablePostgres } from "../injection/durable-postgres.ts";
import { startTestServer, type TestServer } from "../support/server.ts";
import { granted, run, type Terminal, terminalOf } from "./terminal.ts";

let server: TestServer;
let terminal: Terminal;

beforeAll(async () => {
  server = await startTestServer();
  terminal = terminalOf(server);
});
afterAll(() => server.close());

/** The finding about one subject, from the JSON. */
async function finding(subject: string, env: Readonly<Record<string, string | undefined>> = {}) {
  const { code, out } = await terminal.run("--json doctor", { env });
  const { findings } = JSON.parse(out) as { findings: { subject: string; verdict: string; text: string }[] };
  return { code, ...findings.find((one) => one.subject === subject) };
}

test("an empty server is to be looked at: it has no key and limits nothing", async () => {
  const out = await terminal.ok("doctor");
  expect(out).toMatch(/^ok {5}server: http:\S+ serves\.$/m);
  expect(out).toMatch(/^ok {5}address: this machine\.$/m);
  expect(out).toMatch(/^ok {5}token: accepted\.$/m);
  expect(out).toMatch(/^look {3}vault keys: there is none/m);
  expect(out).toMatch(/^look {3}caps: there is none, so nothing is limited/m);
  expect(out).toMatch(/^ok {5}credentials: none is stored\.$/m);
});

test("keys that end soon and engaged kill switches are to be looked at", async () => {
  await server.vaultKey("ending", { expireTime: timestampFromMs(Date.now() + 86_400_000) });
  await server.vaultKey("lasting", { expireTime: timestampFromMs(Date.now() + 86_400_000 * 300) });
  await server.cap("all", "1000");
  expect(await finding("vault keys")).toMatchObject({
    verdict: "look",
    text: expect.stringMatching(/: vaultKeys\/ending\./),
  });
  expect(await finding("caps")).toMatchObject({ verdict: "ok" });
  const { killSwitch } = await server.admin.engageKillSwitch({
    target: { target: { case: "vendor", value: "twilio" } },
    reason: "test",
  });
  expect(await finding("kill switches")).toMatchObject({ code: 0, verdict: "look" });
  await server.admin.releaseKillSwitch({ name: killSwitch?.name ?? "", reason: "test" });
  expect(await finding("kill switches")).toMatchObject({ code: 0, verdict: "ok" });
});

test("doubt is to be looked at, and wrong once nobody but a person will settle it", async () => {
  const token = await server.vaultKey("billing");
  const { name } = await granted(server, token, { inDoubt: true });
  expect(await finding("in doubt")).toMatchObject({
    code: 0,
    verdict: "look",
    text: expect.stringMatching(/^1, the oldest/),
  });
  await server.clock.advance(27 * 3_600_000);
  expect(await finding("in doubt")).toMatchObject({
    code: 4,
    verdict: "wrong",
    text: expect.stringContaining("1d 3h"),
  });
  await server.admin.resolveAuthorization({
    name,
    resolution: { case: "voided", value: { vendorReference: "" } },
    reason: "test",
  });
  expect(await finding("in doubt")).toMatchObject({ code: 0, verdict: "ok" });

  const amount = { currency: "usd", amount: "49" };
  await server
    .spend(token)
    .commitSpend({ authorization: name, amount, vendorReference: "pi_late" })
    .catch(() => {});
  expect(await finding("contradictions")).toMatchObject({ code: 4, verdict: "wrong" });
  const { contradictions } = await server.admin.listContradictions({});
  await server.admin.closeContradiction({ name: contradictions[0]?.name ?? "", reason: "refunded" });
  expect(await finding("contradictions")).toMatchObject({ code: 0, verdict: "ok" });
});

test("without a server or with a wrong token nothing else is asked", async () => {
  const away = await run(["doctor", "--url", "http://127.0.0.1:1"]);
  expect(away.code).toBe(4);
  expect(away.out).toMatch(/^wrong {2}server: /);
  expect(away.out).not.toContain("token");
  const strange = await terminal.run("doctor", { env: { HOLDFAST_OPERATOR_TOKEN: "nonsense" } });
  expect(strange.code).toBe(4);
  expect(strange.out).toMatch(/^wrong {2}token: not accepted/m);
  expect(strange.out).not.toContain("caps");
});

test("an auditor may ask the doctor", async () => {
  const { token } = await terminal.json("operators create anna --role auditor");
  await terminalOf(server, token).ok("doctor");
});

function databaseUrl(): string {
  const { host, user, database } = server.database.connection;
  return `postgres://${user}@localhost/${database}?host=${encodeURIComponent(host)}`;
}

test("without DATABASE_URL no database is looked at", async () => {
  expect(await terminal.ok("doctor", { env: { DATABASE_URL: "" } })).not.toMatch(/database|schema|recovery/);
});

test("with DATABASE_URL the settings, the schema and the recovery are looked at, and nothing is changed", async () => {
  const env = { DATABASE_URL: databaseUrl(), HOLDFAST_ALTERED_CLOCK: "allowed" };
  // The cluster of the tests does without fsync, which no server may.
  expect(await finding("database", env)).toMatchObject({
    code: 4,
    verdict: "wrong",
    text: expect.stringContaining("fsync is off"),
  });
  expect(await finding("settings", env)).toMatchObject({ verdict: "ok" });
  expect(await finding("schema", env)).toMatchObject({ verdict: "ok" });
  expect(await finding("recovery", env)).toMatchObject({ verdict: "ok" });
  expect(await finding("schema", { DATABASE_URL: databaseUrl() })).toMatchObject({
    verdict: "wrong",
    text: expect.stringContaining("holdfast.clock() was replaced"),
  });
  expect(await finding("settings", { ...env, HOLDFAST_POOL_SIZE: "many" })).toMatchObject({
    verdict: "wrong",
    text: expect.stringContaining("HOLDFAST_POOL_SIZE"),
  });

  const { pool } = server.database;
  await pool.query("update holdfast.instance set suspicion = 'LOG_WENT_BACK'");
  expect(await finding("recovery", env)).toMatchObject({
    code: 4,
    verdict: "wrong",
    text: expect.stringContaining("LOG_WENT_BACK"),
  });
  await pool.query("update holdfast.instance set suspicion = null");
  expect(await finding("recovery", env)).toMatchObject({ verdict: "ok" });

  await pool.query("update holdfast.migrations set sha256 = repeat('0', 64) where version = 1");
  expect(await finding("schema", env)).toMatchObject({ verdict: "wrong" });
});

test("a migrated Postgres with safe settings is well, and says so before and after its first server", async () => {
  const postgres = await startDurablePostgres();
  try {
    const { host, user, database } = postgres.connection;
    const DATABASE_URL = `postgres://${user}@localhost/${database}?host=${encodeURIComponent(host)}`;
    expect(await finding("schema", { DATABASE_URL })).toMatchObject({
      code: 4,
      verdict: "wrong",
      text: expect.stringContaining("holdfast migrate"),
    });
    await migrate(postgres.connection);
    expect(await finding("recovery", { DATABASE_URL })).toMatchObject({ code: 0, verdict: "look" });
    const pool = createPool({ connection: postgres.connection, max: 1 });
    await pool.query("select holdfast.register_instance()");
    await pool.end();
    const out = await terminal.ok("doctor", { env: { DATABASE_URL } });
    for (const subject of ["settings", "database", "schema", "recovery"]) expect(out).toContain(`ok     ${subject}: `);
  } finally {
    await postgres.close();
  }
});

test("a database that cannot be reached is wrong, and its password is not shown", async () => {
  const { code, out } = await terminal.run("doctor", {
    env: { DATABASE_URL: "postgres://app:hunter2@127.0.0.1:1/none" },
  });
  expect(code).toBe(4);
  expect(out).toMatch(/^wrong {2}database: /m);
  expect(out).not.toContain("hunter2");
});
