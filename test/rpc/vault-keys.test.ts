import { randomBytes } from "node:crypto";
import { timestampDate, timestampFromDate } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError } from "@connectrpc/connect";
import { ErrorInfoSchema } from "@holdfast/api/google/rpc/error_details_pb";
import { CapWindow } from "@holdfast/api/holdfast/v1/cap_pb";
import { Disposition, Settlement } from "@holdfast/api/holdfast/v1/spend_pb";
import { type VaultKey, VaultKeyState } from "@holdfast/api/holdfast/v1/vault_key_pb";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { parsePolicyDocument } from "../../server/domain/policy-document.ts";
import { policyDocumentRequest } from "../../server/rpc/policy-document.ts";
import { startTestServer, type TestServer } from "../support/server.ts";

let server: TestServer;
let keys = 0;
/** A new id for each test. */
let id: string;
let name: string;

beforeAll(async () => {
  server = await startTestServer({ config: { sweepIntervalMs: 100 } });
});
afterAll(() => server.close());
beforeEach(async () => {
  await server.clock.reset();
  keys += 1;
  id = `key${keys}`;
  name = `vaultKeys/${id}`;
});

const endpoint = "POST /v1/payment_intents";
const policy = { vendor: "stripe", allowedEndpoints: [endpoint] };
const usd = (amount: string) => ({ currency: "usd", amount });
const requestId = () => randomBytes(16).toString("hex");

function asks(amount = "10", billingPeriod = "2026-11", purpose = randomBytes(8).toString("hex")) {
  const spend = { customerId: "c1", billingPeriod, purpose, amount: usd(amount) };
  const attemptId = randomBytes(16).toString("hex");
  return { spend, vendor: "stripe", endpoint, attemptId, settlement: Settlement.SEND_ONCE };
}

async function refusal(call: Promise<unknown>) {
  const error = await call.then(
    () => expect.fail("the call was not refused"),
    (cause: unknown) => ConnectError.from(cause),
  );
  const info = error.findDetails(ErrorInfoSchema)[0];
  return { code: error.code, reason: info?.reason, field: info?.metadata["field"], message: error.rawMessage };
}

/** Without the time of the last use, which is written down by and by. */
function unused(key: VaultKey | undefined): Omit<VaultKey, "lastUseTime"> | undefined {
  if (key === undefined) return undefined;
  const { lastUseTime: _, ...others } = key;
  return others;
}

async function kinds(): Promise<string[]> {
  const { auditEvents } = await server.admin.listAuditEvents({ newestFirst: true, pageSize: 20 });
  return auditEvents.filter((event) => JSON.stringify(event.detail).includes(id)).map((event) => event.kind);
}

describe("creating a key with caps", () => {
  const caps = () => [
    { capId: `${id}-day`, cap: { limit: usd("15"), window: CapWindow.DAY } },
    { capId: `${id}-all`, cap: { limit: usd("100"), window: CapWindow.LIFETIME, scope: { vaultKey: name } } },
  ];

  test("makes both at once, and the caps count this key's spends", async () => {
    const made = await server.admin.createVaultKey({ vaultKeyId: id, vaultKey: policy, caps: caps() });
    expect(made.caps.map((cap) => [cap.name, cap.scope?.vaultKey])).toEqual([
      [`caps/${id}-day`, name],
      [`caps/${id}-all`, name],
    ]);
    const spend = server.spend(made.token);
    expect((await spend.authorizeSpend(asks())).disposition).toBe(Disposition.GRANTED);
    expect((await spend.authorizeSpend(asks())).denial?.cap).toBe(`caps/${id}-day`);
    expect(await kinds()).toEqual(expect.arrayContaining(["cap.created", "vault_key.created"]));
  });

  test("makes nothing if one of the caps exists", async () => {
    await server.cap(`${id}-all`, "5", { scope: { vaultKey: "vaultKeys/nobody" } });
    const refused = await refusal(server.admin.createVaultKey({ vaultKeyId: id, vaultKey: policy, caps: caps() }));
    expect(refused).toMatchObject({ code: Code.AlreadyExists });
    expect(await refusal(server.admin.getVaultKey({ name }))).toMatchObject({ code: Code.NotFound });
    expect(await refusal(server.admin.getCap({ name: `caps/${id}-day` }))).toMatchObject({ code: Code.NotFound });
  });

  test.each([
    ["of another key", { scope: { vaultKey: "vaultKeys/other" } }, "caps[1].cap.scope.vault_key"],
    ["without a limit", { limit: undefined }, "caps[1].cap.limit"],
    ["in a zone that is none", { window: CapWindow.DAY, timeZone: "Europe/Atlantis" }, "caps[1].cap.time_zone"],
  ])("refuses a cap %s by its field", async (_what, change, field) => {
    const cap = { limit: usd("1"), window: CapWindow.LIFETIME, ...change } as object;
    const request = { vaultKeyId: id, vaultKey: policy, caps: [...caps().slice(0, 1), { capId: `${id}-x`, cap }] };
    expect(await refusal(server.admin.createVaultKey(request))).toMatchObject({ reason: "INVALID_FIELD", field });
    expect(await refusal(server.admin.getVaultKey({ name }))).toMatchObject({ code: Code.NotFound });
  });
});

describe("a creation with a request id", () => {
  test("that is repeated answers with the key and its caps, without a token, and makes nothing", async () => {
    const caps = [{ capId: `${id}-day`, cap: { limit: usd("15"), window: CapWindow.DAY } }];
    const labels = { team: "billing", env: "test" };
    const request = { vaultKeyId: id, vaultKey: { ...policy, labels }, caps, requestId: requestId() };
    const first = await server.admin.createVaultKey(request);
    const reordered = { ...policy, labels: { env: "test", team: "billing" } };
    const again = await server.admin.createVaultKey({ ...request, vaultKey: reordered });
    expect(again).toMatchObject({ token: "", vaultKey: { name }, caps: [{ name: `caps/${id}-day` }] });
    expect(first.token).not.toBe("");
    expect((await server.spend(first.token).authorizeSpend(asks())).disposition).toBe(Disposition.GRANTED);
    expect((await kinds()).filter((kind) => kind === "vault_key.created")).toHaveLength(1);
  });

  test("answers a repeat with the key as it is now", async () => {
    const request = { vaultKeyId: id, vaultKey: policy, requestId: requestId() };
    await server.admin.createVaultKey(request);
    await server.admin.suspendVaultKey({ name });
    expect((await server.admin.createVaultKey(request)).vaultKey?.state).toBe(VaultKeyState.SUSPENDED);
  });

  test("refuses other values, another key id, and a key that somebody else made", async () => {
    const request = { vaultKeyId: id, vaultKey: policy, requestId: requestId() };
    await server.admin.createVaultKey(request);
    for (const other of [
      { ...request, vaultKey: { ...policy, purposes: ["x"] } },
      { ...request, vaultKeyId: `${id}b` },
      { ...request, requestId: requestId() },
      { vaultKeyId: id, vaultKey: policy },
    ]) {
      expect(await refusal(server.admin.createVaultKey(other))).toMatchObject({ reason: "ALREADY_EXISTS" });
    }
  });

  test("at once by several makes one key and shows one token", async () => {
    const request = { vaultKeyId: id, vaultKey: policy, requestId: requestId() };
    const made = await Promise.all(Array.from({ length: 5 }, () => server.admin.createVaultKey(request)));
    expect(made.filter((one) => one.token !== "")).toHaveLength(1);
  });
});

describe("an end that the database clock has reached", () => {
  const now = "2026-11-15T12:00:00Z";
  const passed = timestampFromDate(new Date(now));
  const later = timestampFromDate(new Date("2026-11-15T12:00:01Z"));
  const refused = { code: Code.InvalidArgument, reason: "INVALID_FIELD" };

  beforeEach(() => server.clock.set(now));

  test("is refused of a new key, which is then not made, and of one for a billing period", async () => {
    const create = (expireTime: typeof passed) =>
      server.admin.createVaultKey({ vaultKeyId: id, vaultKey: { ...policy, expireTime } });
    const { message, ...problem } = await refusal(create(passed));
    expect(problem).toEqual({ ...refused, field: "vault_key.expire_time" });
    expect(message).toContain("name a later instant");
    expect(await refusal(server.admin.getVaultKey({ name }))).toMatchObject({ reason: "NOT_FOUND" });
    expect((await create(later)).vaultKey?.expireTime).toEqual(later);
    const period = { vaultKeyId: `${id}p`, billingPeriod: "2026-11", vendor: "stripe", expectedTotal: usd("1") };
    const ended = server.admin.createBillingPeriodKey({ ...period, allowedEndpoints: [endpoint], expireTime: passed });
    expect(await refusal(ended)).toMatchObject({ ...refused, field: "expire_time" });
  });

  test("is refused of a cap of a new key", async () => {
    const times = { startTime: timestampFromDate(new Date("2026-11-01T00:00:00Z")), endTime: passed };
    const cap = { limit: usd("5"), window: CapWindow.FIXED, ...times };
    const made = server.admin.createVaultKey({ vaultKeyId: id, vaultKey: policy, caps: [{ capId: id, cap }] });
    expect(await refusal(made)).toMatchObject({ ...refused, field: "caps[0].cap.end_time" });
  });

  test("is refused of an update that names it, and keeps no other update away", async () => {
    await server.vaultKey(id, { expireTime: later });
    const update = (vaultKey: object, ...paths: string[]) =>
      server.admin.updateVaultKey({ vaultKey: { name, ...vaultKey }, updateMask: { paths } });
    const problem = await refusal(update({ expireTime: passed, purposes: ["x"] }, "expire_time", "purposes"));
    expect(problem).toMatchObject({ ...refused, field: "vault_key.expire_time" });
    expect(problem.message).toContain("SuspendVaultKey");
    await server.clock.set("2026-11-16T00:00:00Z");
    const { vaultKey } = await update({ labels: { team: "x" } }, "labels");
    expect(vaultKey).toMatchObject({ labels: { team: "x" }, purposes: [], expireTime: later });
  });

  test("keeps nobody from learning of a key that was made in time", async () => {
    const request = { vaultKeyId: id, vaultKey: { ...policy, expireTime: later }, requestId: requestId() };
    await server.admin.createVaultKey(request);
    await server.clock.set("2026-11-16T00:00:00Z");
    expect((await server.admin.createVaultKey(request)).vaultKey?.name).toBe(name);
  });
});

describe("attached caps", () => {
  test("must exist and be made to be attached, when a key is created and when it is updated", async () => {
    await server.cap(`${id}-scope`, "5", { scope: { vaultKey: "vaultKeys/nobody" } });
    for (const [cap, why] of [
      [`caps/${id}-none`, "does not exist"],
      [`caps/${id}-scope`, "attached_only"],
    ] as const) {
      const attachedCaps = [cap];
      const created = server.admin.createVaultKey({ vaultKeyId: id, vaultKey: { ...policy, attachedCaps } });
      const refused = await refusal(created);
      expect(refused).toMatchObject({ reason: "INVALID_FIELD", field: "vault_key.attached_caps[0]" });
      expect(refused.message).toContain(why);
    }
    await server.vaultKey(id);
    const update = { vaultKey: { name, attachedCaps: [`caps/${id}-none`] }, updateMask: { paths: ["attached_caps"] } };
    expect(await refusal(server.admin.updateVaultKey(update))).toMatchObject({ field: "vault_key.attached_caps[0]" });
  });

  test("count the spends of the keys that name them, and of no other", async () => {
    await server.cap(`${id}-shared`, "10", { attachedOnly: true });
    const attached = await server.vaultKey(id, { attachedCaps: [`caps/${id}-shared`] });
    const plain = await server.vaultKey(`${id}p`);
    expect((await server.spend(plain).authorizeSpend(asks())).disposition).toBe(Disposition.GRANTED);
    expect((await server.spend(attached).authorizeSpend(asks())).disposition).toBe(Disposition.GRANTED);
    expect((await server.spend(attached).authorizeSpend(asks())).denial?.cap).toBe(`caps/${id}-shared`);
    await server.admin.updateVaultKey({
      vaultKey: { name, attachedCaps: [] },
      updateMask: { paths: ["attached_caps"] },
    });
    expect((await server.spend(attached).authorizeSpend(asks())).disposition).toBe(Disposition.GRANTED);
  });

  test("that are archived cannot be attached", async () => {
    await server.cap(`${id}-old`, "10", { attachedOnly: true });
    await server.admin.archiveCap({ name: `caps/${id}-old`, reason: "replaced" });
    const created = server.admin.createVaultKey({
      vaultKeyId: id,
      vaultKey: { ...policy, attachedCaps: [`caps/${id}-old`] },
    });
    expect((await refusal(created)).message).toContain("is archived");
  });

  test("may be made with the key", async () => {
    const cap = { limit: usd("10"), window: CapWindow.LIFETIME, attachedOnly: true };
    const { token } = await server.admin.createVaultKey({
      vaultKeyId: id,
      vaultKey: { ...policy, attachedCaps: [`caps/${id}-own`] },
      caps: [{ capId: `${id}-own`, cap }],
    });
    expect((await server.spend(token).authorizeSpend(asks("11"))).denial?.cap).toBe(`caps/${id}-own`);
  });
});

describe("updating a key", () => {
  const update = (fields: object, paths: string[], etag = "") =>
    server.admin.updateVaultKey({ vaultKey: { ...fields, name, etag }, updateMask: { paths } });

  test("changes what the mask names and nothing else, at once", async () => {
    const token = await server.vaultKey(id, { purposes: ["a"], labels: { team: "x" } });
    const spend = server.spend(token);
    expect((await spend.authorizeSpend(asks("10", "2026-11", "b"))).disposition).toBe(Disposition.DENIED);
    const { vaultKey } = await update({ purposes: ["b"], labels: { team: "ignored" } }, ["purposes"]);
    expect(vaultKey).toMatchObject({ purposes: ["b"], labels: { team: "x" }, allowedEndpoints: [endpoint] });
    expect((await spend.authorizeSpend(asks("10", "2026-11", "b"))).disposition).toBe(Disposition.GRANTED);
  });

  test("takes a limit, a pin and an end away again", async () => {
    const expireTime = timestampFromDate(new Date("2030-01-01T00:00:00Z"));
    await server.vaultKey(id, { maxPerSpend: usd("5"), billingPeriods: ["2026-11"], expireTime });
    const paths = ["max_per_spend", "billing_periods", "expire_time"];
    const { vaultKey } = await update({}, paths);
    expect(vaultKey?.maxPerSpend).toBeUndefined();
    expect(vaultKey?.expireTime).toBeUndefined();
    expect(vaultKey?.billingPeriods).toEqual([]);
  });

  test("needs the current etag where one is given, which every change moves", async () => {
    await server.vaultKey(id);
    const { vaultKey: before } = await server.admin.getVaultKey({ name });
    const { vaultKey: after } = await update({ labels: { a: "1" } }, ["labels"], before?.etag);
    expect(await refusal(update({}, ["labels"], before?.etag))).toMatchObject({
      code: Code.Aborted,
      reason: "ETAG_MISMATCH",
    });
    await server.admin.suspendVaultKey({ name });
    expect(await refusal(update({}, ["labels"], after?.etag))).toMatchObject({ reason: "ETAG_MISMATCH" });
    expect((await server.admin.getVaultKey({ name })).vaultKey?.labels).toEqual({ a: "1" });
  });

  test.each([
    ["no field", {}, [], "update_mask"],
    ["the vendor", { vendor: "twilio" }, ["vendor"], "update_mask"],
    ["the state", {}, ["state"], "update_mask"],
    [
      "an endpoint that is none",
      { allowedEndpoints: ["POST /v1/../x"] },
      ["allowed_endpoints"],
      "vault_key.allowed_endpoints[0]",
    ],
    ["a label that is none", { labels: { Team: "x" } }, ["labels"], 'vault_key.labels["Team"]'],
    ["a limit that is none", { maxPerSpend: usd("-1") }, ["max_per_spend"], "vault_key.max_per_spend.amount"],
  ])("refuses %s by its field", async (_what, fields, paths, field) => {
    await server.vaultKey(id);
    expect(await refusal(update(fields, paths))).toMatchObject({ reason: "INVALID_FIELD", field });
  });

  test("ignores what is wrong beside the mask", async () => {
    await server.vaultKey(id);
    await update({ labels: { a: "1" }, allowedEndpoints: ["nonsense"], vendor: "" }, ["labels"]);
  });

  test("does nothing to a key that is revoked, or not there", async () => {
    expect(await refusal(update({}, ["labels"]))).toMatchObject({ reason: "NOT_FOUND" });
    await server.vaultKey(id);
    await server.admin.revokeVaultKey({ name });
    expect(await refusal(update({}, ["labels"]))).toMatchObject({ reason: "STATE_NOT_ALLOWED" });
    expect(await refusal(server.admin.rotateVaultKey({ name }))).toMatchObject({ reason: "STATE_NOT_ALLOWED" });
  });
});

test("keys are found by their labels", async () => {
  await server.vaultKey(id, { labels: { team: id, env: "a" } });
  await server.vaultKey(`${id}b`, { labels: { team: id, env: "b" } });
  const found = async (labels: Record<string, string>) =>
    (await server.admin.listVaultKeys({ labels })).vaultKeys.map((key) => key.name);
  expect(await found({ team: id })).toEqual([name, `${name}b`]);
  expect(await found({ team: id, env: "b" })).toEqual([`${name}b`]);
  expect(await found({ team: id, env: "c" })).toEqual([]);
});

describe("stopping a key", () => {
  test("suspends, resumes and revokes it, and each says what is open", async () => {
    const spend = server.spend(await server.vaultKey(id));
    const granted = await spend.authorizeSpend(asks());
    const suspended = await server.admin.suspendVaultKey({ name, reason: "a leak" });
    expect(suspended).toMatchObject({ openAuthorizationCount: 1n, vaultKey: { reason: "a leak" } });
    expect(suspended.vaultKey?.suspendTime).toBeDefined();
    expect(suspended.openAuthorizations[0]?.name).toBe(granted.authorization?.name);
    const { denial } = await spend.authorizeSpend(asks());
    expect(denial?.message).toContain("is suspended");
    expect(denial?.message).not.toContain("a leak");
    expect(
      await refusal(
        spend.acquireBillingLease({ lease: "x", billingPeriod: "p", holderId: "h", ttl: { seconds: 60n } }),
      ),
    ).toMatchObject({ reason: "STATE_NOT_ALLOWED" });
    const read = { lookup: { case: "name" as const, value: granted.authorization?.name ?? "" } };
    expect((await spend.getAuthorization(read)).authorization).toBeDefined();

    const again = await server.admin.suspendVaultKey({ name, reason: "another word" });
    expect(unused(again.vaultKey)).toEqual(unused(suspended.vaultKey));
    expect((await server.admin.resumeVaultKey({ name, reason: "found" })).vaultKey).toMatchObject({
      state: VaultKeyState.ACTIVE,
      reason: "",
    });
    expect((await spend.authorizeSpend(asks())).disposition).toBe(Disposition.GRANTED);

    const revoked = await server.admin.revokeVaultKey({ name, reason: "enough" });
    expect(revoked).toMatchObject({ openAuthorizationCount: 2n, vaultKey: { state: VaultKeyState.REVOKED } });
    expect(await refusal(server.admin.resumeVaultKey({ name }))).toMatchObject({ reason: "STATE_NOT_ALLOWED" });
    expect(await refusal(server.admin.suspendVaultKey({ name }))).toMatchObject({ reason: "STATE_NOT_ALLOWED" });
    expect(unused((await server.admin.revokeVaultKey({ name })).vaultKey)).toEqual(unused(revoked.vaultKey));
    const told = (await kinds()).filter((kind) => kind.startsWith("vault_key.")).toReversed();
    expect(told).toEqual(["vault_key.created", "vault_key.suspended", "vault_key.resumed", "vault_key.revoked"]);
  });
});

describe("rotating a key", () => {
  const works = async (token: string): Promise<boolean> => {
    try {
      await server.spend(token).authorizeSpend(asks());
      return true;
    } catch (error) {
      if (ConnectError.from(error).code === Code.Unauthenticated) return false;
      throw error;
    }
  };

  test("opens with both secrets for the overlap, and with the new one after it", async () => {
    const first = await server.vaultKey(id);
    const { token: second, vaultKey } = await server.admin.rotateVaultKey({ name, overlap: { seconds: 600n } });
    expect(vaultKey?.previousSecretExpireTime).toBeDefined();
    expect([await works(first), await works(second)]).toEqual([true, true]);
    // Neither is remembered by this server yet: the next rotation ends the first one.
    const { token: third } = await server.admin.rotateVaultKey({ name, overlap: { seconds: 600n } });
    expect(await works(third)).toBe(true);
    await server.clock.advance(600_000);
    const fresh = await works(third);
    expect(fresh).toBe(true);
    expect((await server.admin.getVaultKey({ name })).vaultKey?.previousSecretExpireTime).toBeUndefined();
  });

  test("lets the earlier secret end with the overlap on the database clock", async () => {
    const first = await server.vaultKey(id);
    await server.admin.rotateVaultKey({ name, overlap: { seconds: 600n } });
    await server.clock.advance(600_000);
    expect(await works(first)).toBe(false);
  });

  test("without an overlap ends the earlier secret at once where nobody remembers it", async () => {
    const first = await server.vaultKey(id);
    const { token } = await server.admin.rotateVaultKey({ name, overlap: {} });
    expect([await works(first), await works(token)]).toEqual([false, true]);
  });

  test("lasts an hour if nothing is said", async () => {
    await server.vaultKey(id);
    await server.clock.set("2026-11-15T12:00:00Z");
    const { vaultKey } = await server.admin.rotateVaultKey({ name });
    const end = vaultKey?.previousSecretExpireTime;
    expect(end === undefined ? undefined : timestampDate(end).toISOString()).toBe("2026-11-15T13:00:00.000Z");
  });
});

test("when a key was last asked to grant is shown to the minute", async () => {
  const token = await server.vaultKey(id);
  expect((await server.admin.getVaultKey({ name })).vaultKey?.lastUseTime).toBeUndefined();
  await server.clock.set("2026-11-15T12:34:56Z");
  await server.spend(token).authorizeSpend(asks());
  await expect
    .poll(
      async () => {
        const at = (await server.admin.getVaultKey({ name })).vaultKey?.lastUseTime;
        return at === undefined ? undefined : timestampDate(at).toISOString();
      },
      { timeout: 60_000 },
    )
    .toBe("2026-11-15T12:34:00.000Z");
});

describe("the key of a billing period", () => {
  const expireTime = timestampFromDate(new Date("2027-01-01T00:00:00Z"));
  const request = () => ({
    vaultKeyId: id,
    billingPeriod: "2026-11",
    vendor: "stripe",
    allowedEndpoints: [endpoint],
    expectedTotal: usd("100"),
    expireTime,
  });

  test("has a cap of its own of what is expected and a tenth more, pins the period and ends with it", async () => {
    const { vaultKey, cap, token } = await server.admin.createBillingPeriodKey(request());
    expect(vaultKey).toMatchObject({ billingPeriods: ["2026-11"], expireTime });
    expect(cap).toMatchObject({
      name: `caps/${id}`,
      limit: usd("110"),
      window: CapWindow.BILLING_PERIOD,
      scope: { vaultKey: name },
    });
    const spend = server.spend(token);
    expect((await spend.authorizeSpend(asks("110"))).disposition).toBe(Disposition.GRANTED);
    expect((await spend.authorizeSpend(asks("0.01"))).denial?.cap).toBe(`caps/${id}`);
    expect((await spend.authorizeSpend(asks("1", "2026-12"))).denial?.rule).toBe(8);
    await server.clock.set("2027-01-01T00:00:00Z");
    expect((await spend.authorizeSpend(asks("1"))).denial?.message).toContain("has expired");
  });

  test.each([
    ["100.01", "usd", "", "110.02"],
    ["100", "usd", "0", "100"],
    ["0.0079", "usd", "0.10", "0.01"],
    ["33333", "jpy", "0.1", "36667"],
    ["10.001", "kwd", "0.0001", "10.003"],
    ["1", "usd", "10", "11"],
    ["1", "usd", "9.9999", "11"],
  ])("%s %s with a margin of '%s' may bill %s", async (amount, currency, margin, limit) => {
    const { cap } = await server.admin.createBillingPeriodKey({
      ...request(),
      expectedTotal: { currency, amount },
      margin,
    });
    expect(cap?.limit).toMatchObject({ currency, amount: limit });
  });

  test.each([
    ["nothing expected", { expectedTotal: usd("0") }, "expected_total.amount"],
    ["a margin above ten", { margin: "10.5" }, "margin"],
    ["a margin below zero", { margin: "-0.1" }, "margin"],
    [
      "a limit per spend in another currency",
      { maxPerSpend: { currency: "eur", amount: "1" } },
      "max_per_spend.currency",
    ],
    ["no end", { expireTime: undefined }, "expire_time"],
    ["too much in all", { expectedTotal: usd("1000000000000") }, "expected_total.amount"],
  ])("is refused with %s", async (_what, change, field) => {
    const refused = await refusal(server.admin.createBillingPeriodKey({ ...request(), ...(change as object) }));
    expect(refused).toMatchObject({ reason: "INVALID_FIELD", field });
  });

  test("is made once for one request id, together with its cap or not at all", async () => {
    const once = { ...request(), requestId: requestId() };
    const first = await server.admin.createBillingPeriodKey(once);
    const again = await server.admin.createBillingPeriodKey(once);
    expect(again).toMatchObject({ token: "", vaultKey: { name }, cap: { name: `caps/${id}` } });
    expect(first.token).not.toBe("");
    await server.cap(`${id}x`, "1", { scope: { vaultKey: "vaultKeys/nobody" } });
    const clash = server.admin.createBillingPeriodKey({ ...request(), vaultKeyId: `${id}x` });
    expect(await refusal(clash)).toMatchObject({ reason: "ALREADY_EXISTS" });
    expect(await refusal(server.admin.getVaultKey({ name: `${name}x` }))).toMatchObject({ reason: "NOT_FOUND" });
  });
});

test("a policy document becomes a key that spends up to its daily cap", async () => {
  const text = `vendor: stripe\ndaily_usd_cap: 11000.00\nallowed_endpoints:\n  - ${endpoint}\nexpires_at: 2099-12-31T00:00:00Z\n`;
  const document = parsePolicyDocument(text, 0n);
  const { token, caps } = await server.admin.createVaultKey(policyDocumentRequest(document, id));
  expect(caps).toMatchObject([{ limit: usd("11000"), window: CapWindow.DAY }]);
  const spend = server.spend(token);
  expect((await spend.authorizeSpend(asks("11000"))).disposition).toBe(Disposition.GRANTED);
  expect((await spend.authorizeSpend(asks("0.01"))).denial?.cap).toBe(`caps/${id}-daily-usd`);
});
