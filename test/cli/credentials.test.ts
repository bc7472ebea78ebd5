import { afterAll, beforeAll, expect, test } from "vitest";
import { otherSecret, platform, secret, startVendorWorld, strangersSecret, type VendorWorld } from "../vendor/world.ts";
import { field, type Terminal, terminalOf } from "./terminal.ts";

const secrets: Record<string, string> = {
  [secret]: platform,
  [otherSecret]: platform,
  [strangersSecret]: "acct_stranger",
};
let world: VendorWorld;
let terminal: Terminal;

beforeAll(async () => {
  world = await startVendorWorld({ simulator: { secrets } });
  terminal = terminalOf(world.server);
});
afterAll(() => world.close());

test("a credential is stored from standard input, tried, exchanged, listed and deleted, and never shown", async () => {
  const all: string[] = [];
  const ok = async (line: string, input?: string): Promise<string> => {
    const out = await terminal.ok(line, input === undefined ? {} : { input });
    all.push(out);
    return out;
  };
  const created = await ok("credentials create main --vendor stripe", `${secret}\n`);
  expect(field(created, "account")).toBe("acct_platform");
  expect(await ok("credentials test main")).not.toBe("");
  expect(field(await ok("credentials rotate main", otherSecret), "rotated")).not.toBe("");
  expect(await ok("credentials list")).toMatch(/^main +stripe +acct_platform /m);
  const json = await terminal.run("--json credentials list");
  all.push(json.out);
  expect(JSON.parse(json.out)).toMatchObject({ vendor_credentials: [{ name: "vendorCredentials/main" }] });
  const refused = await terminal.run("credentials rotate main", { input: strangersSecret });
  expect(refused.code).toBe(65);
  all.push(refused.err);
  expect(await ok('credentials delete main --reason "replaced"')).toBe("vendorCredentials/main is deleted.\n");
  expect(await ok("credentials list")).toBe("Nothing.\n");
  for (const hidden of [secret, otherSecret, strangersSecret]) expect(all.join("")).not.toContain(hidden);
});

test("a credential that the vendor refuses is exit code 4 of the test, and is wrong to the doctor", async () => {
  await terminal.ok("credentials create main --vendor stripe", { input: secret });
  delete secrets[secret];
  const tried = await terminal.run("credentials test main");
  expect(tried).toMatchObject({ code: 4, err: "holdfast: The vendor does not accept the credential.\n" });
  const { code, out } = await terminal.run("doctor");
  expect(code).toBe(4);
  expect(out).toMatch(/^wrong {2}credentials: refused by their vendor: vendorCredentials\/main/m);
  secrets[secret] = platform;
  await terminal.ok("credentials test main");
  await terminal.ok("credentials delete main --reason test");
});

test("no secret on standard input is a usage error, and nothing is sent", async () => {
  const { code, err } = await terminal.run("credentials create none --vendor stripe", { input: " \n" });
  expect(code).toBe(64);
  expect(err).toContain("standard input");
  expect(await terminal.ok("credentials list")).toBe("Nothing.\n");
});

test("reconcile waits for its run, reports what differs, and ends with 3 where something does", async () => {
  await terminal.ok("credentials create main --vendor stripe", { input: secret });
  const clean = await terminal.run("reconcile --since 48h");
  expect(clean.code).toBe(0);
  expect(field(clean.out, "differences")).toBe("0");
  await world.plain.charges.create({
    amount: 700,
    currency: "usd",
    source: "tok_visa",
    metadata: { holdfast_authorization: `${"0".repeat(36)}-1` },
  });
  const differing = await terminal.run("reconcile --since 48h");
  expect(differing).toMatchObject({ code: 3, err: "holdfast: 1 difference.\n" });
  expect(field(differing.out, "vendor shows")).toBe("7 usd");
});
