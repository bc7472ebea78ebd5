import { randomBytes } from "node:crypto";
import { type Client, Code, ConnectError } from "@connectrpc/connect";
import { ErrorInfoSchema } from "@holdfast/api/google/rpc/error_details_pb";
import type { AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import { OperatorRole } from "@holdfast/api/holdfast/v1/operator_pb";
import pino from "pino";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { startApp } from "../../server/app.ts";
import { readConfig } from "../../server/config.ts";
import { tokenHash } from "../../server/rpc/auth.ts";
import { insertOperator, operatorSecrets } from "../../server/store/operator.ts";
import { ensureWorkspace } from "../../server/store/workspace.ts";
import { openPaused } from "../support/paused.ts";
import { startTestServer, type TestServer } from "../support/server.ts";

let server: TestServer;
let count = 0;
let operatorId: string;
let name: string;

beforeAll(async () => {
  server = await startTestServer({ servers: 2 });
});
afterAll(() => server.close());
beforeEach(async () => {
  await server.clock.reset();
  count += 1;
  operatorId = `person${count}`;
  name = `operators/${operatorId}`;
});

async function refusal(call: Promise<unknown>) {
  const error = await call.then(
    () => expect.fail("the call was not refused"),
    (cause: unknown) => ConnectError.from(cause),
  );
  const info = error.findDetails(ErrorInfoSchema)[0];
  return { code: error.code, reason: info?.reason, state: info?.metadata["state"] };
}

async function made(role: OperatorRole = OperatorRole.OPERATOR): Promise<string> {
  return (await server.admin.createOperator({ operatorId, role })).token;
}

/** Whether a token opens on each of the two servers. */
async function opens(token: string): Promise<boolean[]> {
  const tries = [0, 1].map(async (n) => {
    try {
      await server.adminAs(token, n).listCaps({ pageSize: 1 });
      return true;
    } catch (error) {
      if (ConnectError.from(error).code === Code.Unauthenticated) return false;
      throw error;
    }
  });
  return await Promise.all(tries);
}

describe("an operator", () => {
  test("is made with a token that is shown once and stored as its hash", async () => {
    const { token, operator } = await server.admin.createOperator({ operatorId, role: OperatorRole.OPERATOR });
    expect(token).toMatch(new RegExp(`^op_default_${operatorId}_[A-Za-z0-9]{43}$`));
    expect(operator).toMatchObject({ name, role: OperatorRole.OPERATOR });
    expect(await opens(token)).toEqual([true, true]);
    const { rows } = await server.database.pool.query<{ row: string }>(
      "select o::text as row from holdfast.operators o",
    );
    expect(JSON.stringify(rows)).not.toContain(token.split("_")[3]);
    expect(await refusal(server.admin.createOperator({ operatorId, role: OperatorRole.AUDITOR }))).toMatchObject({
      reason: "ALREADY_EXISTS",
    });
  });

  test("is made once for one request id", async () => {
    const request = { operatorId, role: OperatorRole.AUDITOR, requestId: randomBytes(16).toString("hex") };
    const first = await server.admin.createOperator(request);
    expect(await server.admin.createOperator(request)).toMatchObject({ token: "", operator: first.operator });
    expect(await refusal(server.admin.createOperator({ ...request, operatorId: `${operatorId}b` }))).toMatchObject({
      reason: "ALREADY_EXISTS",
    });
  });

  test("who is revoked is dead at once on every server, also one that has just let it in", async () => {
    const token = await made();
    expect(await opens(token)).toEqual([true, true]);
    const { operator } = await server.admin.revokeOperator({ name, reason: "left" });
    expect(operator).toMatchObject({ name, revokeReason: "left" });
    expect(await opens(token)).toEqual([false, false]);
    expect((await server.admin.revokeOperator({ name, reason: "again" })).operator).toEqual(operator);
    expect(await refusal(server.admin.rotateOperator({ name }))).toMatchObject({
      reason: "STATE_NOT_ALLOWED",
      state: "REVOKED",
    });
    const { operators } = await server.admin.listOperators({ pageSize: 200 });
    expect(operators.find((one) => one.name === name)?.revokeTime).toBeDefined();
  });

  test("whose change waits behind its revocation changes nothing", async () => {
    const token = await made();
    const { rows } = await server.database.pool.query<{ before: string }>(
      "select count(*) as before from holdfast.caps",
    );
    const paused = await openPaused(server.database.pool);
    // As a revocation does: the workspace row first, then the operator.
    await paused.client.query("update holdfast.workspaces set policy_version = policy_version + 1");
    const late = server
      .adminAs(token, 1)
      .createCap({ capId: `late${count}`, cap: { limit: { currency: "usd", amount: "1" }, window: 1 } });
    await paused.expectBlocking(late);
    await paused.client.query("update holdfast.operators set revoke_time = now() where operator_id = $1", [operatorId]);
    await paused.commit();
    const refused = await refusal(late);
    expect([Code.Unauthenticated, Code.Unavailable]).toContain(refused.code);
    paused.release();
    const after = await server.database.pool.query<{ before: string }>("select count(*) as before from holdfast.caps");
    expect(after.rows).toEqual(rows);
  });

  test("rotates with an overlap in which both tokens open", async () => {
    const first = await made();
    const { token: second } = await server.admin.rotateOperator({ name, overlap: { seconds: 600n } });
    expect(await opens(first)).toEqual([true, true]);
    expect(await opens(second)).toEqual([true, true]);
    await server.clock.advance(600_000);
    expect(await opens(first)).toEqual([false, false]);
    expect(await opens(second)).toEqual([true, true]);
    const { token: third } = await server.admin.rotateOperator({ name, overlap: {} });
    expect(await opens(second)).toEqual([false, false]);
    expect(await opens(third)).toEqual([true, true]);
  });

  test("may rotate and revoke itself", async () => {
    const { token } = await server.adminAs(await made()).rotateOperator({ name, overlap: {} });
    await server.adminAs(token).revokeOperator({ name, reason: "done" });
    expect(await opens(token)).toEqual([false, false]);
  });

  test("that does not exist is not found", async () => {
    expect(await refusal(server.admin.revokeOperator({ name, reason: "x" }))).toMatchObject({ reason: "NOT_FOUND" });
    expect(await refusal(server.admin.rotateOperator({ name }))).toMatchObject({ reason: "NOT_FOUND" });
  });
});

describe("an auditor", () => {
  test("reads, and changes nothing", async () => {
    const auditor = server.adminAs(await made(OperatorRole.AUDITOR));
    expect((await auditor.listOperators({})).operators.length).toBeGreaterThan(0);
    expect((await auditor.listAuditEvents({ newestFirst: true })).auditEvents.length).toBeGreaterThan(0);
    const vaultKey = { vendor: "stripe", allowedEndpoints: [] };
    expect(await refusal(auditor.createVaultKey({ vaultKeyId: "x", vaultKey }))).toMatchObject({
      reason: "ROLE_NOT_ALLOWED",
    });
  });

  test("leaves no trace in the database, whatever it calls", async () => {
    const token = await made(OperatorRole.AUDITOR);
    await server.vaultKey(`seen${count}`);
    const contents = async () => {
      const { rows } = await server.database.pool.query<{ name: string; text: string }>(
        `select c.relname as name, (xpath('/row/h/text()', query_to_xml(format(
           'select md5(coalesce(string_agg(t::text, chr(10) order by t::text), '''')) as h from holdfast.%I t', c.relname),
           false, true, '')))[1]::text as text
         from pg_class c where c.relnamespace = 'holdfast'::regnamespace and c.relkind in ('r', 'p') order by 1`,
      );
      return rows;
    };
    const before = await contents();
    type Call = (request: object) => Promise<unknown> | AsyncIterable<unknown>;
    const auditor = server.adminAs(token) as unknown as Record<string, Call>;
    const spend = server.spend(token) as unknown as Record<string, Call>;
    const ended = async (answer: ReturnType<Call> | undefined): Promise<void> => {
      if (answer === undefined || !(Symbol.asyncIterator in answer)) return void (await answer);
      // Of a stream the first message is enough.
      for await (const _ of answer) return;
    };
    let answered = 0;
    for (const client of [auditor, spend]) {
      for (const method of Object.keys(client)) {
        await ended(client[method]?.({ dryRun: method === "authorizeSpend" ? true : undefined })).then(
          () => (answered += 1),
          () => {},
        );
      }
    }
    expect(answered).toBeGreaterThan(4);
    expect(await contents()).toEqual(before);
  });
});

describe("the last operator of a workspace", () => {
  let admin: Client<typeof AdminService>;

  beforeEach(async () => {
    await ensureWorkspace(server.database.pool, `lone${count}`);
    const token = `op_lone${count}_first_${"a".repeat(43)}`;
    await insertOperator(server.database.pool, `lone${count}`, {
      operatorId: "first",
      role: "OPERATOR",
      secretSha256: tokenHash(token),
    });
    admin = server.adminAs(token);
  });

  test("cannot be revoked, and an auditor is no other one", async () => {
    await admin.createOperator({ operatorId: "eve", role: OperatorRole.AUDITOR });
    const last = { name: "operators/first", reason: "x" };
    expect(await refusal(admin.revokeOperator(last))).toMatchObject({
      code: Code.FailedPrecondition,
      reason: "STATE_NOT_ALLOWED",
      state: "LAST_OPERATOR",
    });
    await admin.revokeOperator({ name: "operators/eve", reason: "auditors may go" });
    await admin.createOperator({ operatorId: "second", role: OperatorRole.OPERATOR });
    await admin.revokeOperator(last);
  });

  test("two that revoke each other at once leave one", async () => {
    const { token } = await admin.createOperator({ operatorId: "second", role: OperatorRole.OPERATOR });
    const second = server.adminAs(token, 1);
    await Promise.allSettled([
      admin.revokeOperator({ name: "operators/second", reason: "x" }),
      second.revokeOperator({ name: "operators/first", reason: "x" }),
    ]);
    const { rows } = await server.database.pool.query(
      "select from holdfast.operators where workspace_id = $1 and role = 'OPERATOR' and revoke_time is null",
      [`lone${count}`],
    );
    expect(rows).toHaveLength(1);
  });
});

describe("the operator of the settings", () => {
  const token = (letter: string) => `op_default_${operatorId}_${letter.repeat(43)}`;

  /** Starts a server with that token and stops it; gives the errors that it logged. */
  async function start(letter: string): Promise<string> {
    let logged = "";
    const log = pino({ level: "error" }, { write: (line: string) => void (logged += line) });
    const settings = { HOLDFAST_OPERATOR_TOKEN: token(letter), HOLDFAST_PORT: "0" };
    const config = { ...readConfig(settings, []), alteredClock: "allowed" as const };
    const app = await startApp(config, { connection: server.database.connection, fsyncOff: "allowed", log });
    await app.close();
    return logged;
  }

  // The audit is read up to the oldest transaction that runs in the cluster, which may be another test's.
  const guard = { timeout: 60_000 };

  /** What the audit says of the operator, oldest first. */
  async function events(): Promise<string[]> {
    const { auditEvents } = await server.admin.listAuditEvents({ kind: "operator", newestFirst: true, pageSize: 50 });
    return auditEvents
      .filter(({ detail }) => detail?.["operator_id"] === operatorId)
      .map(({ kind, actor, detail }) => {
        const why = detail?.["reason"];
        return `${kind} ${actor}${typeof why === "string" ? ` ${why}` : ""}`;
      })
      .toReversed();
  }

  async function policyVersion(): Promise<bigint | undefined> {
    const { rows } = await server.database.pool.query<{ policy_version: bigint }>(
      "select policy_version from holdfast.workspaces where workspace_id = 'default'",
    );
    return rows[0]?.policy_version;
  }

  test("is made and given a new token by a change of policy that the audit shows", async () => {
    const before = await policyVersion();
    expect(await start("a")).toBe("");
    expect(await opens(token("a"))).toEqual([true, true]);
    expect(await start("b")).toBe("");
    expect([await opens(token("a")), await opens(token("b"))]).toEqual([
      [false, false],
      [true, true],
    ]);
    expect(await policyVersion()).toBe((before ?? 0n) + 2n);
    expect(await start("b")).toBe("");
    expect(await policyVersion()).toBe((before ?? 0n) + 2n);
    await expect.poll(events, guard).toEqual(["operator.created server/settings", "operator.rotated server/settings"]);
  });

  test("keeps its newer token when an older server starts late, which says so and serves", async () => {
    for (const letter of ["a", "b", "c"]) await start(letter);
    for (const older of ["a", "b"]) {
      expect(await start(older)).toContain("the newer token stays");
      expect([await opens(token(older)), await opens(token("c"))]).toEqual([
        [false, false],
        [true, true],
      ]);
    }
    const refused = "operator.settings_refused server/settings RETIRED";
    await expect.poll(async () => (await events()).slice(3), guard).toEqual([refused, refused]);
  });

  test("keeps what RotateOperator gave it, also within its overlap, and takes a token that is new", async () => {
    await start("a");
    const { token: rotated } = await server.admin.rotateOperator({ name });
    expect(await start("a")).toContain("RotateOperator");
    expect([await opens(token("a")), await opens(rotated)]).toEqual([
      [true, true],
      [true, true],
    ]);
    await start("b");
    expect([await opens(token("a")), await opens(rotated), await opens(token("b"))]).toEqual([
      [false, false],
      [false, false],
      [true, true],
    ]);
  });

  test("is not revived, neither by its last token nor by a new one", async () => {
    await start("a");
    await server.admin.revokeOperator({ name, reason: "left" });
    for (const letter of ["a", "b"]) {
      expect(await start(letter)).toContain("revoked, and for ever");
      expect(await opens(token(letter))).toEqual([false, false]);
    }
    expect(await operatorSecrets(server.database.pool, "default", operatorId)).toBeUndefined();
    const last = async () => (await events()).at(-1);
    await expect.poll(last, guard).toBe("operator.settings_refused server/settings REVOKED");
  });
});
