import { randomBytes } from "node:crypto";
import { durationMs } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError } from "@connectrpc/connect";
import { ErrorInfoSchema } from "@holdfast/api/google/rpc/error_details_pb";
import { ContradictionKind } from "@holdfast/api/holdfast/v1/contradiction_pb";
import { AuthorizationState, Settlement, VoidEvidence } from "@holdfast/api/holdfast/v1/spend_pb";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { startTestServer, type TestServer } from "../support/server.ts";

let server: TestServer;
let token: string;

beforeAll(async () => {
  server = await startTestServer({ protocol: "grpc" });
  token = await server.vaultKey("main");
});
afterAll(() => server.close());
beforeEach(() => server.clock.set("2026-11-15T12:00:00Z"));

const minute = 60_000;
const usd = (amount: string) => ({ currency: "usd", amount });
const reason = "seen in the dashboard";

async function held(): Promise<{ name: string; attemptId: string }> {
  const attemptId = randomBytes(16).toString("hex");
  const { authorization } = await server.spend(token).authorizeSpend({
    spend: {
      customerId: `c${randomBytes(8).toString("hex")}`,
      billingPeriod: "2026-11",
      purpose: "subscription",
      amount: usd("10"),
    },
    vendor: "stripe",
    endpoint: "POST /v1/payment_intents",
    attemptId,
    settlement: Settlement.SEND_ONCE,
  });
  return { name: authorization?.name ?? "", attemptId };
}

async function doubted(): Promise<string> {
  const { name, attemptId } = await held();
  await server.spend(token).reportUnknown({ authorization: name, attemptId });
  return name;
}

async function refusal(call: Promise<unknown>) {
  const error = await call.then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
  if (!(error instanceof ConnectError)) throw new Error("the call was not refused", { cause: error });
  const [info] = error.findDetails(ErrorInfoSchema);
  return { code: error.code, reason: info?.reason, message: error.rawMessage };
}

const committed = (name: string, vendorReference: string, amount = "10") =>
  server.admin.resolveAuthorization({
    name,
    reason,
    resolution: { case: "committed", value: { amount: usd(amount), vendorReference } },
  });

const voided = (name: string, vendorReference = "") =>
  server.admin.resolveAuthorization({ name, reason, resolution: { case: "voided", value: { vendorReference } } });

describe("an operator resolves", () => {
  test("committed, with what was charged", async () => {
    const { authorization } = await committed(await doubted(), "ch_1", "12.50");
    expect(authorization).toMatchObject({
      state: AuthorizationState.COMMITTED,
      committedAmount: usd("12.50"),
      vendorReference: "ch_1",
    });
    expect(authorization?.inDoubtTime).toBeUndefined();
  });

  test("voided, with the reason", async () => {
    const { authorization } = await voided(await doubted());
    expect(authorization).toMatchObject({
      state: AuthorizationState.VOIDED,
      voidEvidence: VoidEvidence.OPERATOR,
      voidReason: reason,
    });
  });

  test("nothing that an attempt is in the middle of, and learns for how long", async () => {
    const { name } = await held();
    await server.clock.advance(4 * minute + 1);
    for (const call of [committed(name, "ch_1"), voided(name)]) {
      const refused = await refusal(call);
      expect(refused).toMatchObject({ code: Code.FailedPrecondition, reason: "STATE_NOT_ALLOWED" });
      expect(refused.message).toContain("at most 360 s");
    }
  });

  test("nothing without a reason, or without an answer", async () => {
    const name = await doubted();
    const resolution = { case: "voided" as const, value: {} };
    const calls = [
      () => server.admin.resolveAuthorization({ name, resolution }),
      () => server.admin.resolveAuthorization({ name, reason }),
      () => committed(name, ""),
    ];
    for (const call of calls) expect((await refusal(call())).code).toBe(Code.InvalidArgument);
  });
});

test("what is in doubt is listed with how much there is, and since when", async () => {
  const before = await server.admin.listInDoubtAuthorizations({});
  const names = [await doubted()];
  await server.clock.advance(minute);
  names.push(await doubted());
  await server.clock.advance(minute);
  const first = await server.admin.listInDoubtAuthorizations({ pageSize: 1 });
  expect(first.totalCount).toBe(before.totalCount + 2n);
  expect(first.oldestAge === undefined ? 0 : durationMs(first.oldestAge)).toBeGreaterThanOrEqual(2 * minute);
  const seen: string[] = [];
  for (let page = first; ; ) {
    seen.push(...page.authorizations.map(({ name }) => name));
    if (page.nextPageToken === "") break;
    page = await server.admin.listInDoubtAuthorizations({ pageSize: 1, pageToken: page.nextPageToken });
  }
  expect(seen.filter((name) => names.includes(name))).toEqual(names);
  for (const name of seen) await voided(name);
  const after = await server.admin.listInDoubtAuthorizations({});
  expect(after).toMatchObject({ authorizations: [], totalCount: 0n });
  expect(after.oldestAge).toBeUndefined();
});

test("contradictions are listed newest first, and closed once with a reason", async () => {
  const name = await doubted();
  const first = `ch_${randomBytes(8).toString("hex")}`;
  await committed(name, first);
  expect(await refusal(committed(name, `${first}_b`, "7"))).toMatchObject({ reason: "COMMIT_CONTRADICTS" });
  const { contradictions, openCount } = await server.admin.listContradictions({ pageSize: 1 });
  const [contradiction] = contradictions;
  expect(contradiction).toMatchObject({
    kind: ContradictionKind.OTHER_REFERENCE,
    authorization: name,
    vendor: "stripe",
    vendorReference: `${first}_b`,
    amount: usd("7"),
    countedAmount: usd("7"),
    closeReason: "",
  });
  const close = (what = contradiction?.name ?? "") =>
    server.admin.closeContradiction({ name: what, reason: "refunded by hand" });
  const closed = (await close()).contradiction;
  expect(closed).toMatchObject({ name: contradiction?.name, closeReason: "refunded by hand" });
  expect((await close()).contradiction).toEqual(closed);
  const left = await server.admin.listContradictions({});
  expect(left.openCount).toBe(openCount - 1n);
  expect(left.contradictions.map((one) => one.name)).not.toContain(contradiction?.name);
  const all = await server.admin.listContradictions({ includeClosed: true });
  expect(all.contradictions).toContainEqual(closed);
  expect((await refusal(close(`contradictions/${"0".repeat(32)}`))).code).toBe(Code.NotFound);
  expect((await refusal(server.admin.listContradictions({ pageToken: "x" }))).code).toBe(Code.InvalidArgument);
});
