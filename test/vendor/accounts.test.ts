import { AuthorizationState } from "@holdfast/api/holdfast/v1/spend_pb";
import {
  ReconciliationDifferenceKind as Kind,
  ReconciliationRunState,
} from "@holdfast/api/holdfast/v1/reconciliation_run_pb";
import { afterEach, beforeEach, expect, test } from "vitest";
import { charge, platform, startVendorWorld, type VendorWorld } from "./world.ts";

let world: VendorWorld;
beforeEach(async () => {
  world = await startVendorWorld();
});
afterEach(() => world.close());

async function compared() {
  const { admin } = world.server;
  const { reconciliationRun } = await admin.startReconciliationRun({ vendor: "stripe" });
  const name = reconciliationRun?.name ?? "";
  const state = async () => (await admin.getReconciliationRun({ name })).reconciliationRun?.state;
  await expect.poll(state, { timeout: 240_000 }).toBe(ReconciliationRunState.DONE);
  return (await admin.listReconciliationDifferences({ parent: name })).differences;
}

test("the platform's own account is one account, also where it is named by its id", async () => {
  const one = await world.doubted({ account: platform });
  await charge({ plain: world.plain, authorization: one, amount: 4900 });
  await world.store();
  await world.becomes(one.name, AuthorizationState.COMMITTED);
  expect(await compared()).toEqual([]);
});

test("a connected account of another workspace is not read, and what was spent there is named", async () => {
  await world.server.database.pool.query(
    "insert into holdfast.vendor_accounts (vendor, vendor_account_id, workspace_id) values ('stripe', 'acct_9', 'other')",
  );
  const one = await world.doubted({ account: "acct_9", charged: 4900 });
  const own = await world.doubted({ account: "acct_8", charged: 4900 });
  await world.store();
  const before = world.simulator.requests().length;
  await world.becomes(own.name, AuthorizationState.COMMITTED);
  const differences = await compared();
  expect(differences.map(({ kind, vendorAccount }) => `${kind} ${vendorAccount}`)).toContain(
    `${Kind.UNSETTLED} acct_9`,
  );
  expect((await world.get(one.name)).state).toBe(AuthorizationState.IN_DOUBT);
  const reads = world.simulator.requests().slice(before);
  expect(reads.some((read) => JSON.stringify(read).includes("acct_8"))).toBe(true);
  expect(reads.some((read) => JSON.stringify(read).includes("acct_9"))).toBe(false);
});
