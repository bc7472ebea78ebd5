import { randomBytes } from "node:crypto";
import { timestampDate, timestampFromDate } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError } from "@connectrpc/connect";
import { ErrorInfoSchema, RetryInfoSchema } from "@holdfast/api/google/rpc/error_details_pb";
import { CapWindow } from "@holdfast/api/holdfast/v1/cap_pb";
import { VaultKeyState } from "@holdfast/api/holdfast/v1/vault_key_pb";
import {
  AuthorizationState,
  DenialRule,
  Direction,
  Disposition,
  Settlement,
  VoidEvidence,
} from "@holdfast/api/holdfast/v1/spend_pb";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { startTestServer, type TestServer } from "../support/server.ts";

let server: TestServer;

beforeAll(async () => {
  server = await startTestServer();
});
afterAll(() => server.close());

const usd = (amount: string) => ({ currency: "usd", amount });

function asks(customerId: string, amount = "10") {
  return {
    spend: { customerId, billingPeriod: "2026-11", purpose: "subscription", amount: usd(amount) },
    vendor: "stripe",
    endpoint: "POST /v1/payment_intents",
    attemptId: randomBytes(16).toString("hex"),
    settlement: Settlement.TWO_STEP,
  };
}

function reasonOf(error: unknown) {
  if (!(error instanceof ConnectError)) throw new Error("the call was not refused", { cause: error });
  const [info] = error.findDetails(ErrorInfoSchema);
  return { code: error.code, reason: info?.reason, field: info?.metadata["field"], error };
}

async function refusal(call: Promise<unknown>) {
  return await call.then(() => Promise.reject(new Error("the call was not refused")), reasonOf);
}

// Counts nothing that other tests here do.
const elsewhere = { scope: { purpose: "elsewhere" } };

/** Reads every page of a list. */
async function pages<Item>(read: (pageToken: string) => Promise<{ items: Item[]; nextPageToken: string }>) {
  const found: Item[][] = [];
  let pageToken = "";
  do {
    const page = await read(pageToken);
    found.push(page.items);
    pageToken = page.nextPageToken;
  } while (pageToken !== "");
  return found;
}

describe("a cap", () => {
  test("is created, read with its counter, and changed for the next authorization", async () => {
    const client = server.spend(await server.vaultKey("capped"));
    await server.cap("capped", "15", { scope: { vaultKey: "vaultKeys/capped" }, maxPerSpend: usd("12") });
    await client.authorizeSpend(asks("a"));
    const read = await server.admin.getCap({ name: "caps/capped" });
    expect(read.cap).toMatchObject({ limit: usd("15"), maxPerSpend: usd("12"), window: CapWindow.LIFETIME });
    expect(read.usage).toMatchObject({ held: usd("10"), committed: usd("0"), headroom: usd("5") });
    expect((await client.authorizeSpend(asks("b"))).disposition).toBe(Disposition.DENIED);
    const { cap } = await server.admin.updateCap({
      cap: { name: "caps/capped", limit: usd("20"), etag: read.cap?.etag ?? "" },
      updateMask: { paths: ["limit"] },
    });
    expect(cap).toMatchObject({ limit: usd("20"), maxPerSpend: usd("12") });
    expect((await client.authorizeSpend(asks("b"))).disposition).toBe(Disposition.GRANTED);
    const lowered = await server.admin.updateCap({
      cap: { name: "caps/capped", limit: usd("5") },
      updateMask: { paths: ["limit", "max_per_spend"] },
    });
    expect(lowered.cap?.maxPerSpend).toBeUndefined();
    const { usage } = await server.admin.getCap({ name: "caps/capped" });
    expect(usage?.headroom).toMatchObject(usd("-15"));
  });

  test("is not changed with an old etag", async () => {
    await server.cap("tagged", "1", elsewhere);
    const { cap } = await server.admin.getCap({ name: "caps/tagged" });
    const change = (amount: string) =>
      server.admin.updateCap({
        cap: { name: "caps/tagged", limit: usd(amount), etag: cap?.etag ?? "" },
        updateMask: { paths: ["limit"] },
      });
    await change("2");
    expect(await refusal(change("3"))).toMatchObject({ code: Code.Aborted, reason: "ETAG_MISMATCH" });
    expect((await server.admin.getCap({ name: "caps/tagged" })).cap?.limit).toMatchObject(usd("2"));
  });

  test("counts one direction for ever, and may begin and end to give headroom back after refunds", async () => {
    await server.cap("given", "1", { ...elsewhere, direction: Direction.REFUND });
    await server.cap("spent", "1", elsewhere);
    const update = (name: string, path: string) =>
      server.admin.updateCap({ cap: { name, refundsRestoreHeadroom: true }, updateMask: { paths: [path] } });
    const { cap } = await update("caps/spent", "refunds_restore_headroom");
    expect(cap).toMatchObject({ direction: Direction.SPEND, refundsRestoreHeadroom: true, limit: usd("1") });
    const limited = await server.admin.updateCap({
      cap: { name: "caps/spent", limit: usd("2") },
      updateMask: { paths: ["limit"] },
    });
    expect(limited.cap).toMatchObject({ refundsRestoreHeadroom: true });
    expect(await refusal(update("caps/given", "refunds_restore_headroom"))).toMatchObject({
      reason: "INVALID_FIELD",
      field: "cap.refunds_restore_headroom",
    });
    expect(await refusal(update("caps/given", "direction"))).toMatchObject({
      reason: "INVALID_FIELD",
      field: "update_mask",
    });
    const listed = await server.admin.getCap({ name: "caps/given" });
    expect(listed.cap).toMatchObject({ direction: Direction.REFUND, refundsRestoreHeadroom: false });
  });

  test("of a DAY says when its window ends", async () => {
    await server.cap("daily", "100", { ...elsewhere, window: CapWindow.DAY, timeZone: "America/New_York" });
    await server.clock.set("2026-11-01T12:00:00Z");
    const { usage } = await server.admin.getCap({ name: "caps/daily" });
    await server.clock.reset();
    expect(usage?.window).toBe("2026-11-01");
    expect(usage?.windowEndTime && timestampDate(usage.windowEndTime).toISOString()).toBe("2026-11-02T05:00:00.000Z");
  });

  const window = CapWindow.LIFETIME;
  test.each([
    ["cap_id", "-a", { limit: usd("1"), window }],
    ["cap.limit", "x1", { window }],
    ["cap.limit.amount", "x1", { limit: usd("-1"), window }],
    ["cap.limit.currency", "x1", { limit: { currency: "USD", amount: "1" }, window }],
    ["cap.window", "x1", { limit: usd("1") }],
    ["cap.time_zone", "x1", { limit: usd("1"), window, timeZone: "UTC" }],
    ["cap.time_zone", "x1", { limit: usd("1"), window: CapWindow.DAY, timeZone: "Mars/Olympus" }],
    ["cap.direction", "x1", { limit: usd("1"), window, direction: 7 as Direction }],
    [
      "cap.refunds_restore_headroom",
      "x1",
      { limit: usd("1"), window, direction: Direction.REFUND, refundsRestoreHeadroom: true },
    ],
    ["cap.max_per_spend.currency", "x1", { limit: usd("1"), window, maxPerSpend: { currency: "eur", amount: "1" } }],
  ] as const)("with a wrong %s is refused", async (field, capId, cap) => {
    expect(await refusal(server.admin.createCap({ capId, cap }))).toMatchObject({
      code: Code.InvalidArgument,
      reason: "INVALID_FIELD",
      field,
    });
  });

  test("never changes its window, zone, scope or currency", async () => {
    await server.cap("fixed", "1", elsewhere);
    for (const path of ["window", "time_zone", "scope", "per_customer", "name", "nonsense"]) {
      const change = server.admin.updateCap({ cap: { name: "caps/fixed" }, updateMask: { paths: [path] } });
      expect(await refusal(change)).toMatchObject({ reason: "INVALID_FIELD", field: "update_mask" });
    }
    const currency = server.admin.updateCap({
      cap: { name: "caps/fixed", limit: { currency: "eur", amount: "1" } },
      updateMask: { paths: ["limit"] },
    });
    expect(await refusal(currency)).toMatchObject({ reason: "INVALID_FIELD", field: "cap.limit.currency" });
  });

  test("that exists or does not exist says so", async () => {
    await server.cap("twice", "1", elsewhere);
    expect(await refusal(server.cap("twice", "1", elsewhere))).toMatchObject({
      code: Code.AlreadyExists,
      reason: "ALREADY_EXISTS",
    });
    expect(await refusal(server.admin.getCap({ name: "caps/none" }))).toMatchObject({ code: Code.NotFound });
  });
});

describe("lists", () => {
  test("of caps and vault keys come by id, page by page, each once", async () => {
    for (const n of [1, 2, 3, 4, 5]) await server.cap(`zz${n}`, "1", elsewhere);
    for (const n of [1, 2, 3]) await server.vaultKey(`zz${n}`);
    const caps = await pages(async (pageToken) => {
      const page = await server.admin.listCaps({ pageSize: 2, pageToken });
      return { items: page.caps.map(({ name }) => name), nextPageToken: page.nextPageToken };
    });
    expect(caps.flat()).toEqual([...new Set(caps.flat())].toSorted());
    expect(caps.flat().filter((name) => name.startsWith("caps/zz"))).toHaveLength(5);
    expect(caps.slice(0, -1).every((page) => page.length === 2)).toBe(true);
    const keys = await pages(async (pageToken) => {
      const page = await server.admin.listVaultKeys({ pageSize: 2, pageToken });
      return { items: page.vaultKeys.map(({ name }) => name), nextPageToken: page.nextPageToken };
    });
    expect(keys.flat()).toEqual([...new Set(keys.flat())].toSorted());
  });

  test("of authorizations come newest first and can be filtered", async () => {
    const client = server.spend(await server.vaultKey("listed"));
    for (const n of [1, 2, 3, 4, 5]) await client.authorizeSpend(asks(`l${n}`));
    const filter = { vaultKey: "vaultKeys/listed" };
    const found = await pages(async (pageToken) => {
      const page = await server.admin.listAuthorizations({ ...filter, pageSize: 2, pageToken });
      return {
        items: page.authorizations.map(({ spend }) => spend?.customerId),
        nextPageToken: page.nextPageToken,
      };
    });
    expect(found).toEqual([["l5", "l4"], ["l3", "l2"], ["l1"]]);
    const one = await server.admin.listAuthorizations({
      ...filter,
      customerId: "l3",
      states: [AuthorizationState.HELD],
    });
    expect(one.authorizations).toHaveLength(1);
    const none = await server.admin.listAuthorizations({ ...filter, states: [AuthorizationState.COMMITTED] });
    expect(none.authorizations).toEqual([]);
  });

  test("refuse a page token that is not theirs", async () => {
    for (const pageToken of [
      "x",
      Buffer.from('["1","2"]').toString("base64url"),
      Buffer.from("[1]").toString("base64url"),
    ]) {
      expect(await refusal(server.admin.listCaps({ pageToken }))).toMatchObject({ field: "page_token" });
      expect(await refusal(server.admin.listAuthorizations({ pageToken }))).toMatchObject({ field: "page_token" });
    }
  });
});

describe("a vault key", () => {
  test("is shown with its policy but never with its token", async () => {
    const expireTime = timestampFromDate(new Date("2030-01-01T00:00:00Z"));
    const token = await server.vaultKey("shown", { purposes: ["a"], maxPerSpend: usd("5"), expireTime });
    const { vaultKey } = await server.admin.getVaultKey({ name: "vaultKeys/shown" });
    expect(vaultKey).toMatchObject({ purposes: ["a"], maxPerSpend: usd("5"), expireTime, state: VaultKeyState.ACTIVE });
    expect(
      JSON.stringify(vaultKey, (_key, value: unknown) => (typeof value === "bigint" ? `${value}` : value)),
    ).not.toContain(token.split("_")[3]);
    const { rows } = await server.database.pool.query<{ leaked: boolean }>(
      "select bool_or(position($1 in to_jsonb(e)::text) > 0) as leaked from holdfast.audit_events e",
      [token.split("_")[3]],
    );
    expect(rows[0]?.leaked).toBe(false);
  });

  test("expires to the instant", async () => {
    const client = server.spend(
      await server.vaultKey("expiring", { expireTime: timestampFromDate(new Date("2027-01-01T00:00:00Z")) }),
    );
    await server.clock.set("2026-12-31T23:59:59.999Z");
    const before = await client.authorizeSpend(asks("e1"));
    await server.clock.set("2027-01-01T00:00:00Z");
    const after = await client.authorizeSpend(asks("e2"));
    await server.clock.reset();
    expect(before.disposition).toBe(Disposition.GRANTED);
    expect(after.denial?.rule).toBe(DenialRule.VAULT_KEY_EXPIRED);
  });

  test("that is revoked gets nothing more, and may still bind, commit, void and doubt what it was granted", async () => {
    const client = server.spend(await server.vaultKey("dying"));
    const requests = ["r1", "r2", "r3", "r4"].map((customer) => asks(customer));
    const names: string[] = [];
    for (const request of requests) names.push((await client.authorizeSpend(request)).authorization?.name ?? "");
    const revoked = await server.admin.revokeVaultKey({ name: "vaultKeys/dying", reason: "leaked" });
    expect(revoked.vaultKey?.state).toBe(VaultKeyState.REVOKED);
    expect(revoked.openAuthorizationCount).toBe(4n);
    expect(revoked.openAuthorizations.map(({ name }) => name).toSorted()).toEqual(names.toSorted());

    for (const customer of ["r1", "r9"]) {
      const answer = await client.authorizeSpend(asks(customer));
      expect(answer.denial?.rule).toBe(DenialRule.VAULT_KEY_REVOKED);
    }
    const of = (n: number) => ({ authorization: names[n] ?? "", attemptId: requests[n]?.attemptId ?? "" });
    await client.bindVendorReference({ ...of(0), vendorReference: "pi_dying" });
    const committed = await client.commitSpend({ ...of(0), amount: usd("10"), vendorReference: "pi_dying" });
    expect(committed.authorization?.state).toBe(AuthorizationState.COMMITTED);
    const voided = await client.voidSpend({ ...of(1), evidence: VoidEvidence.NEVER_SENT });
    expect(voided.authorization?.state).toBe(AuthorizationState.VOIDED);
    const doubted = await client.reportUnknown(of(2));
    expect(doubted.authorization?.state).toBe(AuthorizationState.IN_DOUBT);
    const lookup = { case: "name" as const, value: names[3] ?? "" };
    expect((await client.getAuthorization({ lookup })).authorization?.state).toBe(AuthorizationState.HELD);

    const again = await server.admin.revokeVaultKey({ name: "vaultKeys/dying" });
    expect(again.openAuthorizationCount).toBe(2n);
    expect(again.vaultKey?.revokeTime).toEqual(revoked.vaultKey?.revokeTime);
  });
});

test("a full queue answers RESOURCE_EXHAUSTED and when to try again, and nothing is lost", async () => {
  const small = await startTestServer({ config: { queueMax: 2, batchMax: 1 } });
  try {
    const client = small.spend(await small.vaultKey("main"));
    await client.authorizeSpend(asks("warm"));
    const blocker = await small.database.pool.connect();
    await blocker.query("begin");
    await blocker.query("select from holdfast.workspaces for update");
    const calls = Array.from({ length: 8 }, (_, n) => client.authorizeSpend(asks(`q${n}`)));
    // Those that found no place are answered while the database is still blocked.
    const refused = Promise.any(calls.map((call) => call.then(() => Promise.reject(new Error("granted")), reasonOf)));
    const first = await refused;
    await blocker.query("commit");
    blocker.release();
    const outcomes = await Promise.allSettled(calls);
    const granted = outcomes.filter((one) => one.status === "fulfilled");
    expect(first).toMatchObject({ code: Code.ResourceExhausted, reason: "QUEUE_FULL" });
    expect(first.error.findDetails(RetryInfoSchema)[0]?.retryDelay).toBeDefined();
    expect(granted.length).toBeGreaterThan(0);
    const { rows } = await small.database.pool.query("select from holdfast.authorizations");
    expect(rows).toHaveLength(granted.length + 1);
  } finally {
    await small.close();
  }
});
