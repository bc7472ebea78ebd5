import { SpendInDoubtError, stableKey } from "@holdfast/sdk";
import { afterAll, beforeAll, expect, test } from "vitest";
import { billingPeriod, purpose } from "../crash/billing-call.ts";
import { rejection } from "../sdk/setup.ts";
import { type Answer, type SpoilingFront, startSpoilingFront } from "./spoiling-front.ts";
import { amount, HOUR_MS, openTill, type Till } from "./till.ts";

let till: Till;
let front: SpoilingFront;
beforeAll(async () => {
  till = await openTill();
  front = await startSpoilingFront(till.simulator.port);
});
afterAll(async () => {
  await front.close();
  await till.close();
});

interface List {
  readonly object: string;
  readonly data: readonly { readonly id: string; readonly created: number }[];
  readonly has_more: boolean;
}

function listIn({ method, body }: Answer): List | undefined {
  if (method !== "GET") return undefined;
  const parsed = JSON.parse(body.toString()) as List;
  return parsed.object === "list" ? parsed : undefined;
}

/** Lists do not show what is younger than that. */
function hide(youngerThanMs: number): void {
  front.spoil((answer) => {
    const list = listIn(answer);
    if (list === undefined) return undefined;
    const newest = (till.simulator.now() - youngerThanMs) / 1000;
    const data = list.data.filter(({ created }) => created <= newest);
    return { ...answer, body: Buffer.from(JSON.stringify({ ...list, data })) };
  });
}

async function chargeInDoubt(customerId: string): Promise<void> {
  const key = stableKey(customerId, billingPeriod, purpose);
  till.simulator.fault({ mode: "html_502_after", match: { key }, times: 100 });
  expect(await rejection(till.clerk().charge(customerId, "one_call"))).toBeInstanceOf(SpendInDoubtError);
  till.simulator.clearFaults();
}

test.each([60_000, 23 * HOUR_MS])(
  "lists that do not show the last %d ms void nothing, and the charge is found when they do",
  async (staleMs) => {
    const customerId = `stale-${staleMs}`;
    const before = await till.usage();
    await chargeInDoubt(customerId);
    hide(staleMs);
    const look = () => till.clerk({ stripePort: front.port }).reconcile();
    for (let looks = 0; looks < 4; looks += 1) {
      expect((await look()).counts).toMatchObject({ absent: 1, voided: 0 });
      await till.advance(staleMs / 5);
      expect(await till.usage()).toEqual({ ...before, held: before.held + amount });
    }
    await till.advance(staleMs);
    expect((await look()).counts).toMatchObject({ committed: 1 });
    expect(await till.state(customerId)).toBe("COMMITTED");
    expect(till.charges(customerId)).toHaveLength(1);
    front.spoil(undefined);
  },
);

test("lists of ten rows a page, with more than a hundred others in them, are read to their end", async () => {
  const customerId = "paged";
  await chargeInDoubt(customerId);
  const { plain } = till.clerk();
  for (let n = 0; n < 120; n += 1) {
    await plain.charges.create(
      { amount: 100, currency: "usd", customer: "cus_other", source: "tok_visa" },
      { idempotencyKey: `other-${n}` },
    );
  }
  front.spoil((answer) => {
    const list = listIn(answer);
    if (list === undefined || list.data.length <= 10) return undefined;
    const page = { ...list, data: list.data.slice(0, 10), has_more: true };
    return { ...answer, body: Buffer.from(JSON.stringify(page)) };
  });
  expect((await till.clerk({ stripePort: front.port }).reconcile()).counts).toMatchObject({ committed: 1 });
  front.spoil(undefined);
  expect(await till.state(customerId)).toBe("COMMITTED");
});

test("a list that says it has more, and shows nothing more, is no proof that nothing is there", async () => {
  const customerId = "endless";
  await chargeInDoubt(customerId);
  front.spoil((answer) => {
    const list = listIn(answer);
    if (list === undefined) return undefined;
    return { ...answer, body: Buffer.from(JSON.stringify({ ...list, data: [], has_more: true })) };
  });
  const look = () => till.clerk({ stripePort: front.port }).reconcile();
  expect((await look()).counts).toMatchObject({ unreadable: 1, absent: 0 });
  await till.advance(60 * HOUR_MS);
  expect((await look()).counts).toMatchObject({ unreadable: 1, voided: 0 });
  front.spoil(undefined);
  expect((await look()).counts).toMatchObject({ committed: 1 });
  expect(till.charges(customerId)).toHaveLength(1);
});
