import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { VaultKeyState } from "@holdfast/api/holdfast/v1/vault_key_pb";
import { afterAll, beforeAll, expect, test } from "vitest";
import { startTestServer, type TestServer } from "../support/server.ts";
import { expectFits, granted, type Terminal, terminalOf } from "./terminal.ts";

let server: TestServer;
let terminal: Terminal;
let folder: string;

beforeAll(async () => {
  server = await startTestServer();
  terminal = terminalOf(server);
  folder = await mkdtemp(join(tmpdir(), "holdfast-cli-"));
});
afterAll(async () => {
  await server.close();
  await rm(folder, { recursive: true, force: true });
});

async function keyOf(id: string) {
  const { vaultKey } = await server.admin.getVaultKey({ name: `vaultKeys/${id}` });
  if (vaultKey === undefined) throw new Error(`${id} is not there`);
  return vaultKey;
}

test("a new key has the policy of its flags, a daily cap of its own, and shows its token once", async () => {
  const out = await terminal.ok(
    `keys create nightly --vendor stripe --allow "POST /v1/payment_intents" --allow "POST /v1/charges"
     --daily-cap "11000.00 usd" --zone Europe/Berlin --period 2026-11 --purpose subscription --customer cust_1
     --max-per-spend "500 usd" --label team=billing --label tier=1=2 --expires 2030-12-31T23:00:00+01:00`,
  );
  expect(await keyOf("nightly")).toMatchObject({
    vendor: "stripe",
    allowedEndpoints: ["POST /v1/payment_intents", "POST /v1/charges"],
    billingPeriods: ["2026-11"],
    purposes: ["subscription"],
    customers: ["cust_1"],
    maxPerSpend: { currency: "usd", amount: "500" },
    labels: { team: "billing", tier: "1=2" },
    expireTime: { seconds: BigInt(Date.parse("2030-12-31T22:00:00Z") / 1000) },
  });
  const { cap } = await server.admin.getCap({ name: "caps/nightly-daily" });
  expect(cap).toMatchObject({ limit: { amount: "11000" }, timeZone: "Europe/Berlin" });
  expect(cap?.scope?.vaultKey).toBe("vaultKeys/nightly");
  const tokens = out.match(/vk_\w+/g) ?? [];
  expect(tokens).toHaveLength(1);
  expect(out.trimEnd().split("\n").at(-1)).toBe(tokens[0]);
  await expect(granted(server, tokens[0] ?? "", { customerId: "cust_1" })).resolves.toBeDefined();
});

test("no later command shows the token or what it is made of", async () => {
  const created = await terminal.json('keys create silent --vendor stripe --allow "POST /v1/charges"');
  const secret = String(created.token).split("_").at(-1) ?? "";
  expect(secret.length).toBeGreaterThan(20);
  for (const line of [
    "keys show silent",
    "keys list",
    "--json keys show silent",
    "--json keys list",
    "keys update silent --purpose a",
    "keys suspend silent --reason test",
    "keys resume silent --reason test",
    "keys revoke silent --reason test",
    "audit tail --limit 50",
    "--json audit tail --limit 50",
  ]) {
    const { code, out, err } = await terminal.run(line);
    expect({ line, code, shown: `${out}${err}`.includes(secret) }).toEqual({ line, code: 0, shown: false });
  }
});

const document = `vendor: stripe
daily_usd_cap: 11000.00
allowed_endpoints: ["POST /v1/charges", "GET /v1/charges/:id"]
expires_at: 2099-12-31T23:59:59Z
`;

test("--policy makes the key of a policy document", async () => {
  const file = join(folder, "policy.yaml");
  await writeFile(file, document);
  const out = await terminal.ok(["keys", "create", "fromfile", "--policy", file]);
  expect(out).toMatch(/^vk_\w+$/m);
  expect(await keyOf("fromfile")).toMatchObject({
    vendor: "stripe",
    allowedEndpoints: ["POST /v1/charges", "GET /v1/charges/:id"],
    expireTime: { seconds: BigInt(Date.parse("2099-12-31T23:59:59Z") / 1000) },
  });
  const { cap } = await server.admin.getCap({ name: "caps/fromfile-daily-usd" });
  expect(cap?.limit).toMatchObject({ currency: "usd", amount: "11000" });
});

test("a policy document with faults is refused with every line and field, and nothing is made", async () => {
  const file = join(folder, "wrong.yaml");
  await writeFile(file, `${document.replace("11000.00", "1e4")}vendors: x\n`);
  const { code, out, err } = await terminal.run(["keys", "create", "wrong", "--policy", file]);
  expect({ code, out }).toEqual({ code: 64, out: "" });
  expect(err).toMatch(/^line 2: daily_usd_cap /m);
  expect(err).toMatch(/^line 5: vendors .*did you mean vendor\?/m);
  await expect(keyOf("wrong")).rejects.toThrow();
  for (const line of [
    ["keys", "create", "wrong", "--policy", join(folder, "none.yaml")],
    ["keys", "create", "wrong", "--policy", file, "--vendor", "stripe"],
    ["keys", "create", "wrong", "--policy", file, "--label", "a=b"],
    ["keys", "create", "wrong"],
    ["keys", "create", "wrong", "--vendor", "stripe", "--zone", "UTC"],
  ]) {
    expect((await terminal.run(line)).code, line.join(" ")).toBe(64);
  }
});

test("an update changes what is given and nothing else", async () => {
  await server.vaultKey("changing", { maxPerSpend: { currency: "usd", amount: "5" }, purposes: ["a"] });
  await terminal.ok("keys update changing --label team=billing --purpose b --purpose c");
  expect(await keyOf("changing")).toMatchObject({
    labels: { team: "billing" },
    purposes: ["b", "c"],
    maxPerSpend: { amount: "5" },
  });
  await terminal.ok("keys update changing --no-max-per-spend --expires 2030-01-01");
  expect((await keyOf("changing")).maxPerSpend).toBeUndefined();
  await terminal.ok("keys update vaultKeys/changing --no-expires");
  expect((await keyOf("changing")).expireTime).toBeUndefined();
  const { etag } = await keyOf("changing");
  await terminal.ok(`keys update changing --purpose d --etag ${etag}`);
  expect(await terminal.run(`keys update changing --purpose e --etag ${etag}`)).toMatchObject({ code: 75 });
  expect((await terminal.run("keys update changing")).code).toBe(64);
  expect((await keyOf("changing")).purposes).toEqual(["d"]);
});

test("the key of a period has its cap at the expected total and the margin", async () => {
  const out = await terminal.ok(
    `keys period december --billing-period 2030-12 --vendor stripe --allow "POST /v1/payment_intents"
     --expected "100000 usd" --expires 2031-01-01 --margin 0.05 --purpose subscription --max-per-spend "10 usd"`,
  );
  expect(out).toContain("105000 usd");
  expect(out).toMatch(/^vk_\w+$/m);
  expect(await keyOf("december")).toMatchObject({ billingPeriods: ["2030-12"], purposes: ["subscription"] });
});

test("rotating shows a new token, and the old one goes on for the overlap", async () => {
  const old = await server.vaultKey("rotating");
  const out = await terminal.ok("keys rotate rotating --overlap 15m");
  const token = /^vk_\w+$/m.exec(out)?.[0] ?? "";
  expect(token).not.toBe(old);
  await server.cap("rotating-cap", "1000");
  for (const one of [old, token]) await expect(granted(server, one)).resolves.toBeDefined();
  expect(out).toContain("old token until");
  await server.vaultKey("ending");
  const ended = await terminal.json("keys rotate ending --overlap 0s");
  expect(ended.vault_key.previous_secret_expire_time).toBeUndefined();
  await expect(granted(server, ended.token)).resolves.toBeDefined();
});

test("suspending and revoking stop a key and list what is open", async () => {
  const token = await server.vaultKey("stopping");
  const open = await granted(server, token, { customerId: "cust_open" });
  const suspended = await terminal.ok('keys suspend stopping --reason "a wrong list"');
  expect(suspended).toContain("1 granted before is open and may still be charged:");
  expect(suspended).toContain("cust_open");
  expect(await keyOf("stopping")).toMatchObject({ state: VaultKeyState.SUSPENDED, reason: "a wrong list" });
  await terminal.ok("keys resume stopping --reason right");
  expect((await keyOf("stopping")).state).toBe(VaultKeyState.ACTIVE);
  const revoked = await terminal.json("keys revoke stopping --reason leaked");
  expect(revoked.open_authorizations[0].name).toBe(open.name);
  expect((await keyOf("stopping")).state).toBe(VaultKeyState.REVOKED);
  expect(await terminal.run("keys resume stopping --reason x")).toMatchObject({ code: 67 });
});

test("a list is a table that fits, goes over pages, and says when there is more", async () => {
  for (let n = 0; n < 205; n += 1) {
    await server.vaultKey(`many${String(n).padStart(3, "0")}`, {
      labels: { group: "many" },
      allowedEndpoints: ["POST /v1/payment_intents", "POST /v1/payment_intents/:id/confirm", "POST /v1/charges"],
    });
  }
  const all = await terminal.ok("keys list --label group=many --limit 300");
  expect(
    all.split("\n").filter((line) => line.startsWith("many0") || line.startsWith("many1") || line.startsWith("many2")),
  ).toHaveLength(205);
  expect(all).toMatch(/^KEY +STATE +VENDOR +ENDPOINTS/);
  const some = await terminal.ok("keys list --label group=many --limit 203");
  expect(
    some.split("\n").filter((line) => line.startsWith("many0") || line.startsWith("many1") || line.startsWith("many2")),
  ).toHaveLength(203);
  expect(some).toContain("there are more than 203");
  const page = await terminal.json("keys list --label group=many --limit 3");
  expect(page.vault_keys.map(({ name }: { name: string }) => name)).toEqual([
    "vaultKeys/many000",
    "vaultKeys/many001",
    "vaultKeys/many002",
  ]);
  expect(page.next_page_token).not.toBe("");
  expect((await terminal.json("keys list --label group=many --limit 300")).next_page_token).toBeUndefined();
  expect(await terminal.ok("keys list --label group=none")).toBe("Nothing.\n");
  expect(await terminal.json("keys list --label group=none")).toEqual({});
  const wide = await terminal.run("keys list --label group=many --limit 2", { columns: 200 });
  expectFits(wide.out, 160);
  expect(wide.out).toContain("POST /v1/payment_intents, POST /v1/payment_intents/:id/confirm");
});

test("what the proxy lets a key do comes from a file or from standard input, is shown, and is taken away", async () => {
  const file = join(folder, "proxy.json");
  const identity = { endpoint: "POST /v1/charges", customer: "body.customer", purpose: "fixed:usage" };
  await writeFile(file, JSON.stringify({ identities: [identity], retry_declined_after: "3600s" }));
  const created = `keys create proxied --vendor stripe --allow "POST /v1/charges" --period 2026-11 --proxy-policy ${file}`;
  expect(await terminal.ok(created)).toContain("fixed:usage");
  expect((await keyOf("proxied")).proxy).toMatchObject({
    identities: [identity],
    retryDeclinedAfter: { seconds: 3600n },
  });
  const input = '{"allow_lists": true, "object_access": "OBJECT_ACCESS_ANY"}';
  const shown = await terminal.json("keys update proxied --proxy-policy -", { input });
  expect(shown.proxy).toMatchObject({ allow_lists: true, object_access: "OBJECT_ACCESS_ANY" });
  expect((await keyOf("proxied")).proxy).toMatchObject({ identities: [], allowLists: true });
  await terminal.ok("keys update proxied --label team=billing");
  expect((await keyOf("proxied")).proxy).toMatchObject({ allowLists: true });
  await terminal.ok("keys update proxied --no-proxy-policy");
  expect((await keyOf("proxied")).proxy).toBeUndefined();
});

test.each([
  ["cannot be read", "/nowhere/proxy.json", "", "/nowhere/proxy.json, which cannot be read"],
  ["is no JSON", "-", "identities: []", "The standard input is no proxy policy"],
  ["has another field", "-", '{"allow_everything": true}', "allow_everything"],
])("a policy for the proxy that %s is a mistake of usage", async (_what, file, input, said) => {
  const ran = await terminal.run(`keys create none --vendor stripe --proxy-policy ${file}`, { input });
  expect(ran).toMatchObject({ code: 64 });
  expect(ran.err).toContain(said);
});

test("a policy document says everything about a key, and takes no policy for the proxy beside it", async () => {
  const file = join(folder, "alone.yaml");
  await writeFile(file, document);
  const ran = await terminal.run(`keys create alone --policy ${file} --proxy-policy -`, { input: "{}" });
  expect(ran).toMatchObject({ code: 64 });
});
