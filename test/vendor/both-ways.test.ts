import { AuthorizationState } from "@holdfast/api/holdfast/v1/spend_pb";
import {
  ReconciliationDifferenceKind as Kind,
  type ReconciliationRun,
  ReconciliationRunState,
} from "@holdfast/api/holdfast/v1/reconciliation_run_pb";
import { createHoldfast } from "@holdfast/sdk";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { runCommand } from "../../server/cli/program.ts";
import { charge, markOf, startVendorWorld, type VendorWorld } from "./world.ts";

let world: VendorWorld;
beforeEach(async () => {
  world = await startVendorWorld();
  await world.store();
});
afterEach(() => world.close());

async function finished(name = ""): Promise<ReconciliationRun> {
  const { admin } = world.server;
  let run: ReconciliationRun | undefined;
  await expect
    .poll(async () => {
      run = (await admin.getReconciliationRun({ name })).reconciliationRun;
      return run?.state;
    })
    .toBeGreaterThanOrEqual(ReconciliationRunState.DONE);
  if (run === undefined) throw new Error("no run");
  return run;
}

async function compared() {
  const { admin } = world.server;
  const { reconciliationRun } = await admin.startReconciliationRun({ vendor: "stripe" });
  const run = await finished(reconciliationRun?.name);
  const { differences } = await admin.listReconciliationDifferences({ parent: run.name });
  return { run, differences };
}

async function committed(amount = 4900) {
  const one = await world.doubted({ charged: amount });
  return await world.becomes(one.name, AuthorizationState.COMMITTED);
}

/** One of every kind of difference. */
async function makeDifferences() {
  const missing = await committed();
  const other = await committed();
  await world.server.database.pool.query(
    "update holdfast.authorizations set vendor_reference = 'ch_gone' where spend_key = $1",
    [markOf(missing).split("-")[0]],
  );
  await world.server.database.pool.query(
    "update holdfast.authorizations set committed_micros = 1000000 where spend_key = $1",
    [markOf(other).split("-")[0]],
  );
  const voided = await world.doubted();
  await world.server.admin.resolveAuthorization({
    name: voided.name,
    resolution: { case: "voided", value: { vendorReference: "" } },
    reason: "it was not charged",
  });
  const late = await charge({ plain: world.plain, authorization: voided, amount: 4900 });
  const nobody = await world.plain.charges.create({
    amount: 700,
    currency: "usd",
    source: "tok_visa",
    metadata: { holdfast_authorization: `${"0".repeat(36)}-1` },
  });
  const doubt = await world.doubted();
  return { missing, other, voided, late, nobody, doubt };
}

test("both sides agree: nothing is left over, whatever was lost on the way", async () => {
  for (let n = 0; n < 3; n += 1) await committed();
  const connected = await world.doubted({ account: "acct_9", charged: 4900 });
  await world.plain.charges.create({ amount: 100, currency: "usd", source: "tok_visa" });
  const { run, differences } = await compared();
  expect(differences).toEqual([]);
  expect(run).toMatchObject({
    state: ReconciliationRunState.DONE,
    message: "Everything was compared.",
    movementCount: 4n,
    authorizationCount: 4n,
    differenceCount: 0n,
  });
  expect((await world.get(connected.name)).state).toBe(AuthorizationState.COMMITTED);
  const { rows } = await world.server.database.pool.query("select from holdfast.reconciliation_matches");
  expect(rows).toEqual([]);
});

test("every kind of difference is found once, and one that an operator closes is none any more", async () => {
  const made = await makeDifferences();
  const { run, differences } = await compared();
  const of = (kind: number) => differences.filter((one) => one.kind === kind);
  expect(of(Kind.AUTHORIZATION_MISSING)).toMatchObject([
    { authorization: "", vendorReference: made.nobody.id, vendorAmount: { amount: "7" } },
  ]);
  expect(of(Kind.CONTRADICTION).map((one) => [one.authorization, one.vendorReference])).toContainEqual([
    made.voided.name,
    made.late.id,
  ]);
  expect(of(Kind.AMOUNT_DIFFERS)).toMatchObject([
    { authorization: made.other.name, authorizedAmount: { amount: "1" }, vendorAmount: { amount: "49" } },
  ]);
  expect(of(Kind.MOVEMENT_MISSING)).toMatchObject([{ authorization: made.missing.name, vendorReference: "ch_gone" }]);
  expect(of(Kind.UNSETTLED)).toMatchObject([{ authorization: made.doubt.name }]);
  expect(run.differenceCount).toBe(BigInt(differences.length));
  const { contradictions } = await world.server.admin.listContradictions({});
  const late = contradictions.find(({ vendorReference }) => vendorReference === made.late.id);
  expect(late?.authorization).toBe(made.voided.name);
  await world.server.admin.closeContradiction({ name: late?.name ?? "", reason: "refunded" });
  const again = await compared();
  expect(again.differences.some(({ vendorReference }) => vendorReference === made.late.id)).toBe(false);
});

test("a run goes on after a vendor that was away, page by page, and is started once per request id", async () => {
  for (let n = 0; n < 2; n += 1) await committed();
  for (let n = 0; n < 130; n += 1)
    await world.plain.charges.create({ amount: 100, currency: "usd", source: "tok_visa" });
  await world.advance(1000);
  const down = world.simulator.fault({ mode: "drop_before_execute", match: { method: "GET" }, times: 10_000 });
  const requestId = "a".repeat(32);
  const { admin } = world.server;
  const { reconciliationRun: started } = await admin.startReconciliationRun({ vendor: "stripe", requestId });
  const { reconciliationRun: repeated } = await admin.startReconciliationRun({ vendor: "stripe", requestId });
  expect(repeated?.name).toBe(started?.name);
  await expect
    .poll(
      async () => (await admin.getReconciliationRun({ name: started?.name ?? "" })).reconciliationRun?.message ?? "",
    )
    .toContain("tried again");
  down.remove();
  await world.advance(60_000);
  expect(await finished(started?.name)).toMatchObject({ movementCount: 2n, differenceCount: 0n });
  const listed = await admin.listReconciliationRuns({});
  expect(listed.reconciliationRuns.map(({ name }) => name)).toEqual([started?.name]);
});

test("a run fails when its credential is deleted, and none is started without one", async () => {
  const { admin } = world.server;
  world.simulator.fault({ mode: "drop_before_execute", match: { method: "GET" }, times: 10_000 });
  const { reconciliationRun } = await admin.startReconciliationRun({ vendor: "stripe" });
  await admin.deleteVendorCredential({ name: "vendorCredentials/stripe", reason: "gone" });
  expect(await finished(reconciliationRun?.name)).toMatchObject({
    state: ReconciliationRunState.FAILED,
    message: "The vendor credential was deleted.",
  });
  await expect(admin.startReconciliationRun({ vendor: "stripe" })).rejects.toThrow(/no credential/);
});

describe("the command", () => {
  async function command(...args: string[]) {
    let out = "";
    let err = "";
    const code = await runCommand(["reconcile", ...args], {
      env: { HOLDFAST_URL: world.server.apps[0]?.url, HOLDFAST_OPERATOR_TOKEN: world.server.operatorToken },
      out: { write: (text) => (out += text) },
      err: { write: (text) => (err += text), isTTY: true },
      input: () => Promise.resolve(""),
      local: () => Promise.reject(new Error("not local")),
    });
    return { code: code ?? 0, out, err };
  }

  test("ends with 0 where both sides agree, with 3 where they differ, and with another code where it could not", async () => {
    await committed();
    const agreed = await command("--since", "24h");
    expect(agreed).toMatchObject({ code: 0 });
    expect(agreed.out).toContain("Everything was compared.");
    await makeDifferences();
    const differs = await command();
    expect(differs.code).toBe(3);
    expect(differs.out).toContain("movement missing");
    for (const line of differs.out.split("\n")) expect(line.length).toBeLessThanOrEqual(80);
    const json = await command("--json");
    expect(json.code).toBe(3);
    expect(JSON.parse(json.out)).toMatchObject({ reconciliation_run: { state: "RECONCILIATION_RUN_STATE_DONE" } });
    expect((await command("--vendor", "twilio")).code).toBe(67);
    expect((await command("--since", "yesterday")).code).toBe(64);
  });
});

test("the SDK reports what its own vault key does not agree on", async () => {
  const made = await makeDifferences();
  const holdfast = createHoldfast({ baseUrl: world.server.apps[0]?.url ?? "", vaultKey: world.token });
  const since = new Date(world.simulator.now() - 3_600_000);
  const { differences, complete } = await holdfast.reconcile(world.plain, { since });
  await holdfast.close();
  expect(complete).toBe(true);
  const kinds = Object.groupBy(differences, ({ kind }) => kind);
  expect(kinds.MOVEMENT_MISSING).toMatchObject([{ authorization: made.missing.name, vendorReference: "ch_gone" }]);
  expect(kinds.AMOUNT_DIFFERS).toMatchObject([{ authorization: made.other.name, authorized: { amount: "1" } }]);
  expect(kinds.UNSETTLED).toMatchObject([{ authorization: made.doubt.name }]);
  expect(kinds.CONTRADICTION?.some(({ vendorReference }) => vendorReference === made.late.id)).toBe(true);
  expect(differences.some(({ vendorReference }) => vendorReference === made.nobody.id)).toBe(false);
});
