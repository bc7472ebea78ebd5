import { afterAll, beforeAll, expect, test } from "vitest";
import { LeaseAnswer, LeaseOutcome } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { startTestServer, type TestServer } from "../support/server.ts";

let server: TestServer;
let token: string;

beforeAll(async () => {
  server = await startTestServer();
  token = await server.vaultKey("nightly");
});
afterAll(() => server.close());

const acquire = (lease: string, billingPeriod: string) =>
  server.spend(token).acquireBillingLease({ lease, billingPeriod, holderId: "one", ttl: { seconds: 60n } });

async function complete(lease: string, billingPeriod: string): Promise<bigint> {
  const { billingLease } = await acquire(lease, billingPeriod);
  const fencingToken = billingLease?.fencingToken ?? 0n;
  const outcome = LeaseOutcome.COMPLETED;
  await server.spend(token).releaseBillingLease({ lease, billingPeriod, holderId: "one", fencingToken, outcome });
  return fencingToken;
}

test("leases are listed by job and period, page by page", async () => {
  for (const period of ["2026-12", "2026-11"]) await acquire("listed", period);
  await acquire("other", "2026-11");
  const listed: string[] = [];
  for (let pageToken = ""; ; ) {
    const page = await server.admin.listBillingLeases({ pageSize: 1, pageToken });
    listed.push(...page.billingLeases.map(({ lease, billingPeriod }) => `${lease} ${billingPeriod}`));
    pageToken = page.nextPageToken;
    if (pageToken === "") break;
  }
  expect(listed).toEqual(["listed 2026-11", "listed 2026-12", "other 2026-11"]);
  const { billingLeases } = await server.admin.listBillingLeases({ lease: "other" });
  expect(billingLeases).toMatchObject([{ lease: "other", holderId: "one", completed: false }]);
});

test("a completed job that an operator reopens is acquired again with a higher token, and the audit names the operator", async () => {
  const first = await complete("reopened", "2026-11");
  expect(await acquire("reopened", "2026-11")).toMatchObject({ answer: LeaseAnswer.ALREADY_COMPLETED });
  const request = { lease: "reopened", billingPeriod: "2026-11", reason: "a customer was left out" };
  expect(await server.admin.reopenBillingLease(request)).toMatchObject({ billingLease: { completed: false } });
  const again = await acquire("reopened", "2026-11");
  expect(again.answer).toBe(LeaseAnswer.ACQUIRED);
  expect(again.billingLease?.fencingToken).toBeGreaterThan(first);
  const { auditEvents } = await server.admin.listAuditEvents({ kind: "lease.reopened", newestFirst: true });
  expect(auditEvents).toMatchObject([{ actor: "operators/test", detail: { note: "a customer was left out" } }]);
});

test("reopening what is open changes nothing, and what is not there is named", async () => {
  await acquire("open", "2026-11");
  const open = { lease: "open", billingPeriod: "2026-11", reason: "again" };
  expect(await server.admin.reopenBillingLease(open)).toMatchObject({ billingLease: { holderId: "one" } });
  await expect(server.admin.reopenBillingLease({ ...open, billingPeriod: "2031-01" })).rejects.toThrow(/2031-01/);
});
