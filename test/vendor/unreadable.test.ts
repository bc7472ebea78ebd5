import { AuthorizationState } from "@holdfast/api/holdfast/v1/spend_pb";
import {
  ReconciliationDifferenceKind as Kind,
  type ReconciliationRun,
  ReconciliationRunState,
} from "@holdfast/api/holdfast/v1/reconciliation_run_pb";
import { afterEach, beforeEach, expect, test } from "vitest";
import { markOf, startVendorWorld, type VendorWorld } from "./world.ts";

let world: VendorWorld;
beforeEach(async () => {
  world = await startVendorWorld();
  await world.store();
});
afterEach(() => world.close());

/** Committed with an object that only its own path shows: no list carries a mark of it. */
async function committedByHand() {
  const charge = await world.plain.charges.create({ amount: 4900, currency: "usd", source: "tok_visa" });
  const one = await world.doubted();
  await world.server.admin.resolveAuthorization({
    name: one.name,
    resolution: {
      case: "committed",
      value: { amount: { currency: "usd", amount: "49" }, vendorReference: charge.id },
    },
    reason: "seen in the dashboard",
  });
  return { ...(await world.becomes(one.name, AuthorizationState.COMMITTED)), id: charge.id };
}

const times = 10_000;

async function compared() {
  const { admin } = world.server;
  const { reconciliationRun } = await admin.startReconciliationRun({ vendor: "stripe" });
  const name = reconciliationRun?.name ?? "";
  let run: ReconciliationRun | undefined;
  await expect
    .poll(
      async () => {
        run = (await admin.getReconciliationRun({ name })).reconciliationRun;
        return run?.state;
      },
      { timeout: 240_000 },
    )
    .toBe(ReconciliationRunState.DONE);
  const { differences } = await admin.listReconciliationDifferences({ parent: name });
  return { run, differences };
}

test("objects that never answer, one after the other, end no run: each is named as not looked at", async () => {
  const broken = [await committedByHand(), await committedByHand(), await committedByHand()];
  const fine = await committedByHand();
  for (const { id } of broken) {
    world.simulator.fault({ mode: "html_502", match: { method: "GET", path: new RegExp(`/charges/${id}`) }, times });
  }
  const { run, differences } = await compared();
  expect(differences.map(({ kind, authorization }) => `${kind} ${authorization}`).toSorted()).toEqual(
    broken.map(({ name }) => `${Kind.UNSETTLED} ${name}`).toSorted(),
  );
  for (const { message } of differences) expect(message).toContain("was not looked at");
  expect(run?.differenceCount).toBe(3n);
  expect(differences.map(({ vendorReference }) => vendorReference)).not.toContain(fine.id);
});

test("an object whose question is refused is named, and the rest is compared", async () => {
  const refused = await committedByHand();
  const match = { method: "GET" as const, path: new RegExp(`/charges/${refused.id}`) };
  world.simulator.fault({ mode: "bad_request_400", match, times });
  const { differences } = await compared();
  expect(differences).toMatchObject([
    {
      kind: Kind.UNSETTLED,
      authorization: refused.name,
      vendorReference: refused.id,
      authorizedAmount: { amount: "49" },
    },
  ]);
});

test("an object of a list that has to be read for its price, and cannot be, is named", async () => {
  const one = await committedByHand();
  const { id: customer } = await world.plain.customers.create({
    invoice_settings: { default_payment_method: "pm_card_visa" },
  });
  const price_data = {
    currency: "usd",
    product: "prod_1",
    recurring: { interval: "month" },
    unit_amount: 700,
  } as const;
  const subscription = await world.plain.subscriptions.create({
    customer,
    items: [{ price_data }],
    metadata: { holdfast_authorization: markOf(one) },
  });
  world.simulator.fault({ mode: "html_502", match: { method: "GET", path: /\/subscriptions\/sub_/ }, times });
  const { differences } = await compared();
  expect(differences).toMatchObject([
    { kind: Kind.UNSETTLED, authorization: one.name, vendorReference: subscription.id },
  ]);
});

test("a list that alone is not to be had is named, and the rest is compared", async () => {
  world.simulator.fault({ mode: "html_502", match: { method: "GET", path: /^\/v1\/topups/ }, times });
  const { differences } = await compared();
  expect(differences).toMatchObject([{ kind: Kind.UNSETTLED, authorization: "", vendorReference: "/v1/topups" }]);
});

test("what is in doubt and cannot be read holds up neither the rest nor a run", async () => {
  const bind = async () => {
    const charge = await world.plain.charges.create({ amount: 4900, currency: "usd", source: "tok_visa" });
    const one = await world.doubted();
    await world.server.database.pool.query(
      "update holdfast.authorizations set vendor_reference = $2, bind_time = holdfast.clock() where idempotency_key = $1",
      [one.idempotencyKey, charge.id],
    );
    return { ...one, id: charge.id };
  };
  const match = { method: "GET" as const, path: /\/charges\/ch_/ };
  const down = world.simulator.fault({ mode: "html_502", match, times });
  const all = [await bind(), await bind(), await bind()];
  const { differences } = await compared();
  expect(differences.map(({ authorization }) => authorization).toSorted()).toEqual(
    all.map(({ name }) => name).toSorted(),
  );
  down.remove();
  await world.advance(3_600_000);
  for (const { name } of all) await world.becomes(name, AuthorizationState.COMMITTED);
});
