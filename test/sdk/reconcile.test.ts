import { Code } from "@connectrpc/connect";
import { AuthorizationState, ReconciliationFinding, VoidEvidence } from "@holdfast/api/holdfast/v1/spend_pb";
import { SpendInDoubtError } from "@holdfast/sdk";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { failure } from "../support/fake-control-plane.ts";
import { CHARGE, PAYMENT, rejection, SPEND, startWorld, stripeAt, type World } from "./setup.ts";

let world: World;
beforeEach(async () => {
  world = await startWorld();
});
afterEach(() => world.close());

const HOUR = 3_600_000;
const MINUTES_5 = 300_000;

function reconcile(options = {}) {
  return world.holdfast().reconcile(world.plain, options);
}

/** A charge whose answer never arrives: Stripe made it, and nobody here knows. */
async function chargeInDoubt(spend: object = {}): Promise<void> {
  world.simulator.fault({ mode: "html_502_after", match: { path: /charges$/ }, times: 100 });
  const pay = world.stripe({ vendorDeadlineMs: 500 }).charges.create({ ...CHARGE }, { spend: { ...SPEND, ...spend } });
  expect(await rejection(pay)).toBeInstanceOf(SpendInDoubtError);
  world.simulator.clearFaults();
}

/** A charge whose request was lost on the way. */
async function chargeLost(): Promise<void> {
  world.simulator.fault({ mode: "html_502", match: { path: /charges$/ }, times: 100 });
  const pay = world.stripe({ vendorDeadlineMs: 500 }).charges.create({ ...CHARGE }, { spend: SPEND });
  expect(await rejection(pay)).toBeInstanceOf(SpendInDoubtError);
  world.simulator.clearFaults();
}

describe("a charge whose answer was lost", () => {
  it("is found by the event of its key and committed at what was charged", async () => {
    await chargeInDoubt();
    const report = await reconcile();
    expect(report).toMatchObject({
      complete: true,
      counts: { committed: 1 },
      steps: [{ outcome: "committed", money: { currency: "usd", amount: "49.00" } }],
    });
    const charge = world.simulator.movements()[0];
    expect(world.plane.authorization()).toMatchObject({
      state: AuthorizationState.COMMITTED,
      vendorReference: charge?.id,
      committedAmount: { amount: "49.00" },
    });
    expect((await reconcile()).steps).toEqual([]);
  });

  it("is found by its metadata where events do not reach", async () => {
    await chargeInDoubt();
    world.simulator.advance(31 * 24 * HOUR);
    world.plane.advance(31 * 24 * HOUR);
    expect((await reconcile()).steps).toMatchObject([{ outcome: "committed" }]);
    expect(world.simulator.requests().some(({ path }) => path.startsWith("/v1/charges/search"))).toBe(false);
  });

  it("is found among many pages, with one list for all that are in doubt", async () => {
    await chargeInDoubt();
    await chargeInDoubt({ purpose: "second" });
    for (let index = 0; index < 120; index += 1) await world.plain.charges.create({ ...CHARGE });
    const before = world.simulator.requests().length;
    expect((await reconcile()).counts.committed).toBe(2);
    expect(world.simulator.requests().length - before).toBeLessThan(8);
  });

  it("is not void because a dead charge carries its mark: its request may still be on its way", async () => {
    await chargeLost();
    const mark = world.plane.authorization().name.slice("authorizations/".length);
    const dead = { ...CHARGE, source: "tok_chargeDeclined", metadata: { holdfast_authorization: mark } };
    expect(await rejection(world.plain.charges.create(dead))).toBeInstanceOf(Error);
    expect((await reconcile()).steps).toMatchObject([{ outcome: "absent" }]);
    expect(world.plane.authorization()).toMatchObject({ state: AuthorizationState.IN_DOUBT, vendorReference: "" });
  });

  it("is not taken for another's charge that carries its mark", async () => {
    await chargeLost();
    const mark = world.plane.authorization().name.slice("authorizations/".length);
    await world.plain.charges.create({ ...CHARGE, amount: 99_000, metadata: { holdfast_authorization: mark } });
    expect((await reconcile()).steps).toMatchObject([{ outcome: "unclear" }]);
    expect(world.plane.authorization().state).toBe(AuthorizationState.IN_DOUBT);
  });

  it("is recorded as a contradiction where the spend was voided", async () => {
    await chargeInDoubt();
    world.plane.intercept = (rpc) => {
      if (rpc === "commit") throw failure(Code.FailedPrecondition, "ALREADY_VOIDED");
    };
    expect((await reconcile()).steps).toMatchObject([{ outcome: "contradiction", money: { amount: "49.00" } }]);
  });

  it("stays in doubt while Stripe does not answer, or does not answer completely", async () => {
    await chargeInDoubt();
    world.simulator.fault({
      mode: "error_500_before",
      match: { path: /v1\/(events|charges)/, method: "GET" },
      times: 100,
    });
    const report = await reconcile();
    expect(report.steps).toMatchObject([{ outcome: "unreadable" }]);
    expect(world.plane.authorization()).toMatchObject({
      state: AuthorizationState.IN_DOUBT,
      reconciliation: { finding: ReconciliationFinding.UNREADABLE },
    });
  });

  it("is left for the next run when the reads are used up", async () => {
    await chargeInDoubt();
    const report = await reconcile({ maxReads: 1 });
    expect(report.reads).toBe(1);
    expect(world.plane.authorization().state).not.toBe(AuthorizationState.VOIDED);
    expect((await reconcile()).counts.committed).toBe(1);
  });
});

describe("a charge that never reached Stripe", () => {
  it("is absent at first, and void only by a second look after the quarantine", async () => {
    await chargeLost();
    expect((await reconcile()).steps).toMatchObject([{ outcome: "absent" }]);
    world.plane.advance(26 * HOUR);
    expect((await reconcile()).steps).toMatchObject([{ outcome: "absent" }]);
    expect((await reconcile()).steps).toMatchObject([{ outcome: "absent" }]);
    world.plane.advance(MINUTES_5);
    expect((await reconcile()).steps).toMatchObject([{ outcome: "voided" }]);
    expect(world.plane.authorization()).toMatchObject({
      state: AuthorizationState.VOIDED,
      voidEvidence: VoidEvidence.ABSENT_AFTER_QUARANTINE,
    });
  });

  it("is not void by the word of a process that was stopped after its look, while it was charged", async () => {
    await chargeLost();
    const { name, idempotencyKey } = world.plane.authorization();
    expect((await reconcile()).steps).toMatchObject([{ outcome: "absent" }]);
    world.plane.advance(20 * HOUR);
    world.plane.intercept = async (rpc) => {
      if (rpc !== "void" && rpc !== "reconciled") return;
      world.plane.intercept = () => {};
      const metadata = { holdfast_authorization: name.slice("authorizations/".length) };
      await world.plain.charges.create({ ...CHARGE, metadata }, { idempotencyKey });
      world.plane.advance(72 * HOUR);
    };
    expect((await reconcile()).steps).toMatchObject([{ outcome: "absent" }]);
    expect(world.plane.authorization().reconciliation?.absentSinceTime).toBeUndefined();
    expect((await reconcile()).steps).toMatchObject([{ outcome: "committed" }]);
  });

  it("is not void because another account of Stripe's does not show it", async () => {
    await chargeInDoubt();
    world.simulator.fault({ mode: "error_500_before", match: { method: "GET", path: /events|charges/ }, times: 100 });
    expect((await reconcile()).counts.unreadable).toBe(1);
    world.simulator.clearFaults();
    const strangers = stripeAt(world.time, world.simulator, { stripeAccount: "acct_stranger" });
    for (let looks = 0; looks < 3; looks += 1) {
      world.plane.advance(30 * HOUR);
      expect((await world.holdfast().reconcile(strangers)).counts.voided).toBe(0);
      expect(world.plane.authorization()).toMatchObject({
        state: AuthorizationState.IN_DOUBT,
        reconciliation: { finding: ReconciliationFinding.UNCLEAR },
      });
    }
    expect((await reconcile()).steps).toMatchObject([{ outcome: "committed" }]);
  });

  it("starts its absence anew after a look that was not complete", async () => {
    await chargeLost();
    world.plane.advance(26 * HOUR);
    await reconcile();
    world.plane.advance(MINUTES_5);
    world.simulator.fault({ mode: "error_500_before", match: { method: "GET" }, times: 100 });
    expect((await reconcile()).steps).toMatchObject([{ outcome: "unreadable" }]);
    world.simulator.clearFaults();
    expect((await reconcile()).steps).toMatchObject([{ outcome: "absent" }]);
    expect(world.plane.authorization().state).toBe(AuthorizationState.IN_DOUBT);
  });
});

describe("an object that is followed", () => {
  it("is committed once the customer has acted, and void once it was cancelled", async () => {
    const pay = (purpose: string) =>
      world
        .stripe()
        .paymentIntents.create(
          { ...PAYMENT, payment_method: "pm_card_authenticationRequired" },
          { spend: { ...SPEND, purpose } },
        );
    const acted = await pay("acted");
    const cancelled = await pay("cancelled");
    expect((await reconcile()).counts).toMatchObject({ open: 2 });
    world.simulator.confirmFromBrowser(acted.id);
    await world.plain.paymentIntents.cancel(cancelled.id);
    const report = await reconcile();
    expect(report.counts).toMatchObject({ committed: 1, voided: 1 });
    expect(world.plane.authorization(0).state).toBe(AuthorizationState.COMMITTED);
    expect(world.plane.authorization(1)).toMatchObject({
      state: AuthorizationState.VOIDED,
      voidEvidence: VoidEvidence.TOMBSTONE,
    });
  });

  it("in another account is read in that account", async () => {
    const intent = await world
      .stripe()
      .paymentIntents.create({ ...PAYMENT, capture_method: "manual" }, { spend: SPEND, stripeAccount: "acct_9" });
    await world.plain.paymentIntents.capture(intent.id, {}, { stripeAccount: "acct_9" });
    expect((await reconcile()).counts).toMatchObject({ committed: 1 });
  });
});

describe("a run", () => {
  it("tells of each step, ends at its signal, and refuses what it does not know", async () => {
    await chargeInDoubt();
    await chargeInDoubt({ purpose: "second" });
    const controller = new AbortController();
    const seen: string[] = [];
    const report = await reconcile({
      signal: controller.signal,
      onProgress: ({ outcome }: { outcome: string }) => {
        seen.push(outcome);
        controller.abort();
      },
    });
    expect(seen).toEqual(["committed"]);
    expect(report).toMatchObject({ complete: false, counts: { committed: 1 } });
    await expect(reconcile({ maxRead: 1 })).rejects.toThrow(/maxRead/);
    await expect(reconcile({ maxReads: 0 })).rejects.toThrow(/maxReads/);
  });

  it("says so when the control plane does not answer", async () => {
    world.plane.intercept = () => {
      throw failure(Code.Unavailable, "DATABASE_UNAVAILABLE");
    };
    const holdfast = world.holdfast({ timeoutMs: 300 });
    expect(await rejection(holdfast.reconcile(world.plain))).toMatchObject({ code: "holdfast_unavailable" });
  });
});
