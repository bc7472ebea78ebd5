import { randomBytes } from "node:crypto";
import { timestampFromDate, timestampMs, type Timestamp } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError } from "@connectrpc/connect";
import { ErrorInfoSchema } from "@holdfast/api/google/rpc/error_details_pb";
import { CapEnforcement, CapState, CapWindow, DayOfWeek } from "@holdfast/api/holdfast/v1/cap_pb";
import { DenialRule, Direction, Disposition, Settlement } from "@holdfast/api/holdfast/v1/spend_pb";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { startTestServer, type TestServer } from "../support/server.ts";

let server: TestServer;

beforeAll(async () => {
  server = await startTestServer();
});
afterAll(() => server.close());

const usd = (amount: string) => ({ currency: "usd", amount });
const at = (instant: string) => timestampFromDate(new Date(instant));
const shown = (time: Timestamp | undefined) => time && new Date(timestampMs(time)).toISOString();
const requestId = () => randomBytes(16).toString("hex");
/** Counts nothing that other tests here do. */
const elsewhere = { scope: { purpose: "elsewhere" } };

function asks(customerId: string, more: { readonly dryRun?: boolean; readonly amount?: string } = {}) {
  return {
    spend: { customerId, billingPeriod: "2026-11", purpose: "subscription", amount: usd(more.amount ?? "10") },
    vendor: "stripe",
    endpoint: "POST /v1/payment_intents",
    attemptId: randomBytes(16).toString("hex"),
    settlement: Settlement.TWO_STEP,
    dryRun: more.dryRun ?? false,
  };
}

async function refusal(call: Promise<unknown>) {
  try {
    await call;
  } catch (error) {
    if (!(error instanceof ConnectError)) throw error;
    const [info] = error.findDetails(ErrorInfoSchema);
    return { code: error.code, reason: info?.reason, field: info?.metadata["field"], text: error.rawMessage };
  }
  throw new Error("the call was not refused");
}

async function events(kind: string, capId: string): Promise<number> {
  const { rows } = await server.database.pool.query<{ count: bigint }>(
    "select count(*) as count from holdfast.audit_events e where e.kind = $1 and e.detail ->> 'cap' = $2",
    [kind, capId],
  );
  return Number(rows[0]?.count);
}

describe("a cap is shown as it was made", () => {
  test.each([
    ["week", { window: CapWindow.WEEK, timeZone: "Europe/Berlin", startHour: 6, weekStart: DayOfWeek.SUNDAY }],
    ["month", { window: CapWindow.MONTH, timeZone: "UTC", startHour: 23, anchorDay: 31 }],
    ["year", { window: CapWindow.YEAR, timeZone: "Asia/Kolkata", anchorDay: 6, anchorMonth: 4 }],
    ["fixed", { window: CapWindow.FIXED, startTime: at("2026-11-27T00:00:00Z"), endTime: at("2096-12-01T00:00:00Z") }],
    ["attached", { window: CapWindow.LIFETIME, attachedOnly: true, enforcement: CapEnforcement.SHADOW }],
  ] as const)("%s", async (capId, fields) => {
    const { cap } = await server.admin.createCap({
      capId: `as-${capId}`,
      cap: { limit: usd("1"), ...elsewhere, ...fields },
    });
    expect(cap).toMatchObject({ ...fields, state: CapState.ACTIVE });
    const read = await server.admin.getCap({ name: `caps/as-${capId}` });
    expect(read.cap).toEqual(cap);
  });

  test("with the defaults of its window, and with a count instead of money", async () => {
    const made = await server.admin.createCap({
      capId: "as-counted",
      cap: { spendCountLimit: 0n, window: CapWindow.YEAR, ...elsewhere },
    });
    expect(made.cap).toMatchObject({
      spendCountLimit: 0n,
      timeZone: "UTC",
      anchorDay: 1,
      anchorMonth: 1,
      weekStart: DayOfWeek.UNSPECIFIED,
      enforcement: CapEnforcement.ENFORCE,
    });
    expect(made.cap?.limit).toBeUndefined();
    const { usage } = await server.admin.getCap({ name: "caps/as-counted" });
    expect(usage).toMatchObject({ committedCount: 0n, heldCount: 0n, headroomCount: 0n });
    expect(usage?.committed).toBeUndefined();
  });
});

describe("a cap that makes no sense is refused, with the field and what to do", () => {
  const day = { limit: usd("1"), window: CapWindow.DAY };
  const times = { startTime: at("2026-12-01T00:00:00Z"), endTime: at("2026-12-01T00:00:00Z") };
  const past = { startTime: at("2019-12-01T00:00:00Z"), endTime: at("2020-12-01T00:00:00Z") };
  test.each([
    ["limit", { window: CapWindow.DAY }, "spend_count_limit"],
    ["spend_count_limit", { ...day, spendCountLimit: 1n }, "instead of limit"],
    ["spend_count_limit", { window: CapWindow.DAY, spendCountLimit: -1n }, ""],
    ["spend_count_limit", { window: CapWindow.DAY, spendCountLimit: 1_000_000_000_001n }, ""],
    ["max_per_spend", { window: CapWindow.DAY, spendCountLimit: 1n, maxPerSpend: usd("1") }, "vault key"],
    ["max_per_spend.currency", { ...day, maxPerSpend: { currency: "eur", amount: "1" } }, "usd"],
    ["refunds_restore_headroom", { window: CapWindow.DAY, spendCountLimit: 1n, refundsRestoreHeadroom: true }, "money"],
    ["refunds_restore_headroom", { ...day, direction: Direction.REFUND, refundsRestoreHeadroom: true }, "SPEND"],
    ["time_zone", { ...day, window: CapWindow.FIXED, timeZone: "UTC", ...times }, "DAY, WEEK, MONTH, YEAR"],
    ["time_zone", { ...day, timeZone: "Europe/Atlantis" }, "IANA"],
    ["time_zone", { ...day, timeZone: "europe/berlin" }, "IANA"],
    ["start_hour", { ...day, window: CapWindow.BILLING_PERIOD, startHour: 1 }, "DAY"],
    ["start_hour", { ...day, startHour: 24 }, ""],
    ["week_start", { ...day, weekStart: DayOfWeek.MONDAY }, "WEEK"],
    ["week_start", { ...day, window: CapWindow.WEEK, weekStart: 8 as DayOfWeek }, ""],
    ["anchor_day", { ...day, window: CapWindow.WEEK, anchorDay: 2 }, "MONTH, YEAR"],
    ["anchor_day", { ...day, window: CapWindow.MONTH, anchorDay: 32 }, ""],
    ["anchor_month", { ...day, window: CapWindow.MONTH, anchorMonth: 2 }, "YEAR"],
    ["start_time", { ...day, startTime: at("2026-12-01T00:00:00Z") }, "FIXED"],
    ["start_time", { ...day, window: CapWindow.FIXED, endTime: at("2026-12-01T00:00:00Z") }, "required"],
    ["end_time", { ...day, window: CapWindow.FIXED, startTime: at("2026-12-01T00:00:00Z") }, "required"],
    ["end_time", { ...day, window: CapWindow.FIXED, ...times }, "after start_time"],
    ["end_time", { ...day, window: CapWindow.FIXED, ...past }, "has passed"],
    ["enforcement", { ...day, enforcement: 7 as CapEnforcement }, ""],
  ] as const)("%s of %o", async (field, cap, words) => {
    const refused = await refusal(server.admin.createCap({ capId: "senseless", cap }));
    expect(refused).toMatchObject({ code: Code.InvalidArgument, reason: "INVALID_FIELD", field: `cap.${field}` });
    expect(refused.text).toContain(words);
  });
});

describe("a creation with a request id", () => {
  const cap = { limit: usd("5"), window: CapWindow.DAY, ...elsewhere };

  test("that is repeated answers with the cap that it made, as it is now, and writes nothing", async () => {
    const request = { capId: "once", cap, requestId: requestId() };
    await server.admin.createCap(request);
    await server.admin.updateCap({
      cap: { name: "caps/once", limit: usd("7") },
      updateMask: { paths: ["limit"] },
    });
    const repeated = await Promise.all([server.admin.createCap(request), server.admin.createCap(request)]);
    expect(repeated.map((one) => one.cap?.limit)).toMatchObject([usd("7"), usd("7")]);
    expect(await events("cap.created", "once")).toBe(1);
  });

  test("that many send at once makes one cap", async () => {
    const request = { capId: "raced", cap, requestId: requestId() };
    const made = await Promise.all(Array.from({ length: 8 }, () => server.admin.createCap(request)));
    expect(new Set(made.map((one) => shown(one.cap?.createTime))).size).toBe(1);
    expect(await events("cap.created", "raced")).toBe(1);
  });

  test.each([
    ["other content", { cap: { ...cap, limit: usd("6") } }],
    ["another id", { capId: "other-id" }],
  ])("and %s is refused", async (_what, change) => {
    const request = { capId: `c${requestId()}`, cap, requestId: requestId() };
    await server.admin.createCap(request);
    expect(await refusal(server.admin.createCap({ ...request, ...change }))).toMatchObject({
      code: Code.AlreadyExists,
      reason: "ALREADY_EXISTS",
      field: "request_id",
    });
  });

  test("of another request does not take the id of a cap", async () => {
    await server.admin.createCap({ capId: "taken", cap, requestId: requestId() });
    expect(await refusal(server.admin.createCap({ capId: "taken", cap, requestId: requestId() }))).toMatchObject({
      reason: "ALREADY_EXISTS",
    });
  });
});

describe("an update", () => {
  test("changes the count or the enforcement of a cap, and its etag", async () => {
    await server.admin.createCap({
      capId: "counts",
      cap: { spendCountLimit: 5n, window: CapWindow.DAY, ...elsewhere },
    });
    const first = await server.admin.updateCap({
      cap: { name: "caps/counts", spendCountLimit: 3n, enforcement: CapEnforcement.SHADOW },
      updateMask: { paths: ["spend_count_limit", "enforcement"] },
    });
    expect(first.cap).toMatchObject({ spendCountLimit: 3n, enforcement: CapEnforcement.SHADOW });
    const enforced = await server.admin.updateCap({
      cap: { name: "caps/counts", enforcement: CapEnforcement.ENFORCE, etag: first.cap?.etag ?? "" },
      updateMask: { paths: ["enforcement"] },
    });
    expect(enforced.cap).toMatchObject({ spendCountLimit: 3n, enforcement: CapEnforcement.ENFORCE });
    expect(enforced.cap?.etag).not.toBe(first.cap?.etag);
  });

  test.each([
    ["cap.limit", "u-count", { limit: usd("1") }, "limit"],
    ["cap.max_per_spend", "u-count", { maxPerSpend: usd("1") }, "max_per_spend"],
    ["cap.refunds_restore_headroom", "u-count", { refundsRestoreHeadroom: true }, "refunds_restore_headroom"],
    ["cap.spend_count_limit", "u-count", {}, "spend_count_limit"],
    ["cap.spend_count_limit", "u-money", { spendCountLimit: 1n }, "spend_count_limit"],
    ["cap.limit", "u-money", {}, "limit"],
    ["update_mask", "u-money", {}, "anchor_day"],
    ["update_mask", "u-money", {}, "attached_only"],
    ["update_mask", "u-money", {}, "start_time"],
    ["update_mask", "u-money", {}, "state"],
  ] as const)("of %s of %s to %o is refused", async (field, capId, change, path) => {
    for (const [id, limits] of [
      ["u-count", { spendCountLimit: 1n }],
      ["u-money", { limit: usd("1") }],
    ] as const) {
      await server.admin
        .createCap({ capId: id, cap: { ...limits, window: CapWindow.DAY, ...elsewhere } })
        .catch(() => {});
    }
    const call = server.admin.updateCap({ cap: { name: `caps/${capId}`, ...change }, updateMask: { paths: [path] } });
    expect(await refusal(call)).toMatchObject({ reason: "INVALID_FIELD", field });
  });

  test("shows in the audit what it was and what it is", async () => {
    await server.cap("told", "1", elsewhere);
    await server.admin.updateCap({ cap: { name: "caps/told", limit: usd("2") }, updateMask: { paths: ["limit"] } });
    const { rows } = await server.database.pool.query<{ detail: unknown }>(
      "select e.detail from holdfast.audit_events e where e.kind = 'cap.updated' and e.detail ->> 'cap' = 'told'",
    );
    expect(rows[0]?.detail).toMatchObject({
      fields: ["limit"],
      before: { limit: { currency: "usd", micros: "1000000" } },
      after: { limit: { currency: "usd", micros: "2000000" } },
    });
  });
});

describe("a cap that is archived", () => {
  test("counts nothing new, is read with its usage, and is listed only when asked for", async () => {
    const client = server.spend(await server.vaultKey("archiving"));
    await server.cap("ended", "10", { scope: { vaultKey: "vaultKeys/archiving" } });
    await client.authorizeSpend(asks("a1"));
    expect((await client.authorizeSpend(asks("a2"))).disposition).toBe(Disposition.DENIED);
    const { cap } = await server.admin.archiveCap({ name: "caps/ended", reason: "the campaign is over" });
    expect(cap).toMatchObject({ state: CapState.ARCHIVED, archiveReason: "the campaign is over" });
    expect(cap?.archiveTime).toBeDefined();
    expect((await client.authorizeSpend(asks("a2"))).disposition).toBe(Disposition.GRANTED);
    const read = await server.admin.getCap({ name: "caps/ended" });
    expect(read.usage).toMatchObject({ held: usd("10"), headroom: usd("0") });
    const listed = async (includeArchived: boolean) =>
      (await server.admin.listCaps({ pageSize: 200, includeArchived })).caps.map(({ name }) => name);
    expect(await listed(false)).not.toContain("caps/ended");
    expect(await listed(true)).toContain("caps/ended");
  });

  test("is not changed any more, and archived once", async () => {
    await server.cap("twice-ended", "10", elsewhere);
    const before = await server.admin.getCap({ name: "caps/twice-ended" });
    const etag = before.cap?.etag ?? "";
    const first = await server.admin.archiveCap({ name: "caps/twice-ended", etag });
    const again = await server.admin.archiveCap({ name: "caps/twice-ended", etag, reason: "again" });
    expect(again.cap).toEqual(first.cap);
    expect(await events("cap.archived", "twice-ended")).toBe(1);
    const update = { cap: { name: "caps/twice-ended", limit: usd("1") }, updateMask: { paths: ["limit"] } };
    expect(await refusal(server.admin.updateCap(update))).toMatchObject({
      code: Code.FailedPrecondition,
      reason: "STATE_NOT_ALLOWED",
    });
  });

  test("is not archived with an old etag, or where there is none", async () => {
    await server.cap("kept", "10", elsewhere);
    expect(await refusal(server.admin.archiveCap({ name: "caps/kept", etag: "v99" }))).toMatchObject({
      reason: "ETAG_MISMATCH",
    });
    expect(await refusal(server.admin.archiveCap({ name: "caps/no-such" }))).toMatchObject({ code: Code.NotFound });
  });
});

describe("what a caller is told", () => {
  test("of a limit with a fraction of a cent: what it is worth where only cents are charged", async () => {
    const client = server.spend(await server.vaultKey("fraction"));
    await server.cap("fraction", "10.005", { scope: { vaultKey: "vaultKeys/fraction" } });
    expect((await client.authorizeSpend(asks("j"))).disposition).toBe(Disposition.GRANTED);
    const { denial } = await client.authorizeSpend(asks("k", { amount: "0.01" }));
    expect(denial).toMatchObject({ headroom: usd("0.005"), shortBy: usd("0.005") });
  });

  test("of a cap that counts spends", async () => {
    const client = server.spend(await server.vaultKey("counted"));
    const scope = { vaultKey: "vaultKeys/counted" };
    await server.admin.createCap({
      capId: "counted",
      cap: { spendCountLimit: 1n, window: CapWindow.DAY, timeZone: "America/New_York", scope },
    });
    await server.clock.set("2026-11-01T12:00:00Z");
    await client.authorizeSpend(asks("n1"));
    const { denial } = await client.authorizeSpend(asks("n2"));
    await server.clock.reset();
    expect(denial).toMatchObject({
      rule: DenialRule.CAP_HEADROOM,
      cap: "caps/counted",
      window: "2026-11-01",
      limitCount: 1n,
      committedCount: 0n,
      heldCount: 1n,
      headroomCount: 0n,
      shortByCount: 1n,
      message: "One more spend does not fit into the cap caps/counted. Raise its limit or wait for its window to end.",
    });
    expect(denial?.limit).toBeUndefined();
    // A day of 25 hours.
    expect([shown(denial?.windowStartTime), shown(denial?.windowEndTime)]).toEqual([
      "2026-11-01T04:00:00.000Z",
      "2026-11-02T05:00:00.000Z",
    ]);
  });

  test("of a spend above the whole limit: that it can never fit, and never to wait", async () => {
    const client = server.spend(await server.vaultKey("never"));
    const scope = { vaultKey: "vaultKeys/never" };
    await server.admin.createCap({ capId: "never", cap: { limit: usd("15"), window: CapWindow.DAY, scope } });
    const never = await client.authorizeSpend(asks("e", { amount: "15.01" }));
    expect(never.denial?.message).toBe(
      "15.01 usd can never fit into the cap caps/never: its limit is 15 usd in all. Ask for less, or raise its limit.",
    );
    const held = asks("f", { amount: "10" });
    const { authorization } = await client.authorizeSpend(held);
    const increase = { authorization: authorization?.name ?? "", attemptId: held.attemptId };
    const later = await client.authorizeSpend(asks("g", { amount: "15" }));
    expect(later.denial?.message).toContain("wait for its window to end");
    const raised = await client.increaseHold({ ...increase, amount: usd("15.01") });
    expect(raised.denial?.message).toContain("15.01 usd can never fit into the cap caps/never");
    await server.admin.updateCap({ cap: { name: "caps/never", limit: usd("12") }, updateMask: { paths: ["limit"] } });
    await server.admin.createCap({ capId: "never-a", cap: { spendCountLimit: 0n, window: CapWindow.DAY, scope } });
    await server.admin.archiveCap({ name: "caps/never" });
    expect((await client.authorizeSpend(asks("h", { amount: "1" }))).denial?.message).toBe(
      "No spend can ever fit into the cap caps/never-a: its limit is 0 spends. Raise its limit.",
    );
  });

  test("of a spend in another currency: the cap, both currencies and what to do", async () => {
    const client = server.spend(await server.vaultKey("abroad", { maxPerSpend: usd("100") }));
    const cap = {
      limit: { currency: "eur", amount: "100" },
      window: CapWindow.DAY,
      scope: { vaultKey: "vaultKeys/abroad" },
    };
    const { warnings } = await server.admin.createCap({ capId: "abroad", cap });
    expect(warnings).toEqual([]);
    const { denial } = await client.authorizeSpend(asks("i"));
    expect(denial).toMatchObject({ rule: DenialRule.CURRENCY, cap: "caps/abroad" });
    expect(denial?.message).toMatch(
      /^the cap caps\/abroad counts eur .* nothing in usd is granted\. Spend in eur, or /,
    );
    await server.admin.archiveCap({ name: "caps/abroad" });
    const euros = { ...asks("i"), spend: { ...asks("i").spend, amount: { currency: "eur", amount: "10" } } };
    const ofKey = (await client.authorizeSpend(euros)).denial;
    expect([ofKey?.rule, ofKey?.cap]).toEqual([DenialRule.CURRENCY, ""]);
    expect(ofKey?.message).toContain("the vault key abroad has a max_per_spend in another currency than eur");
  });

  test("of a dry run: every draw, in its unit, and nothing is written", async () => {
    const client = server.spend(await server.vaultKey("dry"));
    const scope = { vaultKey: "vaultKeys/dry" };
    await server.cap("dry-money", "15", { scope });
    await server.admin.createCap({ capId: "dry-spends", cap: { spendCountLimit: 0n, window: CapWindow.DAY, scope } });
    await server.cap("dry-trial", "1", { scope, enforcement: CapEnforcement.SHADOW, maxPerSpend: usd("0.50") });
    const answer = await client.authorizeSpend(asks("d1", { dryRun: true }));
    expect(answer).toMatchObject({ disposition: Disposition.DENIED, denial: { cap: "caps/dry-spends" } });
    expect(answer.draws).toMatchObject([
      { cap: "caps/dry-money", limit: usd("15"), amount: usd("10"), fits: true, usage: { headroom: usd("15") } },
      { cap: "caps/dry-spends", spendCountLimit: 0n, count: 1n, fits: false, rule: DenialRule.CAP_HEADROOM },
      {
        cap: "caps/dry-trial",
        enforcement: CapEnforcement.SHADOW,
        fits: false,
        rule: DenialRule.MAX_PER_SPEND,
        maxPerSpend: usd("0.50"),
        amount: usd("10"),
      },
    ]);
    expect(answer.draws[0]?.maxPerSpend).toBeUndefined();
    const { usage } = await server.admin.getCap({ name: "caps/dry-money" });
    expect(usage).toMatchObject({ held: usd("0") });
    expect((await client.authorizeSpend(asks("d1"))).draws).toEqual([]);
  });
});

describe("the window that is asked for", () => {
  test.each([
    [CapWindow.WEEK, "2026-11-30", "2026-11-30T00:00:00.000Z", "2026-12-07T00:00:00.000Z"],
    [CapWindow.MONTH, "2026-02", "2026-02-01T00:00:00.000Z", "2026-03-01T00:00:00.000Z"],
    [CapWindow.YEAR, "2024", "2024-01-01T00:00:00.000Z", "2025-01-01T00:00:00.000Z"],
  ])("%s %s is read with its first instant and the first after it", async (window, label, start, end) => {
    await server.admin.createCap({ capId: `asked-${window}`, cap: { limit: usd("1"), window, ...elsewhere } });
    const { usage } = await server.admin.getCap({ name: `caps/asked-${window}`, window: label });
    expect(usage?.window).toBe(label);
    expect([shown(usage?.windowStartTime), shown(usage?.windowEndTime)]).toEqual([start, end]);
  });

  test.each([
    [CapWindow.DAY, "2026-02-30"],
    [CapWindow.WEEK, "2026-12-01"],
    [CapWindow.MONTH, "2026-11-01"],
    [CapWindow.MONTH, "2026-13"],
    [CapWindow.YEAR, "26"],
    [CapWindow.LIFETIME, "2026"],
  ])("%s %s is no window of the cap and is refused", async (window, label) => {
    const capId = `wrong-${window}`;
    await server.admin.createCap({ capId, cap: { limit: usd("1"), window, ...elsewhere } }).catch(() => {});
    expect(await refusal(server.admin.getCap({ name: `caps/${capId}`, window: label }))).toMatchObject({
      reason: "INVALID_FIELD",
      field: "window",
    });
  });
});
