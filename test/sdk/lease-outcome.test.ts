import { Code } from "@connectrpc/connect";
import { NotChargedError } from "@holdfast/sdk";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { failure } from "../support/fake-control-plane.ts";
import { CHARGE, PAYMENT, rejection, SPEND, startWorld, type World } from "./setup.ts";

const MAIL = { amount: "0.0079", currency: "usd", vendor: "resend", endpoint: "POST /emails" };
const JOB = { lease: "nightly-billing", billingPeriod: "2026-11" };
const mail = async () => ({ vendorReference: "mail_1" });
const swallow = (promise: Promise<unknown>) => rejection(promise).then(() => undefined);

let world: World;
beforeEach(async () => {
  world = await startWorld();
});
afterEach(() => world.close());

const closed = { outcome: "completed", unsettled: [] };
const open = { outcome: "incomplete", unsettled: [SPEND] };

/** What becomes of a job whose only spend is made by `spend`, whose error it swallows. */
async function outcomeOf(spend: (holdfast: ReturnType<World["holdfast"]>) => Promise<unknown>, options = {}) {
  const holdfast = world.holdfast(options);
  return await holdfast.withBillingLease(JOB, () => spend(holdfast));
}

describe("a job that swallowed what became of a spend leaves the period open", () => {
  it("if it was denied", async () => {
    world.plane.capMajor = 0;
    expect(await outcomeOf((holdfast) => swallow(holdfast.spend(SPEND, MAIL, mail)))).toMatchObject(open);
  });

  it("if the guard refused it for naming no spend, or for something that it cannot make safe", async () => {
    const unnamed = await outcomeOf((holdfast) => swallow(holdfast.stripe(world.plain).charges.create({ ...CHARGE })));
    expect(unnamed).toMatchObject({ outcome: "incomplete", unsettled: [{ purpose: "a write without a spend" }] });
    const unsafe = await outcomeOf((holdfast) =>
      swallow(holdfast.stripe(world.plain).charges.create({ ...CHARGE, amount: 0 }, { spend: SPEND })),
    );
    expect(unsafe).toMatchObject(open);
  });

  it("if it is in progress elsewhere", async () => {
    const finish = Promise.withResolvers<void>();
    const elsewhere = world.holdfast().spend(SPEND, MAIL, async () => {
      await finish.promise;
      return mail();
    });
    await expect.poll(() => world.plane.names()).toContain("authorize");
    expect(await outcomeOf((holdfast) => swallow(holdfast.spend(SPEND, MAIL, mail)))).toMatchObject(open);
    finish.resolve();
    await elsewhere;
  });

  it("if it is in doubt", async () => {
    const spent = (holdfast: ReturnType<World["holdfast"]>) =>
      swallow(holdfast.spend(SPEND, MAIL, () => Promise.reject(new Error("cut"))));
    expect(await outcomeOf(spent)).toMatchObject(open);
  });

  it("if the control plane did not answer", async () => {
    world.plane.intercept = (rpc) => {
      if (rpc === "authorize") throw failure(Code.Unavailable, "DATABASE_UNAVAILABLE");
    };
    expect(await outcomeOf((holdfast) => swallow(holdfast.spend(SPEND, MAIL, mail)))).toMatchObject(open);
  });

  it("if nothing was sent", async () => {
    const spent = (holdfast: ReturnType<World["holdfast"]>) =>
      swallow(holdfast.spend(SPEND, MAIL, () => Promise.reject(new NotChargedError())));
    expect(await outcomeOf(spent)).toMatchObject(open);
  });

  it("if nobody could say which spend it was", async () => {
    const nobody = { customerId: "a:b", billingPeriod: "2026-11", purpose: "x" };
    const result = await outcomeOf((holdfast) => swallow(holdfast.spend(nobody, MAIL, mail)));
    expect(result).toMatchObject({ outcome: "incomplete", unsettled: [nobody] });
  });

  it("if what is spent was malformed", async () => {
    const spent = (holdfast: ReturnType<World["holdfast"]>) =>
      swallow(holdfast.spend(SPEND, { ...MAIL, amount: "a lot" }, mail));
    expect(await outcomeOf(spent)).toMatchObject(open);
  });

  it("if the client was closed meanwhile", async () => {
    const spent = async (holdfast: ReturnType<World["holdfast"]>) => {
      await holdfast.close();
      await swallow(holdfast.stripe(world.plain).charges.create({ ...CHARGE }, { spend: SPEND }));
    };
    expect(await outcomeOf(spent)).toMatchObject(open);
  });

  it("if a declined PaymentIntent is kept for another card", async () => {
    const paid = (holdfast: ReturnType<World["holdfast"]>) =>
      swallow(
        holdfast
          .stripe(world.plain, { onDecline: "keep" })
          .paymentIntents.create({ ...PAYMENT, payment_method: "pm_card_chargeDeclined" }, { spend: SPEND }),
      );
    expect(await outcomeOf(paid)).toMatchObject(open);
  });

  it("if its commit could not be delivered yet", async () => {
    world.plane.intercept = (rpc) => {
      if (rpc === "commit") throw failure(Code.Unavailable, "DATABASE_UNAVAILABLE");
    };
    expect(await outcomeOf((holdfast) => holdfast.spend(SPEND, MAIL, mail))).toMatchObject(open);
    world.plane.intercept = () => undefined;
  });
});

describe("a job closes the period", () => {
  it("if its spends are committed, now or before", async () => {
    await world.holdfast().spend(SPEND, MAIL, mail);
    const both = (holdfast: ReturnType<World["holdfast"]>) =>
      Promise.all([
        holdfast.spend(SPEND, MAIL, mail),
        holdfast.spend({ ...SPEND, purpose: "second" }, MAIL, async () => ({ vendorReference: "mail_2" })),
      ]);
    expect(await outcomeOf(both)).toMatchObject(closed);
  });

  it.each(["charge", "payment intent"])("if the vendor refused the %s", async (kind) => {
    const declined = (holdfast: ReturnType<World["holdfast"]>) => {
      const stripe = holdfast.stripe(world.plain);
      return swallow(
        kind === "charge"
          ? stripe.charges.create({ ...CHARGE, source: "tok_chargeDeclined" }, { spend: SPEND })
          : stripe.paymentIntents.create({ ...PAYMENT, payment_method: "pm_card_chargeDeclined" }, { spend: SPEND }),
      );
    };
    expect(await outcomeOf(declined)).toMatchObject(closed);
  });

  it("if the vendor had refused the spend before", async () => {
    const refused = () => Promise.reject(new NotChargedError({ vendorStatus: 402 }));
    await swallow(world.holdfast().spend(SPEND, MAIL, refused));
    expect(await outcomeOf((holdfast) => swallow(holdfast.spend(SPEND, MAIL, mail)))).toMatchObject(closed);
  });

  it("if a spend that was denied first was charged in the end", async () => {
    world.plane.capMajor = 0;
    const twice = async (holdfast: ReturnType<World["holdfast"]>) => {
      await swallow(holdfast.spend(SPEND, MAIL, mail));
      world.plane.capMajor = 100;
      await holdfast.spend(SPEND, MAIL, mail);
    };
    expect(await outcomeOf(twice)).toMatchObject(closed);
  });

  it("only after the spends that it did not wait for", async () => {
    const finish = Promise.withResolvers<void>();
    const forgotten = async (holdfast: ReturnType<World["holdfast"]>) => {
      void holdfast.spend(SPEND, MAIL, async () => {
        await finish.promise;
        return mail();
      });
      await expect.poll(() => world.plane.names()).toContain("authorize");
      setImmediate(() => finish.resolve());
    };
    expect(await outcomeOf(forgotten)).toMatchObject(closed);
    expect(world.plane.names().slice(-2)).toEqual(["commit", "releaseLease"]);
  });
});

it("a lease that was given back lets nothing pass any more", async () => {
  const holdfast = world.holdfast();
  let assertHeld: () => void = () => undefined;
  await holdfast.withBillingLease(JOB, async (lease) => {
    assertHeld = () => lease.assertHeld();
    assertHeld();
  });
  expect(assertHeld).toThrow("no longer surely held");
});
