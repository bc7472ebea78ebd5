import { CapEnforcement, CapState, CapWindow, DayOfWeek } from "@holdfast/api/holdfast/v1/cap_pb";
import { Direction } from "@holdfast/api/holdfast/v1/spend_pb";
import { afterAll, beforeAll, expect, test } from "vitest";
import { startTestServer, type TestServer } from "../support/server.ts";
import { field, granted, type Terminal, terminalOf } from "./terminal.ts";

let server: TestServer;
let terminal: Terminal;
let token: string;

beforeAll(async () => {
  server = await startTestServer();
  terminal = terminalOf(server);
  token = await server.vaultKey("billing");
});
afterAll(() => server.close());

async function capOf(id: string) {
  const { cap } = await server.admin.getCap({ name: `caps/${id}` });
  if (cap === undefined) throw new Error(`${id} is not there`);
  return cap;
}

test.each([
  [
    `month --limit "250000 usd" --window month --zone Europe/Berlin --anchor-day 15 --start-hour 6`,
    {
      limit: { currency: "usd", amount: "250000" },
      window: CapWindow.MONTH,
      timeZone: "Europe/Berlin",
      anchorDay: 15,
      startHour: 6,
    },
  ],
  [
    `counted --count 3 --window day --per-customer --shadow`,
    { spendCountLimit: 3n, perCustomer: true, enforcement: CapEnforcement.SHADOW },
  ],
  [
    `week --limit "1.5 EUR" --window week --week-start sunday`,
    { limit: { currency: "eur", amount: "1.50" }, weekStart: DayOfWeek.SUNDAY },
  ],
  [
    `year --limit "10 usd" --window year --anchor-month 4 --anchor-day 6`,
    { window: CapWindow.YEAR, anchorMonth: 4, anchorDay: 6 },
  ],
  [
    `fixed --limit "10 usd" --window fixed --from 2026-12-01 --to 2030-12-01T00:00:00+01:00`,
    {
      window: CapWindow.FIXED,
      startTime: { seconds: BigInt(Date.parse("2026-12-01") / 1000) },
      endTime: { seconds: BigInt(Date.parse("2030-11-30T23:00:00Z") / 1000) },
    },
  ],
  [
    `scoped --limit "10 usd" --window lifetime --key billing --vendor stripe --endpoint "POST /v1/charges" --customer c --purpose p --max-per-spend "2 usd"`,
    {
      scope: {
        vaultKey: "vaultKeys/billing",
        vendor: "stripe",
        endpoint: "POST /v1/charges",
        customerId: "c",
        purpose: "p",
      },
      maxPerSpend: { amount: "2" },
      enforcement: CapEnforcement.ENFORCE,
    },
  ],
  [`refunds --limit "10 usd" --window day --refunds`, { direction: Direction.REFUND }],
  [
    `restoring --limit "10 usd" --window billing-period --refunds-restore-headroom`,
    { window: CapWindow.BILLING_PERIOD, refundsRestoreHeadroom: true },
  ],
  [`attached --limit "10 usd" --window day --attached-only`, { attachedOnly: true }],
])("caps create %s", async (line, expected) => {
  const out = await terminal.ok(`caps create ${line}`);
  const id = line.split(" ")[0] ?? "";
  expect(field(out, "cap")).toBe(`caps/${id}`);
  expect(await capOf(id)).toMatchObject(expected);
  await terminal.ok(`caps archive ${id} --reason "it was tried"`);
  expect(await capOf(id)).toMatchObject({ state: CapState.ARCHIVED, archiveReason: "it was tried" });
});

test("a cap is shown with the counter of its window, of another window and of a customer", async () => {
  await terminal.ok('caps create all --limit "100 usd" --window month');
  await terminal.ok("caps create each --count 5 --window lifetime --per-customer");
  await granted(server, token, { customerId: "cust_1", amount: "49" });
  const out = await terminal.ok("caps show all");
  expect(field(out, "held")).toBe("49 usd");
  expect(field(out, "headroom")).toBe("51 usd");
  const json = await terminal.json("caps show caps/all");
  expect(json.usage).toMatchObject({ held: { currency: "usd", amount: "49" }, headroom: { amount: "51" } });
  expect(json.cap.name).toBe("caps/all");
  expect(field(await terminal.ok("caps show all --window 2020-01"), "held")).toBe("0 usd");
  expect(await terminal.ok("caps show each")).toContain("Name a --window or a --customer");
  const each = await terminal.ok("caps show each --customer cust_1");
  expect(field(each, "held")).toBe("1");
  expect(field(each, "headroom")).toBe("4");
});

test("an update changes the limit or the enforcement alone, and only where the etag is right", async () => {
  await terminal.ok('caps create moving --limit "10 usd" --window day --max-per-spend "3 usd" --shadow');
  await terminal.ok('caps update moving --limit "20 usd"');
  expect(await capOf("moving")).toMatchObject({
    limit: { amount: "20" },
    maxPerSpend: { amount: "3" },
    enforcement: CapEnforcement.SHADOW,
  });
  await terminal.ok("caps update moving --enforce --no-max-per-spend");
  const cap = await capOf("moving");
  expect(cap).toMatchObject({ limit: { amount: "20" }, enforcement: CapEnforcement.ENFORCE });
  expect(cap.maxPerSpend).toBeUndefined();
  await terminal.ok(`caps update moving --max-per-spend "4 usd" --etag ${cap.etag}`);
  expect(await terminal.run(`caps update moving --shadow --etag ${cap.etag}`)).toMatchObject({ code: 75 });
  for (const flags of ["", "--shadow --enforce"]) {
    expect((await terminal.run(`caps update moving ${flags}`)).code).toBe(64);
  }
});

test("a cap without a scope is made with a warning, one with a scope or in the shadow without", async () => {
  const out = await terminal.ok('caps create company --limit "10 eur" --window day', { columns: 400 });
  expect(out).toContain("caps/company counts eur and has no scope");
  expect(field(out, "warning")).not.toBe("");
  const quiet = [
    '--limit "1 eur" --purpose p',
    '--limit "1 eur" --shadow',
    "--count 1",
    '--limit "1 eur" --attached-only',
  ];
  for (const [n, flags] of quiet.entries()) {
    const { warnings, cap } = await terminal.json(`caps create quiet-${n} ${flags} --window day`);
    expect([cap.name, warnings]).toEqual([`caps/quiet-${n}`, undefined]);
  }
  expect((await terminal.json("caps update quiet-1 --enforce")).warnings).toHaveLength(1);
  for (const id of ["company", ...quiet.map((_, n) => `quiet-${n}`)]) {
    await terminal.ok(`caps archive ${id} --reason test`);
  }
});

test("the list fits, whatever the ids and scopes are", async () => {
  const long = `l${"o".repeat(50)}ng`;
  await terminal.ok(
    `caps create ${long} --limit "999999999999.999999 usd" --window year --zone America/Argentina/ComodRivadavia --anchor-month 4`,
  );
  await terminal.ok(
    `caps create wide --limit "1 usd" --window day --endpoint "POST /v1/payment_intents" --customer ${"x".repeat(100)} --per-customer`,
  );
  const out = await terminal.ok("caps list");
  // It cannot be a table any more: every value stands below the other, and none is cut.
  expect(out.replaceAll(/\s/g, "")).toContain("x".repeat(100));
  expect(out).toContain(long);
  await terminal.ok("caps list", { columns: 40 });
  await terminal.ok(`caps show ${long}`, { columns: 50 });
  await terminal.ok(`caps archive ${long} --reason test`);
  expect(await terminal.ok("caps list")).not.toContain(long);
  expect(await terminal.ok("caps list --archived")).toContain(long);
  const listed = await terminal.json("caps list --archived --limit 1");
  expect(listed.caps).toHaveLength(1);
  expect(listed.next_page_token).not.toBe("");
});
