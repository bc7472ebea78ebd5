import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from "vitest";
import { ownsVendorObjects, rememberVendorObjects, vendorObjectOwner } from "../../server/store/vendor-object.ts";
import { bindVendorReference } from "../../server/store/spend.ts";
import { attempt, type Granting, openGranting } from "../support/granting.ts";
import { openPaused, type Paused } from "../support/paused.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";

let database: TestDatabase;
let granting: Granting;
let paused: Paused;

beforeAll(async () => {
  database = await createTestDatabase({ pool: { max: 20 } });
});
afterAll(() => database.close());
beforeEach(async () => {
  granting = await openGranting(database.pool);
  paused = await openPaused(database.pool);
});
afterEach(() => paused.release());

const place = { vendor: "stripe", vendorAccount: "" };
const remember = (vaultKeyId: string, ...objectIds: string[]) =>
  rememberVendorObjects(database.pool, granting.workspace, place, { vaultKeyId, objectIds });
const owner = (objectId: string, where = place, workspace = granting.workspace) =>
  vendorObjectOwner(database.pool, workspace, where, objectId);

test("an object belongs to the key that has made it, in its account and workspace only", async () => {
  await remember("main", "pi_1", "cus_1");
  expect(await owner("pi_1")).toBe("main");
  expect(await owner("cus_1")).toBe("main");
  expect(await owner("pi_2")).toBeUndefined();
  expect(await owner("PI_1")).toBeUndefined();
  expect(await owner("pi_1", { ...place, vendorAccount: "acct_1" })).toBeUndefined();
  expect(await owner("pi_1", { ...place, vendor: "twilio" })).toBeUndefined();
  expect(await owner("pi_1", place, (await openGranting(database.pool)).workspace)).toBeUndefined();
});

test("the first key that says so stays the owner, and what is new beside it is written down", async () => {
  await remember("main", "pi_1");
  await remember("other", "pi_1", "pi_2", "pi_2");
  await remember("other");
  expect([await owner("pi_1"), await owner("pi_2")]).toEqual(["main", "other"]);
});

test("a key owns what it has made, not what its spends are bound to, and all of a list or nothing", async () => {
  const owns = (vaultKeyId: string, objectIds: string[], where = place) =>
    ownsVendorObjects(database.pool, granting.workspace, where, { vaultKeyId, objectIds });
  const attemptId = attempt();
  const authorization = await granting.grant({ attemptId, settlement: "TWO_STEP" });
  await bindVendorReference(database.pool, granting.workspace, {
    vaultKeyId: "main",
    authorization,
    attemptId,
    vendorReference: "pi_bound",
    vendorState: "",
    followForMs: 3_600_000,
    traceId: "",
  });
  await remember("main", "pi_1");
  await remember("other", "pi_2", "pi_1");
  expect(await owns("main", ["pi_1", "pi_1"])).toBe(true);
  expect(await owns("main", ["pi_1", "pi_bound"])).toBe(false);
  expect(await owns("other", ["pi_2"])).toBe(true);
  expect(await owns("other", ["pi_2", "pi_1"])).toBe(false);
  expect(await owns("other", ["pi_bound"])).toBe(false);
  expect(await owns("main", ["pi_nobody"])).toBe(false);
  expect(await owns("main", ["pi_1"], { ...place, vendorAccount: "acct_1" })).toBe(false);
});

test("of two at once the one that commits first is the owner", async () => {
  await rememberVendorObjects(paused.client, granting.workspace, place, { vaultKeyId: "main", objectIds: ["pi_1"] });
  const second = remember("other", "pi_1");
  await paused.expectBlocking(second);
  await paused.commit();
  await second;
  expect(await owner("pi_1")).toBe("main");
});
