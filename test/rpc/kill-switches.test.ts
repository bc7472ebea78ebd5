import { randomBytes } from "node:crypto";
import { Code, ConnectError } from "@connectrpc/connect";
import { ErrorInfoSchema } from "@holdfast/api/google/rpc/error_details_pb";
import type { EngageKillSwitchResponse } from "@holdfast/api/holdfast/v1/kill_switch_pb";
import { DenialRule, Disposition, Settlement } from "@holdfast/api/holdfast/v1/spend_pb";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { authorizeBatch } from "../../server/store/authorize.ts";
import { asks as storeAsks } from "../support/granting.ts";
import { openPaused } from "../support/paused.ts";
import { startTestServer, type TestServer } from "../support/server.ts";

let server: TestServer;
let token: string;

beforeAll(async () => {
  server = await startTestServer({ servers: 2 });
  token = await server.vaultKey("main");
});
afterAll(() => server.close());
afterEach(async () => {
  const { killSwitches } = await server.admin.listKillSwitches({ pageSize: 200 });
  for (const { name } of killSwitches) await server.admin.releaseKillSwitch({ name, reason: "the test is over" });
});

const endpoint = "POST /v1/payment_intents";

function asks(customerId = "cust_1", purpose = randomBytes(8).toString("hex")) {
  const spend = { customerId, billingPeriod: "2026-11", purpose, amount: { currency: "usd", amount: "10" } };
  const attemptId = randomBytes(16).toString("hex");
  return { spend, vendor: "stripe", endpoint, attemptId, settlement: Settlement.SEND_ONCE };
}

/** Repeats what a server gave up on while the other one, stalled, held the lock. */
async function untilAnswered<Answer>(ask: () => Promise<Answer>): Promise<Answer> {
  for (;;) {
    try {
      return await ask();
    } catch (error) {
      if (ConnectError.from(error).code !== Code.Unavailable) throw error;
    }
  }
}

const targets = {
  vendor: { target: { case: "vendor" as const, value: "stripe" } },
  customer: { target: { case: "customerId" as const, value: "cust_1" } },
  workspace: { target: { case: "workspace" as const, value: true } },
};
const kinds = ["vendor", "customer", "workspace"] as const;

describe("a kill switch", () => {
  test.each(kinds)("of the %s denies by name on both servers, and nothing once it is released", async (kind) => {
    const reason = "cust_2 complained about us";
    const { killSwitch } = await server.admin.engageKillSwitch({ target: targets[kind], reason });
    expect(killSwitch).toMatchObject({ reason, engagedBy: "operators/test", target: targets[kind] });
    for (const n of [0, 1]) {
      const { disposition, denial, authorization } = await server.spend(token, n).authorizeSpend(asks());
      expect([disposition, denial?.rule]).toEqual([Disposition.DENIED, DenialRule.KILL_SWITCH]);
      expect(denial?.killSwitch).toBe(killSwitch?.name);
      expect(denial?.message).toContain("ReleaseKillSwitch");
      // An operator's words are for operators.
      expect(denial?.message).not.toContain("complained");
      expect(authorization).toBeUndefined();
    }
    const name = killSwitch?.name ?? "";
    const { killSwitch: released } = await server.admin.releaseKillSwitch({ name, reason: "settled" });
    expect(released).toMatchObject({ releasedBy: "operators/test", releaseReason: "settled", reason });
    for (const n of [0, 1]) {
      expect((await server.spend(token, n).authorizeSpend(asks())).disposition).toBe(Disposition.GRANTED);
    }
  });

  test("that is engaged twice, also at once from two servers, is the first one", async () => {
    const reasons = Array.from({ length: 6 }, (_, n) => `reason ${n}`);
    const admins = [server.adminAs(server.operatorToken, 0), server.adminAs(server.operatorToken, 1)] as const;
    const answers = await Promise.all(
      reasons.map((reason, n) =>
        untilAnswered(() => (admins[n % 2] ?? admins[0]).engageKillSwitch({ target: targets.vendor, reason })),
      ),
    );
    expect(new Set(answers.map(({ killSwitch }) => `${killSwitch?.name} ${killSwitch?.reason}`)).size).toBe(1);
    const { auditEvents } = await server.admin.listAuditEvents({ kind: "kill_switch.engaged", newestFirst: true });
    const name = answers[0]?.killSwitch?.name.split("/")[1];
    expect(auditEvents.filter((event) => event.detail?.["kill_switch"] === name)).toHaveLength(1);
  });

  test("answers with the exposure of its target", async () => {
    const spend = server.spend(token);
    const customer = `open_${randomBytes(4).toString("hex")}`;
    const held = [await spend.authorizeSpend(asks(customer)), await spend.authorizeSpend(asks(customer))];
    const target = { target: { case: "customerId" as const, value: customer } };
    const answer = await server.admin.engageKillSwitch({ target, reason: "fraud" });
    expect(answer.openAuthorizationCount).toBe(2n);
    expect(answer.openAuthorizations.map((one) => one.name).toSorted()).toEqual(
      held.map((one) => one.authorization?.name ?? "").toSorted(),
    );
    const workspace = await server.admin.engageKillSwitch({ target: targets.workspace, reason: "fraud" });
    expect(workspace.openAuthorizationCount).toBeGreaterThan(2n);
  });

  test("denies an increase and a takeover by name, and lets the rest be settled", async () => {
    const spend = server.spend(token);
    const request = { ...asks(), settlement: Settlement.TWO_STEP };
    const { authorization } = await spend.authorizeSpend(request);
    const name = authorization?.name ?? "";
    await spend.bindVendorReference({
      authorization: name,
      attemptId: request.attemptId,
      vendorReference: `pi_${name.slice(-8)}`,
    });
    const { killSwitch } = await server.admin.engageKillSwitch({ target: targets.workspace, reason: "drill" });
    const more = await spend.increaseHold({ authorization: name, amount: { currency: "usd", amount: "11" } });
    expect(more.denial).toMatchObject({ rule: DenialRule.KILL_SWITCH, killSwitch: killSwitch?.name });
    const again = {
      ...request,
      attemptId: randomBytes(16).toString("hex"),
      continueVendorReference: `pi_${name.slice(-8)}`,
    };
    expect((await spend.authorizeSpend(again)).denial?.killSwitch).toBe(killSwitch?.name);
    const amount = { currency: "usd", amount: "10" };
    const settled = await spend.commitSpend({ authorization: name, amount, vendorReference: `pi_${name.slice(-8)}` });
    expect(settled.authorization?.name).toBe(name);
  });

  test("is listed newest first, released ones only when asked for, in pages", async () => {
    const first = await server.admin.engageKillSwitch({ target: targets.vendor, reason: "one" });
    const second = await server.admin.engageKillSwitch({ target: targets.customer, reason: "two" });
    await server.admin.releaseKillSwitch({ name: first.killSwitch?.name ?? "", reason: "over" });
    const open = await server.admin.listKillSwitches({});
    expect(open.killSwitches.map((one) => one.name)).toEqual([second.killSwitch?.name]);
    const names: string[] = [];
    let pageToken = "";
    do {
      const page = await server.admin.listKillSwitches({ includeReleased: true, pageSize: 1, pageToken });
      names.push(...page.killSwitches.map((one) => one.name));
      pageToken = page.nextPageToken;
    } while (pageToken !== "");
    expect(names.slice(0, 2)).toEqual([second.killSwitch?.name, first.killSwitch?.name]);
    expect(new Set(names).size).toBe(names.length);
  });

  test("that is released twice keeps the first word, and one that never was is not found", async () => {
    const { killSwitch } = await server.admin.engageKillSwitch({ target: targets.vendor, reason: "one" });
    const name = killSwitch?.name ?? "";
    const first = await server.admin.releaseKillSwitch({ name, reason: "first" });
    expect(await server.admin.releaseKillSwitch({ name, reason: "second" })).toEqual(first);
    const never = server.admin.releaseKillSwitch({ name: `killSwitches/${"0".repeat(32)}`, reason: "x" });
    const refused = await never.catch((error: unknown) => ConnectError.from(error));
    expect(refused).toMatchObject({ code: Code.NotFound });
  });

  test.each([
    ["no target", { reason: "x" }, "target"],
    [
      "a workspace that is false",
      { target: { target: { case: "workspace" as const, value: false } }, reason: "x" },
      "target.workspace",
    ],
    ["no reason", { target: targets.vendor, reason: "" }, "reason"],
    ["a reason of two lines", { target: targets.vendor, reason: "a\nb" }, "reason"],
  ])("is refused with %s", async (_what, request, field) => {
    const refused = await server.admin.engageKillSwitch(request).catch((error: unknown) => ConnectError.from(error));
    const info = refused instanceof ConnectError ? refused.findDetails(ErrorInfoSchema)[0] : undefined;
    expect(info).toMatchObject({ reason: "INVALID_FIELD", metadata: { field } });
  });
});

describe("two servers, with a grant between what it read and its commit", () => {
  type Stop = (key: string) => Promise<Pick<EngageKillSwitchResponse, "openAuthorizations">>;
  const stops: readonly (readonly [string, Stop])[] = [
    ["a key's suspension", (key: string) => server.admin.suspendVaultKey({ name: `vaultKeys/${key}`, reason: "leak" })],
    ["a key's revocation", (key: string) => server.admin.revokeVaultKey({ name: `vaultKeys/${key}`, reason: "leak" })],
    ["a vendor's switch", () => server.admin.engageKillSwitch({ target: targets.vendor, reason: "leak" })],
    ["a customer's switch", () => server.admin.engageKillSwitch({ target: targets.customer, reason: "leak" })],
    ["the workspace's switch", () => server.admin.engageKillSwitch({ target: targets.workspace, reason: "leak" })],
  ];

  test.each(stops)("%s waits for it, lists it, and lets nothing follow", async (_what, stop) => {
    const key = `k${randomBytes(6).toString("hex")}`;
    const spend = server.spend(await server.vaultKey(key), 1);
    const paused = await openPaused(server.database.pool);
    try {
      const command = storeAsks({ vaultKeyId: key, purpose: key });
      const [granted] = await authorizeBatch(paused.client, "default", [command]);
      expect(granted?.disposition).toBe("GRANTED");
      const stopping = untilAnswered(() => stop(key));
      await paused.expectBlocking(stopping);
      const behind = untilAnswered(() => spend.authorizeSpend(asks("cust_1")));
      await paused.commit();
      const { openAuthorizations } = await stopping;
      const names = openAuthorizations.map((one) => one.idempotencyKey);
      expect(names).toContain(granted?.authorization?.idempotencyKey);
      // What was let in behind it came before the switch and is listed, or was denied.
      const answer = await behind;
      if (answer.disposition === Disposition.GRANTED) {
        expect(names).toContain(answer.authorization?.idempotencyKey);
      }
      expect((await spend.authorizeSpend(asks("cust_1"))).disposition).toBe(Disposition.DENIED);
    } finally {
      paused.release();
    }
  });

  test("a hundred calls in flight on both: none that begins after the switch has returned is granted", async () => {
    const customer = `busy_${randomBytes(4).toString("hex")}`;
    const clients = [server.spend(token, 0), server.spend(token, 1)] as const;
    let stopped = false;
    let late = 0;
    let granted = 0;
    const callers = Array.from({ length: 100 }, async (_, n) => {
      for (;;) {
        const begunAfter = stopped;
        const answer = await untilAnswered(() => (clients[n % 2] ?? clients[0]).authorizeSpend(asks(customer)));
        if (answer.disposition !== Disposition.GRANTED) return;
        granted += 1;
        if (begunAfter) late += 1;
      }
    });
    while (granted < 200) await new Promise((resolve) => setImmediate(resolve));
    const target = { target: { case: "customerId" as const, value: customer } };
    const answer = await untilAnswered(() => server.admin.engageKillSwitch({ target, reason: "drill" }));
    stopped = true;
    await Promise.all(callers);
    expect(late).toBe(0);
    expect(answer.openAuthorizationCount).toBe(BigInt(granted));
    expect(answer.openAuthorizations.length).toBe(Math.min(granted, 1000));
  });
});
