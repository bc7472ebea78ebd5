import { randomBytes } from "node:crypto";
import { timestampMs } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError } from "@connectrpc/connect";
import { ErrorInfoSchema } from "@holdfast/api/google/rpc/error_details_pb";
import {
  type Authorization,
  AuthorizationState,
  ReconciliationFinding,
  Settlement,
  VoidEvidence,
} from "@holdfast/api/holdfast/v1/spend_pb";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { startTestServer, type TestServer } from "../support/server.ts";

let server: TestServer;
let token: string;

beforeAll(async () => {
  server = await startTestServer();
});
afterAll(() => server.close());
beforeEach(async () => {
  await server.clock.set(start);
  token = await server.vaultKey(`k${randomBytes(8).toString("hex")}`);
});

const start = "2026-11-15T12:00:00Z";
const minute = 60_000;
const hour = 60 * minute;
const spends = () => server.spend(token);

async function doubted(): Promise<Authorization> {
  const attemptId = randomBytes(16).toString("hex");
  const { authorization } = await spends().authorizeSpend({
    spend: {
      customerId: `c${randomBytes(8).toString("hex")}`,
      billingPeriod: "2026-11",
      purpose: "subscription",
      amount: { currency: "usd", amount: "10" },
    },
    vendor: "stripe",
    endpoint: "POST /v1/payment_intents",
    attemptId,
    settlement: Settlement.SEND_ONCE,
  });
  const reported = await spends().reportUnknown({ authorization: authorization?.name ?? "", attemptId });
  if (reported.authorization === undefined) throw new Error("not granted");
  return reported.authorization;
}

async function refusal(call: Promise<unknown>) {
  const error = await call.then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
  if (!(error instanceof ConnectError)) throw new Error("the call was not refused", { cause: error });
  const [info] = error.findDetails(ErrorInfoSchema);
  return { code: error.code, reason: info?.reason, metadata: info?.metadata, message: error.rawMessage };
}

describe("what is not settled", () => {
  test("is listed page by page to its own key, with since when it is in doubt", async () => {
    const names: string[] = [];
    for (let n = 0; n < 3; n += 1) {
      names.push((await doubted()).name);
      await server.clock.advance(1);
    }
    const first = await spends().listUnsettledAuthorizations({ pageSize: 2 });
    expect(first.authorizations.map(({ name }) => name)).toEqual(names.slice(0, 2));
    const second = await spends().listUnsettledAuthorizations({ pageSize: 2, pageToken: first.nextPageToken });
    expect(second.authorizations.map(({ name }) => name)).toEqual(names.slice(2));
    expect(second.nextPageToken).toBe("");
    const [oldest] = first.authorizations;
    expect(oldest?.inDoubtTime === undefined ? undefined : timestampMs(oldest.inDoubtTime)).toBe(Date.parse(start));
    expect(oldest?.reconciliation).toBeUndefined();
    const other = await server.vaultKey(`k${randomBytes(8).toString("hex")}`);
    expect((await server.spend(other).listUnsettledAuthorizations({})).authorizations).toEqual([]);
    expect(await refusal(spends().listUnsettledAuthorizations({ pageToken: "x" }))).toMatchObject({
      code: Code.InvalidArgument,
    });
  });

  test("is asked about again when it is due, or when told to", async () => {
    const { name } = await doubted();
    const { authorization } = await spends().reportReconciliation({
      authorization: name,
      finding: ReconciliationFinding.UNREADABLE,
      note: "rate limited",
    });
    expect(authorization).toMatchObject({
      state: AuthorizationState.IN_DOUBT,
      reconciliation: { finding: ReconciliationFinding.UNREADABLE, count: 1, note: "rate limited" },
    });
    expect((await spends().listUnsettledAuthorizations({})).authorizations).toEqual([]);
    const all = await spends().listUnsettledAuthorizations({ includeNotDue: true });
    expect(all.authorizations).toEqual([authorization]);
    await server.clock.advance(minute);
    expect((await spends().listUnsettledAuthorizations({})).authorizations).toEqual([authorization]);
  });
});

describe("a report", () => {
  test("of an open object follows it, and of another one is refused with the bound one's name", async () => {
    const { name } = await doubted();
    const open = (vendorReference: string) =>
      spends().reportReconciliation({
        authorization: name,
        finding: ReconciliationFinding.OPEN,
        vendorReference,
        vendorState: "processing",
      });
    expect((await open("pi_1")).authorization).toMatchObject({
      state: AuthorizationState.HELD,
      vendorReference: "pi_1",
      vendorState: "processing",
    });
    expect(await refusal(open("pi_2"))).toMatchObject({
      code: Code.FailedPrecondition,
      reason: "ALREADY_BOUND",
      metadata: { vendor_reference: "pi_1" },
    });
    const committed = await spends().commitSpend({
      authorization: name,
      amount: { currency: "usd", amount: "10" },
      vendorReference: "pi_1",
    });
    expect(committed.authorization?.reconciliation).toMatchObject({ count: 1 });
    expect(committed.authorization?.reconciliation?.nextTime).toBeUndefined();
    expect(await refusal(open("pi_1"))).toMatchObject({ reason: "ALREADY_COMMITTED" });
  });

  test.each([
    [{ finding: ReconciliationFinding.ABSENT, vendorReference: "pi_1", vendorState: "open" }, "vendor_reference"],
    [{ finding: ReconciliationFinding.OPEN, vendorState: "open" }, "vendor_state"],
    [{ finding: ReconciliationFinding.OPEN, vendorReference: "pi_1" }, "vendor_state"],
    [{ finding: ReconciliationFinding.UNSPECIFIED }, "finding"],
    [{ finding: ReconciliationFinding.ABSENT, note: "two\nlines" }, "note"],
  ])("that makes no sense is refused: %j", async (request, field) => {
    const { name } = await doubted();
    expect(await refusal(spends().reportReconciliation({ authorization: name, ...request }))).toMatchObject({
      code: Code.InvalidArgument,
      metadata: { field },
    });
  });

  test("in the middle of an attempt's call is refused and says why", async () => {
    const { authorization } = await spends().authorizeSpend({
      spend: { customerId: "c", billingPeriod: "p", purpose: token, amount: { currency: "usd", amount: "1" } },
      vendor: "stripe",
      endpoint: "POST /v1/payment_intents",
      attemptId: randomBytes(16).toString("hex"),
      settlement: Settlement.SEND_ONCE,
    });
    const call = spends().reportReconciliation({
      authorization: authorization?.name ?? "",
      finding: ReconciliationFinding.UNCLEAR,
    });
    const refused = await refusal(call);
    expect(refused).toMatchObject({ code: Code.FailedPrecondition, reason: "STATE_NOT_ALLOWED" });
    expect(refused.message).toContain("in the middle of its call");
  });
});

test("absence voids after the quarantine without an attempt, and not before", async () => {
  const { name } = await doubted();
  const evidence = VoidEvidence.ABSENT_AFTER_QUARANTINE;
  const look = async () => ({
    token: (await spends().listUnsettledAuthorizations({ includeNotDue: true })).lookToken,
    vendorAccountId: "acct_1",
  });
  const finding = ReconciliationFinding.ABSENT;
  const report = async (note = "no intent") =>
    await spends().reportReconciliation({ authorization: name, finding, note, look: await look() });
  const first = await report();
  expect(first.authorization?.reconciliation).toMatchObject({ finding });
  expect(first.authorization?.reconciliation?.absentSinceTime).toBeUndefined();
  const early = await refusal(spends().voidSpend({ authorization: name, evidence, look: await look() }));
  expect(early).toMatchObject({
    code: Code.FailedPrecondition,
    reason: "EVIDENCE_INSUFFICIENT",
    metadata: { state: "IN_DOUBT" },
  });
  await server.clock.advance(25 * hour + 10 * minute);
  const counted = await report();
  expect(counted.authorization?.reconciliation?.absentSinceTime).toBeDefined();
  const stopped = await look();
  await server.clock.advance(5 * minute);
  expect(await refusal(spends().voidSpend({ authorization: name, evidence, look: stopped }))).toMatchObject({
    reason: "EVIDENCE_INSUFFICIENT",
  });
  for (const made of [undefined, { token: "eA", vendorAccountId: "acct_1" }]) {
    const call = { authorization: name, ...(made === undefined ? {} : { look: made }) };
    const field = made === undefined ? "look" : "look.token";
    const refused = { code: Code.InvalidArgument, metadata: { field } };
    expect(await refusal(spends().voidSpend({ ...call, evidence }))).toMatchObject(refused);
    expect(await refusal(spends().reportReconciliation({ ...call, finding }))).toMatchObject(refused);
  }
  const elsewhere = { ...(await look()), vendorAccountId: "acct_2" };
  expect(await refusal(spends().voidSpend({ authorization: name, evidence, look: elsewhere }))).toMatchObject({
    reason: "EVIDENCE_INSUFFICIENT",
  });
  const { authorization } = await spends().voidSpend({ authorization: name, evidence, look: await look() });
  expect(authorization).toMatchObject({ state: AuthorizationState.VOIDED, voidEvidence: evidence });
});
