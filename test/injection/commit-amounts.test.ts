import { randomBytes } from "node:crypto";
import { DenialRule, Disposition, Settlement } from "@holdfast/api/holdfast/v1/spend_pb";
import { afterAll, beforeAll, expect, test } from "vitest";
import { billingPeriod, purpose } from "../crash/billing-call.ts";
import { type Desk, openDesk } from "../crash/desk.ts";

let desk: Desk;
let spend: ReturnType<Desk["spend"]>;
beforeAll(async () => {
  desk = await openDesk();
  spend = desk.spend();
});
afterAll(() => desk.close());

const usd = (amount: string) => ({ currency: "usd", amount });
const HELD = 1_000;

async function authorize(customerId: string, amount = "10.00") {
  const attemptId = randomBytes(16).toString("hex");
  const response = await spend.authorizeSpend({
    spend: { customerId, billingPeriod, purpose, amount: usd(amount) },
    vendor: "stripe",
    endpoint: "POST /v1/charges",
    settlement: Settlement.SEND_ONCE,
    attemptId,
  });
  return { response, attemptId, name: response.authorization?.name ?? "" };
}

async function limitTo(cents: number): Promise<void> {
  await desk.server.admin.updateCap({
    cap: { name: "caps/everything", limit: usd((cents / 100).toFixed(2)) },
    updateMask: { paths: ["limit"] },
  });
}

test.each([
  ["less than held: the rest is given back", "7.50", false],
  ["what was held", "10.00", false],
  ["nothing: everything is given back", "0", false],
  ["more than held: the truth is recorded, and it is said", "10.01", true],
  ["a hundred times what was held", "1000.00", true],
])("a commit of %s (%s), once however often it is repeated", async (_what, amount, overCommitted) => {
  const customerId = `amount-${amount}`;
  const before = await desk.usage();
  await limitTo(before.committed + HELD);
  const { name, attemptId, response } = await authorize(customerId);
  expect(response.disposition).toBe(Disposition.GRANTED);
  expect(await desk.usage()).toEqual({ ...before, held: HELD });
  const commit = () =>
    spend.commitSpend({ authorization: name, attemptId, amount: usd(amount), vendorReference: `ch_${amount}` });
  const answers = [await commit(), ...(await Promise.all([commit(), commit(), commit()]))];
  expect(answers.map((answer) => answer.overCommitted)).toEqual(answers.map(() => overCommitted));
  const cents = Math.round(Number(amount) * 100);
  expect(await desk.usage()).toEqual({ committed: before.committed + cents, held: 0 });
  const committed = (await desk.events(customerId)).filter(({ kind }) => kind === "spend.committed");
  expect(committed).toMatchObject([{ detail: { over_committed: overCommitted } }]);
  // What is over counts: nothing fits any more. What was given back does at once.
  const room = before.committed + HELD - (before.committed + cents);
  const next = await authorize(`${customerId}-next`, room > 0 ? (room / 100).toFixed(2) : "0.01");
  if (room > 0) expect(next.response.disposition).toBe(Disposition.GRANTED);
  else expect(next.response.denial?.rule).toBe(DenialRule.CAP_HEADROOM);
  if (room > 0) {
    await spend.commitSpend({
      authorization: next.name,
      attemptId: next.attemptId,
      amount: usd((room / 100).toFixed(2)),
      vendorReference: `ch_${amount}_next`,
    });
  }
});
