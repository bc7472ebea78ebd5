import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { BillingOutcome } from "../crash/billing-call.ts";
import { type LineProcess, startLineProcess } from "../crash/line-process.ts";
import { amount, openTill, type Till } from "./till.ts";

let till: Till;
let pods: LineProcess[] = [];
beforeAll(async () => {
  till = await openTill();
  pods = Array.from({ length: PODS }, () => startLineProcess(join(import.meta.dirname, "../crash/billing-process.ts")));
  await Promise.all(pods.map((pod) => pod.said((line) => line["ready"] === true)));
});
afterAll(async () => {
  await Promise.all(pods.map((pod) => pod.kill()));
  await till.close();
});

const PODS = 3;
const CUSTOMERS = 40;

test("a job that three pods start at once, each for every customer: one charge for each, and every pod learns of it", async () => {
  const before = await till.usage();
  const customers = Array.from({ length: CUSTOMERS }, (_, n) => `pod-${n}`);
  // The timer fires everywhere; the pods go through their customers in orders of their own.
  for (const [index, pod] of pods.entries()) {
    const order = index === 1 ? customers.toReversed() : customers;
    for (const customerId of order) pod.tell({ call: till.call(customerId, { kind: kindOf(customerId) }) });
  }
  const outcomes = await Promise.all(pods.map((pod) => Promise.all(customers.map((id) => outcomeOf(pod, id)))));
  for (const [n, customerId] of customers.entries()) {
    const [charge, ...others] = till.charges(customerId);
    expect(others).toEqual([]);
    const reference = charge?.payment_intent ?? charge?.id;
    for (const ofPod of outcomes) expect(ofPod[n]).toMatchObject({ ok: reference, status: "succeeded" });
  }
  expect(await till.usage()).toEqual({ ...before, committed: before.committed + CUSTOMERS * amount });
  // In a process of its own each caller is an attempt; one is granted, and the others are told.
  const { rows } = await till.server.database.pool.query<{ disposition: string; asked: number }>(
    "select disposition, count(*)::int as asked from holdfast.audit_events where disposition is not null " +
      "and customer_id like 'pod-%' group by 1",
  );
  const asked = new Map(rows.map((row) => [row.disposition, row.asked]));
  expect(asked.get("GRANTED")).toBe(CUSTOMERS);
  expect([...asked.keys()].filter((one) => !["GRANTED", "IN_PROGRESS", "ALREADY_COMMITTED"].includes(one))).toEqual([]);
  expect(pods.flatMap((pod) => pod.lines.filter((line) => "defect" in line))).toEqual([]);
});

function kindOf(customerId: string): "two_step" | "one_call" {
  return Number(customerId.slice("pod-".length)) % 2 === 0 ? "two_step" : "one_call";
}

async function outcomeOf(pod: LineProcess, customerId: string): Promise<BillingOutcome> {
  const line = await pod.said((one) => one["id"] === customerId && "outcome" in one);
  return line["outcome"] as BillingOutcome;
}
