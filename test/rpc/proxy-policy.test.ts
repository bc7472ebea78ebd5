import { fromJsonString } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import { ErrorInfoSchema } from "@holdfast/api/google/rpc/error_details_pb";
import { ObjectAccess, ProxyPolicySchema } from "@holdfast/api/holdfast/v1/vault_key_pb";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { getVaultKey } from "../../server/store/vault-key.ts";
import { startTestServer, type TestServer } from "../support/server.ts";

let server: TestServer;
let keys = 0;
/** A new id for each test. */
let id: string;
let name: string;

beforeAll(async () => {
  server = await startTestServer();
});
afterAll(() => server.close());
beforeEach(() => {
  keys += 1;
  id = `key${keys}`;
  name = `vaultKeys/${id}`;
});

const intents = "POST /v1/payment_intents";
const payouts = "POST /v1/payouts";
const accounts = "POST /v1/accounts/:id";
const allowedEndpoints = [intents, payouts, accounts, "POST /v1/:kind/:id/pay", "GET /v1/charges/:id"];
const policy = { vendor: "stripe", allowedEndpoints, billingPeriods: ["2026-11"] };
const identity = { endpoint: intents, customer: "body.customer", purpose: "fixed:sub" };

const whole = {
  identities: [
    identity,
    { endpoint: "POST /v1/invoices/:id/pay", customer: "fixed:acme", purpose: "body.metadata[job]" },
  ],
  retryDeclinedAfter: { seconds: 3600n, nanos: 5_000_000 },
  keylessEndpoints: [payouts],
  apiVersions: ["2026-01-28.clover", "2020-08-27"],
  connectedAccounts: ["acct_1"],
  objectAccess: ObjectAccess.ANY,
  allowLists: true,
  allowExpand: true,
  unguardedEndpoints: [accounts],
  keepDeclined: true,
};

async function refusal(call: Promise<unknown>) {
  const error = await call.then(
    () => expect.fail("the call was not refused"),
    (cause: unknown) => ConnectError.from(cause),
  );
  const info = error.findDetails(ErrorInfoSchema)[0];
  return { code: error.code, reason: info?.reason, field: info?.metadata["field"], message: error.rawMessage };
}

type Proxy = Parameters<TestServer["admin"]["createVaultKey"]>[0]["vaultKey"] extends infer K | undefined
  ? K extends { proxy?: infer P }
    ? NonNullable<P>
    : never
  : never;

const create = (proxy: Proxy | undefined, more: object = {}) =>
  server.admin.createVaultKey({
    vaultKeyId: id,
    vaultKey: { ...policy, ...more, ...(proxy === undefined ? {} : { proxy }) },
  });
const update = (change: object, ...paths: string[]) =>
  server.admin.updateVaultKey({ vaultKey: { name, ...change }, updateMask: { paths } });
const read = async () => (await server.admin.getVaultKey({ name })).vaultKey?.proxy;

describe("the proxy's part of a policy", () => {
  test("is stored whole and shown again", async () => {
    const made = await create(whole);
    expect(made.vaultKey?.proxy).toMatchObject(whole);
    expect(await read()).toMatchObject(whole);
    const { vaultKeys } = await server.admin.listVaultKeys({ pageSize: 200 });
    expect(vaultKeys.find((key) => key.name === name)?.proxy).toMatchObject(whole);
  });

  test("that is empty has its defaults, and a key without one shows none", async () => {
    await create({});
    expect(await read()).toMatchObject({
      identities: [],
      retryDeclinedAfter: { seconds: 86_400n, nanos: 0 },
      objectAccess: ObjectAccess.OWN,
      allowLists: false,
      keepDeclined: false,
    });
    id += "b";
    name += "b";
    await create(undefined);
    expect(await read()).toBeUndefined();
  });

  test("is replaced and taken away by its path in the mask, and by no other", async () => {
    await create(whole);
    await update({ labels: { team: "billing" }, proxy: {} }, "labels");
    expect(await read()).toMatchObject(whole);
    await update({ proxy: { identities: [identity] } }, "proxy");
    expect(await read()).toMatchObject({ identities: [identity], keylessEndpoints: [], allowLists: false });
    await update({}, "proxy");
    expect(await read()).toBeUndefined();
  });

  test("is in the audit of both changes", async () => {
    await create({ identities: [identity], allowLists: true });
    await update({ proxy: { apiVersions: ["2020-08-27"] } }, "proxy");
    const { auditEvents } = await server.admin.listAuditEvents({ newestFirst: true, pageSize: 10, kind: "vault_key" });
    const details = auditEvents.map(({ detail }) => JSON.stringify(detail)).filter((text) => text.includes(`"${id}"`));
    expect(details).toHaveLength(2);
    expect(details[0]).toContain('"api_versions":["2020-08-27"]');
    expect(details[1]).toContain('"purpose":"fixed:sub"');
    expect(details[1]).toContain('"allow_lists":true');
  });

  test("of a row that an older server wrote has the defaults of what it lacks", async () => {
    await create(whole);
    const { pool } = server.database;
    await pool.query(`update holdfast.vault_keys set proxy = '{"allowLists": true}' where vault_key_id = $1`, [id]);
    const { rows } = await pool.query<{ workspace_id: string }>(
      "select workspace_id from holdfast.vault_keys where vault_key_id = $1",
      [id],
    );
    const key = await getVaultKey(pool, rows[0]?.workspace_id ?? "", id);
    expect(key?.proxy).toMatchObject({ allowLists: true, objectAccess: "OWN", retryDeclinedAfterMs: 86_400_000 });
  });
});

describe("is refused by its field", () => {
  const at = (place: string) => `vault_key.proxy.${place}`;
  const cases: readonly (readonly [string, Proxy, object, string])[] = [
    ["an identity without a period of the key", { identities: [identity] }, { billingPeriods: [] }, "identities"],
    ["an identity with two periods", { identities: [identity] }, { billingPeriods: ["a", "b"] }, "identities"],
    ["an endpoint that has two identities", { identities: [identity, identity] }, {}, "identities[1].endpoint"],
    [
      "an identity where the key may not go",
      { identities: [{ ...identity, endpoint: "POST /v1/charges" }] },
      {},
      "identities[0].endpoint",
    ],
    [
      "an identity of a read",
      { identities: [{ ...identity, endpoint: "GET /v1/charges/:id" }] },
      {},
      "identities[0].endpoint",
    ],
    [
      "an identity under a name that is not Stripe's",
      { identities: [{ ...identity, endpoint: "POST /v1/:kind/:id/pay" }] },
      {},
      "identities[0].endpoint",
    ],
    [
      "a customer whom the key may not charge",
      { identities: [{ ...identity, customer: "fixed:eve" }] },
      { customers: ["adam"] },
      "identities[0].customer",
    ],
    ["a purpose the key may not have", { identities: [identity] }, { purposes: ["x"] }, "identities[0].purpose"],
    ["a keyless read", { keylessEndpoints: ["GET /v1/charges/:id"] }, {}, "keyless_endpoints[0]"],
    ["a keyless endpoint that is not allowed", { keylessEndpoints: ["POST /v1/charges"] }, {}, "keyless_endpoints[0]"],
    [
      "a keyless endpoint with an identity",
      { identities: [identity], keylessEndpoints: [payouts, intents] },
      {},
      "keyless_endpoints[1]",
    ],
    ["an unguarded charge", { unguardedEndpoints: [accounts, intents] }, {}, "unguarded_endpoints[1]"],
    ["an unguarded payout", { unguardedEndpoints: [payouts] }, {}, "unguarded_endpoints[0]"],
    ["an unguarded refund", { unguardedEndpoints: ["POST /v1/refunds"] }, {}, "unguarded_endpoints[0]"],
    ["an unguarded write of nobody", { unguardedEndpoints: ["POST /v1/nothings"] }, {}, "unguarded_endpoints[0]"],
    [
      "an unguarded write that the key may not do",
      { unguardedEndpoints: ["POST /v1/account_links"] },
      {},
      "unguarded_endpoints[0]",
    ],
    [
      "an endpoint of another vendor",
      { unguardedEndpoints: [accounts] },
      { vendor: "twilio" },
      "unguarded_endpoints[0]",
    ],
    ["a wait of 59 seconds", { retryDeclinedAfter: { seconds: 59n } }, {}, "retry_declined_after"],
    ["a wait of 367 days", { retryDeclinedAfter: { seconds: 367n * 86_400n } }, {}, "retry_declined_after"],
    ["an access that is none", { objectAccess: 9 as ObjectAccess }, {}, "object_access"],
    ["eleven versions", { apiVersions: Array.from({ length: 11 }, (_, n) => `2020-08-${10 + n}`) }, {}, "api_versions"],
    [
      "101 accounts",
      { connectedAccounts: Array.from({ length: 101 }, (_, n) => `acct_${n}`) },
      {},
      "connected_accounts",
    ],
  ];

  test.each(cases)("%s, at creation and by an update, and nothing is changed", async (_what, proxy, more, field) => {
    const expected = { code: Code.InvalidArgument, reason: "INVALID_FIELD", field: at(field) };
    expect(await refusal(create(proxy, more))).toMatchObject(expected);
    expect(await refusal(server.admin.getVaultKey({ name }))).toMatchObject({ code: Code.NotFound });
    await create({ allowLists: true }, more);
    expect(await refusal(update({ proxy }, "proxy"))).toMatchObject(expected);
    expect(await read()).toMatchObject({ allowLists: true, identities: [] });
  });

  test.each([
    ["another period beside it", { billingPeriods: ["2026-11", "2026-12"] }, "billing_periods", "identities"],
    ["no period", { billingPeriods: [] }, "billing_periods", "identities"],
    [
      "an endpoint taken away",
      { allowedEndpoints: [payouts, accounts] },
      "allowed_endpoints",
      "identities[0].endpoint",
    ],
    ["another purpose", { purposes: ["x"] }, "purposes", "identities[0].purpose"],
  ])("what stands already, when the rest changes to %s", async (_what, change, path, field) => {
    await create({ identities: [identity], keylessEndpoints: [payouts] });
    expect(await refusal(update(change, path))).toMatchObject({ reason: "INVALID_FIELD", field: at(field) });
    const { vaultKey } = await server.admin.getVaultKey({ name });
    expect(vaultKey).toMatchObject({ allowedEndpoints, billingPeriods: ["2026-11"], purposes: [] });
    // Both at once fit.
    await update({ ...change, proxy: {} }, path, "proxy");
  });

  test("a field that the contract does not know", () => {
    expect(() => fromJsonString(ProxyPolicySchema, '{"allow_everything": true}')).toThrow(/allow_everything/);
  });
});
