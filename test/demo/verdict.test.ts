import { expect, test } from "vitest";
import type { Customer } from "./customers.ts";
import type { GuardedResult } from "./play.ts";
import type { Scenario } from "./scenarios.ts";
import { judge } from "./verdict.ts";
import type { VendorCharge } from "./vendor.ts";

const scenario: Scenario = {
  id: "rxjs-two-steps",
  title: "RxJS retry, two steps",
  retrying: "rxjs",
  call: "payment_intent",
  vendor: "simulator",
  processes: 1,
  capPercent: 90,
  concurrency: 4,
  vendorDeadlineMs: 240,
  drops: { unguarded: { everyPercent: 8, times: 1 }, guarded: { everyPercent: 8, times: 1 } },
};

const customers = ["a", "b", "c", "d"].map(
  (id): Customer => ({ id, name: id, stripeCustomer: `cus_${id}`, paymentMethod: "pm_card_visa", cents: 100 }),
);

function charge(customerId: string, { id = `ch_${customerId}`, cents = 100 } = {}): VendorCharge {
  return { id, customerId, cents };
}

const unguarded = [charge("a"), charge("a", { id: "ch_again" }), charge("b"), charge("c"), charge("d")];

// a and b are charged, c is in doubt and was charged, d did not fit any more.
const good: GuardedResult = {
  charges: [charge("a"), charge("b"), charge("c")],
  capCents: 360,
  usedCents: 300,
  open: new Set(["c"]),
  endings: [{ a: "charged", b: "charged", c: "in_doubt", d: "denied" }],
  retries: 1,
  drops: 1,
  kills: 2,
  problems: [],
};

test("a run in which nobody was charged twice and the cap held has no fault", () => {
  expect(judge(scenario, customers, unguarded, good)).toEqual({
    title: "RxJS retry, two steps",
    customers: 4,
    unguardedCharges: 5,
    unguardedDuplicates: 1,
    guardedCharges: 3,
    guardedDuplicates: 0,
    denied: 1,
    inDoubt: 1,
    cuts: 1,
    kills: 2,
    isOverCap: false,
    faults: [],
  });
});

test("a customer in doubt need not have been charged, but keeps its part of the cap", () => {
  const charges = [charge("a"), charge("b")];
  expect(judge(scenario, customers, unguarded, { ...good, charges }).faults).toEqual([]);
});

test.each<[string, Partial<GuardedResult>, RegExp]>([
  ["a second charge", { charges: [...good.charges, charge("a", { id: "ch_2" })] }, /1 charges too many/],
  ["a second charge of a customer in doubt", { charges: [...good.charges, charge("c", { id: "ch_2" })] }, /too many/],
  ["a customer without a charge", { charges: [charge("a"), charge("c")] }, /b: charged 0 times/],
  ["a wrong amount", { charges: [charge("a", { cents: 101 }), charge("b"), charge("c")] }, /a: a wrong amount/],
  ["a charge of nobody", { charges: [...good.charges, charge("x")] }, /ch_x is nobody's/],
  ["more charged than the cap", { capCents: 299 }, /the cap did not hold/],
  ["more held than the cap", { usedCents: 361 }, /the cap did not hold/],
  ["a charge in spite of a denial", { charges: [...good.charges, charge("d")] }, /d: denied and charged/],
  ["a denial without need", { capCents: 400 }, /d: denied although it fits/],
  ["books that differ from the charges", { usedCents: 299 }, /the server counts 299 cents, and 300/],
  ["no cut connection", { drops: 0 }, /no connection was cut/],
  ["no retry", { retries: 0 }, /never ran anything again/],
  ["no killed process", { kills: 1 }, /no process was killed/],
  ["nobody denied", { endings: [{ a: "charged", b: "charged", c: "in_doubt", d: "charged" }] }, /denied nobody/],
  ["an unexpected error", { problems: ["TypeError: no"] }, /TypeError: no/],
])("%s is a fault", (_, changed, fault) => {
  const { faults } = judge(scenario, customers, unguarded, { ...good, ...changed });
  expect(faults.join("\n")).toMatch(fault);
});

test("an unguarded run without a duplicate proves nothing, and is a fault", () => {
  expect(
    judge(
      scenario,
      customers,
      customers.map(({ id }) => charge(id)),
      good,
    ).faults,
  ).toHaveLength(1);
});
