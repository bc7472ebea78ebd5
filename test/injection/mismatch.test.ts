import { randomBytes } from "node:crypto";
import { Code, ConnectError } from "@connectrpc/connect";
import { ErrorInfoSchema } from "@holdfast/api/google/rpc/error_details_pb";
import { Disposition, Settlement } from "@holdfast/api/holdfast/v1/spend_pb";
import { SpendMismatchError } from "@holdfast/sdk";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { billingPeriod, purpose } from "../crash/billing-call.ts";
import { rejection } from "../sdk/setup.ts";
import { amount, openTill, type Till } from "./till.ts";

let till: Till;
beforeAll(async () => {
  till = await openTill();
});
afterAll(() => till.close());

const base = (customerId: string) => ({
  spend: { customerId, billingPeriod, purpose, amount: { currency: "usd", amount: "4.90" } },
  vendor: "stripe",
  endpoint: "POST /v1/charges",
  settlement: Settlement.SEND_ONCE as Settlement,
  vendorAccount: "acct_1",
});

type Request = ReturnType<typeof base>;
type Change = (request: Request) => Request;

const changes: Readonly<Record<string, readonly [Change, readonly string[]]>> = {
  amount: [(request) => withAmount(request, "usd", "4.91"), ["spend.amount.amount"]],
  currency: [(request) => withAmount(request, "eur", "4.90"), ["spend.amount.currency"]],
  endpoint: [(request) => ({ ...request, endpoint: "POST /v1/payment_intents" }), ["endpoint"]],
  account: [(request) => ({ ...request, vendorAccount: "acct_2" }), ["vendor_account"]],
  settlement: [(request) => ({ ...request, settlement: Settlement.TWO_STEP }), ["settlement"]],
  everything: [
    (request) => ({ ...withAmount(request, "usd", "1"), vendorAccount: "", endpoint: "POST /v1/payment_intents" }),
    ["spend.amount.amount", "endpoint", "vendor_account"],
  ],
};

function withAmount(request: Request, currency: string, value: string): Request {
  return { ...request, spend: { ...request.spend, amount: { currency, amount: value } } };
}

describe("fast clients that use one spend for two things", () => {
  test.each(Object.keys(changes))(
    "differing in %s: one is granted, every other learns which fields differ",
    async (name) => {
      const [change, fields] = changes[name] as (typeof changes)[string];
      const customerId = `fast-${name}`;
      const before = await till.usage();
      const spend = till.spend();
      const ask = (request: Request) =>
        spend.authorizeSpend({ ...request, attemptId: randomBytes(16).toString("hex") });
      const calls = Array.from({ length: 32 }, (_, n) =>
        ask(n % 2 === 0 ? base(customerId) : change(base(customerId))).then(
          ({ disposition, authorization }) => ({ disposition, authorization, changed: n % 2 === 1 }),
          (error: unknown) => ({ error: ConnectError.from(error), changed: n % 2 === 1 }),
        ),
      );
      const answers = await Promise.all(calls);
      const granted = answers.filter((one) => "disposition" in one && one.disposition === Disposition.GRANTED);
      expect(granted).toHaveLength(1);
      for (const answer of answers) {
        if (answer.changed === granted[0]?.changed) {
          expect("disposition" in answer).toBe(true);
          continue;
        }
        if (!("error" in answer)) throw new Error("was not refused");
        const info = answer.error.findDetails(ErrorInfoSchema)[0];
        expect(answer.error.code).toBe(Code.FailedPrecondition);
        expect(info?.reason).toBe("SPEND_MISMATCH");
        expect(
          (info?.metadata["fields"] ?? "")
            .split(",")
            .map((field) => field.trim())
            .toSorted(),
        ).toEqual(fields.toSorted());
      }
      expect(await till.holds(customerId)).toBe(1);
      expect((await till.usage()).held - before.held).toBeLessThanOrEqual(amount + 1);
    },
  );
});

test.each(["one_call", "two_step"] as const)(
  "a job with another amount (%s) is refused by name and charges nothing, before and after the commit",
  async (kind) => {
    const customerId = `job-${kind}`;
    const { plain, holdfast, charge } = till.clerk();
    const stripe = holdfast.stripe(plain);
    const spend = { customerId, billingPeriod, purpose };
    const body = { amount: amount + 1, currency: "usd", customer: customerId };
    const dearer = () =>
      kind === "two_step"
        ? stripe.paymentIntents.create({ ...body, payment_method: "pm_card_visa", confirm: true }, { spend })
        : stripe.charges.create({ ...body, source: "tok_visa" }, { spend });
    const [one, two] = await Promise.allSettled([charge(customerId, kind), dearer()]);
    const [settled, refused] = one.status === "fulfilled" ? [one, two] : [two, one];
    expect(settled.status).toBe("fulfilled");
    expect(refused.status === "rejected" ? refused.reason : undefined).toMatchObject({
      differingFields: ["spend.amount.amount"],
    });
    expect(till.charges(customerId)).toHaveLength(1);
    const again = await rejection(one.status === "fulfilled" ? dearer() : charge(customerId, kind));
    expect(again).toBeInstanceOf(SpendMismatchError);
    expect(again).toMatchObject({ differingFields: ["spend.amount.amount"] });
    expect(till.charges(customerId)).toHaveLength(1);
  },
);

test("another customer, period or purpose is another spend", async () => {
  const { plain, holdfast } = till.clerk();
  const stripe = holdfast.stripe(plain);
  const spends = [
    { customerId: "own-a", billingPeriod, purpose },
    { customerId: "own-b", billingPeriod, purpose },
    { customerId: "own-a", billingPeriod: "2026-12", purpose },
    { customerId: "own-a", billingPeriod, purpose: "seats" },
  ];
  const ids = await Promise.all(
    spends.map(async (spend) => {
      const body = { amount, currency: "usd", customer: "cus_own", source: "tok_visa" };
      return (await stripe.charges.create(body, { spend })).id;
    }),
  );
  expect(new Set(ids).size).toBe(spends.length);
});
