import { randomBytes } from "node:crypto";
import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { freePort } from "../support/free-port.ts";
import { startStripeSimulator, type StripeSimulator } from "../support/stripe-simulator/index.ts";
import { type Cluster, startCluster } from "./cluster.ts";
import { startLoad } from "./load.ts";

// Ten starts of a server; a guard against hanging only.
vi.setConfig({ testTimeout: 900_000, hookTimeout: 300_000 });

const secret = "sk_test_4eC39HqLyjWDarjtT1zdp7dc";
const madeKey = (): string => randomBytes(32).toString("base64");
const [before, after] = [madeKey(), madeKey()];

let simulator: StripeSimulator;
let cluster: Cluster;
let proxies: readonly number[];

beforeAll(async () => {
  simulator = await startStripeSimulator({ secrets: { [secret]: "acct_platform" } });
  proxies = [await freePort(), await freePort(), await freePort()];
  cluster = await startCluster("direct", (index) => ({
    HOLDFAST_CREDENTIAL_KEY: before,
    HOLDFAST_STRIPE_ORIGIN: simulator.url,
    HOLDFAST_STRIPE_PROXY_PORT: `${proxies[index]}`,
  }));
});
afterAll(async () => {
  await cluster?.close();
  await simulator?.close();
});

/** A charge through the proxy of one server. */
async function charge(proxy: number | undefined, customer: string) {
  const response = await fetch(`http://127.0.0.1:${proxy}/v1/charges`, {
    method: "POST",
    headers: {
      authorization: `Bearer ${cluster.policy.vaultKey}`,
      "holdfast-spend": `customer=${customer}; period=2026-11; purpose=rotation`,
    },
    body: new URLSearchParams({ amount: "100", currency: "usd", source: "tok_visa" }),
  });
  const { id } = (await response.json()) as { id?: string };
  return { status: response.status, id };
}

test("the key that encrypts is exchanged in three rounds of restarts, in which no call fails and every server can charge", async () => {
  await cluster.policy.admin.createVendorCredential({ vendorCredentialId: "stripe", vendor: "stripe", secret });
  const load = startLoad({
    vaultKey: cluster.policy.vaultKey,
    callers: 2,
    name: "meanwhile",
    to: { baseUrl: `http://127.0.0.1:${cluster.front.port}` },
  });
  const first = await charge(proxies[0], "first");
  expect(first.status).toBe(200);
  // Before the first round nobody may have the new key alone.
  const alone = { HOLDFAST_CREDENTIAL_KEY: after, HOLDFAST_CREDENTIAL_KEY_PREVIOUS: "" };
  expect(await cluster.refusal(alone)).toBe("87");
  let charged = 1;
  for (const [current, previous] of [
    [before, after],
    [after, before],
    [after, ""],
  ] as const) {
    for (const index of cluster.ports.keys()) {
      const env = { HOLDFAST_CREDENTIAL_KEY: current, HOLDFAST_CREDENTIAL_KEY_PREVIOUS: previous };
      expect(await cluster.replace(index, undefined, env)).toMatchObject({ how: 0 });
      await load.more(5);
      for (const proxy of proxies) {
        charged += 1;
        const customer = `c${charged}`;
        const one = await charge(proxy, customer);
        expect(one.status).toBe(200);
        // Whichever server has encrypted an answer, every other one gives it again, or the charge itself.
        for (const other of proxies) expect(await charge(other, customer)).toMatchObject({ status: 200, id: one.id });
        expect(await charge(proxy, "first")).toMatchObject({ status: 200, id: first.id });
      }
    }
  }
  await load.stop();
  expect(load.failures).toEqual([]);
  expect(simulator.movements().filter(({ kind }) => kind === "charge")).toHaveLength(charged);
  // The old key opens nothing any more.
  expect(await cluster.refusal({ HOLDFAST_CREDENTIAL_KEY: before })).toBe("87");
});
