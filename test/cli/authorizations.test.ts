import { AuthorizationState } from "@holdfast/api/holdfast/v1/spend_pb";
import { afterAll, beforeAll, expect, test } from "vitest";
import { startTestServer, type TestServer } from "../support/server.ts";
import { expectFits, field, granted, stateOf, type Terminal, terminalOf } from "./terminal.ts";

let server: TestServer;
let terminal: Terminal;
let token: string;

beforeAll(async () => {
  server = await startTestServer();
  terminal = terminalOf(server);
  token = await server.vaultKey("billing");
  await server.cap("all", "1000000");
});
afterAll(() => server.close());

test("authorizations are listed by state, customer, period and key", async () => {
  const held = await granted(server, token, { customerId: "cust_list" });
  await granted(server, token, { customerId: "cust_list", purpose: "usage", inDoubt: true });
  await granted(server, token, { customerId: "cust_list", billingPeriod: "2026-10" });
  const all = await terminal.ok("authorizations list --customer cust_list");
  expect(all).toMatch(/^GRANTED +CUSTOMER +PERIOD +AMOUNT +STATE/);
  expect(all.split("\n").filter((line) => line.includes("cust_list"))).toHaveLength(3);
  expect(all).toContain("49 usd");
  const doubtful = await terminal.ok("authorizations list --customer cust_list --state in-doubt");
  expect(doubtful.split("\n").filter((line) => line.endsWith("in-doubt"))).toHaveLength(1);
  const json = await terminal.json(
    "authorizations list --customer cust_list --period 2026-11 --state held --key billing",
  );
  expect(json.authorizations).toHaveLength(1);
  expect(json.authorizations[0]).toMatchObject({ name: held.name, spend: { customer_id: "cust_list" } });
  const first = await terminal.json("authorizations list --customer cust_list --limit 1");
  expect(first.authorizations).toHaveLength(1);
  expect(first.next_page_token).not.toBe("");
  expect(await terminal.ok("authorizations list --customer cust_list --limit 2")).toContain("more than 2");
});

test("one authorization is shown by its name or its id", async () => {
  const { name } = await granted(server, token, { customerId: "cust_show" });
  const out = await terminal.ok(`authorizations show ${name}`);
  expect(field(out, "authorization")).toBe(name);
  expect(field(out, "customer")).toBe("cust_show");
  expect(await terminal.ok(`authorizations show ${name.slice("authorizations/".length)}`)).toBe(out);
  expect((await terminal.json(`authorizations show ${name}`)).name).toBe(name);
});

test("what is in doubt is listed with what was tried, and settled on the operator's word", async () => {
  expect(await terminal.json("in-doubt list --limit 1")).toMatchObject({ total_count: "1" });
  const [charged, absent] = [
    await granted(server, token, { customerId: "cust_charged", inDoubt: true }),
    await granted(server, token, { customerId: "cust_absent", inDoubt: true }),
  ];
  const listed = await terminal.ok("in-doubt list");
  expect(listed).toMatch(/^3 in doubt, the oldest for \d+[sm]/);
  for (const { name } of [charged, absent]) expect(listed).toContain(name);
  const json = await terminal.json("in-doubt list --limit 1");
  expect(json).toMatchObject({ total_count: "3", oldest_age: expect.stringMatching(/s$/) });
  expect(await terminal.ok("in-doubt list --limit 1")).toContain("more than 1");

  const committed = await terminal.ok(
    `in-doubt resolve ${charged.name} --committed "49.00 usd" --reference pi_123 --reason "seen in the dashboard"`,
  );
  expect(field(committed, "state")).toBe("committed");
  expect(field(committed, "reference")).toBe("pi_123");
  expect(await stateOf(server, token, charged.name)).toBe(AuthorizationState.COMMITTED);
  const voided = await terminal.json(`in-doubt resolve ${absent.name} --voided --reason "confirmed in writing"`);
  expect(voided).toMatchObject({ void_evidence: "VOID_EVIDENCE_OPERATOR", void_reason: "confirmed in writing" });
  expect(await stateOf(server, token, absent.name)).toBe(AuthorizationState.VOIDED);
});

test("a resolution says one thing", async () => {
  const { name } = await granted(server, token, { inDoubt: true });
  for (const flags of ["--reason x", '--voided --committed "1 usd" --reason x', "--voided"]) {
    expect((await terminal.run(`in-doubt resolve ${name} ${flags}`)).code, flags).toBe(64);
  }
  expect(await stateOf(server, token, name)).toBe(AuthorizationState.IN_DOUBT);
});

test("a contradiction is listed, and closed once with a reason", async () => {
  expect(await terminal.ok("contradictions list")).toBe("No contradiction is open.\n");
  const { name } = await granted(server, token, { customerId: "cust_late", inDoubt: true });
  await terminal.ok(`in-doubt resolve ${name} --voided --reason test`);
  const amount = { currency: "usd", amount: "49" };
  const late = server.spend(token).commitSpend({ authorization: name, amount, vendorReference: "pi_late" });
  await expect(late).rejects.toThrow("kept as a contradiction");
  const listed = await terminal.ok("contradictions list");
  expect(listed).toMatch(/^1 open\./);
  expect(field(listed, "authorization")).toBe(name);
  const contradiction = field(listed, "contradiction");
  const closed = await terminal.ok(`contradictions close ${contradiction} --reason "refunded as re_1"`);
  expect(field(closed, "what was done")).toBe("refunded as re_1");
  expect(await terminal.ok("contradictions list")).toBe("No contradiction is open.\n");
  const json = await terminal.json("contradictions list --closed");
  expect(json.contradictions[0]).toMatchObject({ name: contradiction, close_reason: "refunded as re_1" });
});

// What a terminal would obey: an escape sequence, a carriage return, and letters that turn the reading direction.
const orders = "\u001b[2J\u001b]0;owned\u0007\r\n\u009b31m\u202e\u2066\u200f\u2028";
const raw = /[\p{Cc}\p{Cf}\u2028]/u;

test("nothing that a caller has chosen gives the terminal an order", async () => {
  // The contract refuses what is a control character; letters that turn the direction get through.
  const customers = [orders, "cust\u202egnp.exe", "a\u2066b", "c\u200fd", "e\u2028f", "g\u00adh", "i\u{e0041}j"];
  const stored: string[] = [];
  for (const customerId of customers) {
    const one = await granted(server, token, { customerId, inDoubt: true }).catch(() => undefined);
    if (one !== undefined) stored.push(one.name);
  }
  await server.database.pool.query("update holdfast.authorizations set customer_id = $1 where spend_key = $2", [
    orders.slice(0, 20),
    (stored[0] ?? (await granted(server, token)).name).slice("authorizations/".length).split("-")[0],
  ]);
  const lines = ["authorizations list", "in-doubt list", "audit tail --limit 60"];
  for (const line of [...lines, ...stored.map((name) => `authorizations show ${name}`)]) {
    const { code, out, err } = await terminal.run(line);
    expect({ line, code, err }).toEqual({ line, code: 0, err: "" });
    expect(raw.test(out.replaceAll("\n", "")), line).toBe(false);
    expectFits(out);
    const json = await terminal.run(`--json ${line}`);
    expect(raw.test(json.out.replaceAll("\n", "")), line).toBe(false);
  }
  const { authorizations } = await terminal.json("authorizations list --limit 200");
  const shown = new Set(authorizations.map((one: { spend: { customer_id: string } }) => one.spend.customer_id));
  expect(shown).toContain(orders.slice(0, 20));
});

test("an error message gives the terminal no order either", async () => {
  const { err } = await terminal.run(["keys", "show", "a\u001b[2Jb\u202e"]);
  expect(raw.test(err.replaceAll("\n", ""))).toBe(false);
  const usage = await terminal.run(["keys", "create", "x", "--daily-cap", "\u001b[2J"]);
  expect(usage.code).toBe(64);
  expect(raw.test(usage.err.replaceAll("\n", ""))).toBe(false);
});
