import { Code, ConnectError } from "@connectrpc/connect";
import { HoldfastUnavailableError } from "@holdfast/sdk";
import { afterAll, beforeAll, expect, test } from "vitest";
import { billingPeriod, purpose } from "./billing-call.ts";
import { type Desk, openDesk } from "./desk.ts";

let desk: Desk;
beforeAll(async () => {
  desk = await openDesk();
});
afterAll(() => desk.close());

const what = { amount: "4.90", currency: "usd", vendor: "stripe", endpoint: "POST /v1/charges" };

/** A caller whose first `carriedOut` requests for a grant lose their answer, and whose others do not arrive. */
function callerBehind(carriedOut: number, customerId: string) {
  let asked = 0;
  const { holdfast } = desk.client(desk.call(customerId, { timeoutMs: 1_500 }), async (point) => {
    if (point === "before AuthorizeSpend") asked += 1;
    const lost = point === "before AuthorizeSpend" ? asked > carriedOut : point === "after AuthorizeSpend";
    if (lost) throw new ConnectError("the connection was lost", Code.Unavailable);
  });
  const spend = { customerId, billingPeriod, purpose };
  return holdfast.spend(spend, what, () => Promise.reject(new Error("sent"))).catch((error: unknown) => error);
}

test("a grant that was never seen gives its headroom back, and the spend is free for the next call", async () => {
  const before = await desk.usage();
  expect(await callerBehind(1, "unseen")).toBeInstanceOf(HoldfastUnavailableError);
  await expect.poll(() => desk.generations("unseen")).toMatchObject([{ state: "VOIDED" }]);
  expect(await desk.usage()).toEqual(before);
  const { holdfast } = desk.client(desk.call("unseen"));
  const spend = { customerId: "unseen", billingPeriod, purpose };
  expect(await holdfast.spend(spend, what, async () => ({ vendorReference: "ch_1" }))).toMatchObject({
    alreadyCommitted: false,
  });
  expect(await desk.generations("unseen")).toMatchObject([{ state: "VOIDED" }, { state: "COMMITTED" }]);
});

test("a grant that the server had told twice is in doubt, and keeps its headroom", async () => {
  const before = await desk.usage();
  expect(await callerBehind(2, "told-twice")).toBeInstanceOf(HoldfastUnavailableError);
  await expect.poll(() => desk.generations("told-twice")).toMatchObject([{ state: "IN_DOUBT" }]);
  expect(await desk.usage()).toEqual({ ...before, held: before.held + 490 });
});

test("where nothing was granted, nothing is left", async () => {
  const before = await desk.usage();
  expect(await callerBehind(0, "never-arrived")).toBeInstanceOf(HoldfastUnavailableError);
  expect(await desk.generations("never-arrived")).toEqual([]);
  expect(await desk.usage()).toEqual(before);
});
