import { randomBytes } from "node:crypto";
import { Code } from "@connectrpc/connect";
import { Settlement, VoidEvidence } from "@holdfast/api/holdfast/v1/spend_pb";
import { afterAll, beforeAll, expect, test } from "vitest";
import { startTestServer, type TestServer } from "../support/server.ts";
import { type Terminal, terminalOf } from "./terminal.ts";

let server: TestServer;
let terminal: Terminal;
const spend = { customerId: "cust_1", billingPeriod: "2026-11", purpose: "subscription" };
const amount = { currency: "usd", amount: "10" };
let name: string;

beforeAll(async () => {
  server = await startTestServer();
  terminal = terminalOf(server);
  const spends = server.spend(await server.vaultKey("main"));
  await server.vaultKey("other");
  await server.cap("all", "15");
  const ask = async (retryAfterGeneration: number, more = amount) => {
    const attemptId = randomBytes(16).toString("hex");
    const asked = { spend: { ...spend, amount: more }, vendor: "stripe", endpoint: "POST /v1/payment_intents" };
    const settlement = Settlement.SEND_ONCE;
    const { authorization } = await spends.authorizeSpend({ ...asked, attemptId, settlement, retryAfterGeneration });
    return { name: authorization?.name ?? "", attemptId };
  };
  await ask(0, { currency: "usd", amount: "16" });
  const first = await ask(0);
  const refused = { evidence: VoidEvidence.VENDOR_REFUSED, vendorStatus: 402, vendorReference: "pi_1" };
  await spends.voidSpend({ authorization: first.name, attemptId: first.attemptId, ...refused });
  const second = await ask(1);
  name = second.name;
  await spends.reportUnknown({ authorization: name, attemptId: second.attemptId, reason: "timeout" });
  await server.admin.resolveAuthorization({
    name,
    resolution: { case: "committed", value: { amount, vendorReference: "pi_2" } },
    reason: "seen in the dashboard",
  });
  // A second truth about the first one.
  const late = spends.commitSpend({ authorization: first.name, amount, vendorReference: "pi_1" });
  await expect(late).rejects.toThrow();
  await server.database.pool.query(
    `insert into holdfast.proxied_requests (workspace_id, vault_key_id, request_key, endpoint, body_sha256, retry_sha256,
       customer_id, billing_period, purpose, state, claim_id, answer_generation, status, declined, answer_omitted,
       create_time, open_time, answer_time)
     values ('default', 'main', $1, 'POST /v1/payment_intents', $1, $1, 'cust_1', '2026-11', 'subscription', 'ANSWERED',
       repeat('c', 32), 1, 402, true, true, holdfast.clock(), holdfast.clock(), holdfast.clock())`,
    [Buffer.alloc(32, 1)],
  );
});
afterAll(() => server.close());

test("one call tells everything about a spend, in order, by any of its authorizations or by its identity", async () => {
  const story = await server.admin.getSpendStory({ lookup: { case: "authorization", value: name } });
  expect(story.spend).toMatchObject(spend);
  expect(story.authorizations.map(({ generation }) => generation)).toEqual([1, 2]);
  expect(story.auditEvents.map(({ kind, disposition }) => `${kind} ${disposition}`.trim())).toEqual([
    "spend.answered DENIED",
    "spend.granted GRANTED",
    "spend.voided",
    "spend.granted GRANTED",
    "spend.in_doubt",
    "spend.committed",
    "spend.contradiction",
  ]);
  expect(story.contradictions.map(({ authorization }) => authorization)).toEqual([story.authorizations[0]?.name]);
  expect(story.proxiedRequests).toMatchObject([
    { vaultKey: "vaultKeys/main", status: 402, declined: true, open: false },
  ]);
  const byIdentity = await server.admin.getSpendStory({ lookup: { case: "spend", value: spend } });
  expect(byIdentity).toEqual(story);
});

test("its events come in pages too", async () => {
  const kinds: string[] = [];
  let pageToken = "";
  do {
    const page = await server.admin.getSpendStory({ lookup: { case: "spend", value: spend }, pageSize: 2, pageToken });
    expect(page.authorizations).toHaveLength(2);
    kinds.push(...page.auditEvents.map(({ kind }) => kind));
    pageToken = page.nextPageToken;
  } while (pageToken !== "");
  expect(kinds).toHaveLength(7);
});

test("a spend that was only denied has a story, and one that nobody has asked for has none", async () => {
  const denied = { ...spend, purpose: "extra" };
  const spends = server.spend(await server.vaultKey("third"));
  await spends.authorizeSpend({
    spend: { ...denied, amount: { currency: "usd", amount: "99" } },
    vendor: "stripe",
    endpoint: "POST /v1/payment_intents",
    attemptId: "1".repeat(32),
  });
  const story = await server.admin.getSpendStory({ lookup: { case: "spend", value: denied } });
  expect([story.authorizations, story.auditEvents.length]).toEqual([[], 1]);
  const never = server.admin.getSpendStory({ lookup: { case: "spend", value: { ...spend, purpose: "never" } } });
  await expect(never).rejects.toMatchObject({ code: Code.NotFound });
  const value = `authorizations/${"0".repeat(36)}-1`;
  const unknown = server.admin.getSpendStory({ lookup: { case: "authorization", value } });
  await expect(unknown).rejects.toMatchObject({ code: Code.NotFound });
});

test("the terminal tells it within the width, and as JSON", async () => {
  const out = await terminal.ok(`authorizations story ${name}`);
  for (const part of ["cust_1", "voided", "committed", "pi_2", "402 declined", "commit after void", "operators/test"]) {
    expect(out).toContain(part);
  }
  expect(out.indexOf("spend.voided")).toBeLessThan(out.indexOf("spend.committed"));
  const flags = "--customer cust_1 --period 2026-11 --purpose subscription";
  expect(await terminal.ok(`authorizations story ${flags}`)).toBe(out);
  const json = (await terminal.json(`authorizations story ${flags}`)) as { audit_events: unknown[] };
  expect(json.audit_events).toHaveLength(7);
  expect(await terminal.run("authorizations story --customer cust_1")).toMatchObject({ code: 64 });
});
