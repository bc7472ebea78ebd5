import http from "node:http";
import type { KillSwitchTarget } from "@holdfast/api/holdfast/v1/kill_switch_pb";
import { afterAll, beforeAll, beforeEach, describe, expect, test, vi } from "vitest";
import { charge, payment, type ProxyWorld, secret, startProxyWorld } from "./world.ts";
import { startVendorFront, type VendorFront } from "./vendor-front.ts";

let world: ProxyWorld;
let front: VendorFront;
let token: string;
let secrets = 0;

beforeAll(async () => {
  world = await startProxyWorld({
    origin: async ({ url }) => {
      front = await startVendorFront(url);
      return front.url;
    },
  });
  token = await world.key("main");
});
beforeEach(() => {
  front.seen.length = 0;
  world.simulator.clearFaults();
});
afterAll(async () => {
  await world.close();
  front.close();
});

const name = "vendorCredentials/stripe";

async function rotate(): Promise<string> {
  secrets += 1;
  const next = `${secret}${secrets}`;
  await world.server.admin.rotateVendorCredential({ name, secret: next });
  return `Bearer ${next}`;
}

/** What the vendor got of requests to a path, as it was authenticated. */
const sentTo = (path: string) =>
  front.seen.filter(({ endpoint }) => endpoint.startsWith(`POST ${path}`)).map(({ authorization }) => authorization);

interface Answer {
  readonly status: number;
  readonly retry: string | undefined;
  // oxlint-disable-next-line typescript/no-explicit-any -- an answer of any shape
  readonly body: any;
}

/** A request whose head is judged before `between` runs, and whose body comes after that. */
function ask(
  path: string,
  fields: Readonly<Record<string, string>>,
  between: () => Promise<unknown> = () => Promise.resolve(),
  idempotencyKey = "1",
): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const body = new URLSearchParams(fields).toString();
    const request = http.request(`${world.url}${path}`, {
      method: "POST",
      headers: {
        authorization: `Bearer ${token}`,
        "content-type": "application/x-www-form-urlencoded",
        "content-length": body.length,
        "idempotency-key": idempotencyKey,
        expect: "100-continue",
      },
    });
    request.on("error", reject);
    // The proxy asks for the body when it has judged the head.
    request.on("continue", () => void between().then(() => request.end(body), reject));
    request.on("response", (response) => {
      let text = "";
      response.setEncoding("utf8");
      response.on("data", (chunk: string) => (text += chunk));
      response.on("end", () => {
        const retry = response.headers["stripe-should-retry"];
        resolve({
          status: response.statusCode ?? 0,
          retry: typeof retry === "string" ? retry : undefined,
          body: JSON.parse(text) as unknown,
        });
      });
    });
    request.flushHeaders();
  });
}

const missing = { status: 403, retry: "false", body: { error: { code: "vendor_credential_missing" } } };
const rotated = { status: 503, retry: "true", body: { error: { code: "vendor_credential_rotated" } } };

describe("a vendor's key that is exchanged while a body arrives", () => {
  test("is the one that a write without a grant is sent with", async () => {
    let current = "";
    const answer = await ask("/v1/customers", { name: "x" }, async () => (current = await rotate()));
    expect(answer.status).toBe(200);
    expect(sentTo("/v1/customers")).toEqual([current]);
  });

  test.each([
    ["/v1/charges", charge],
    ["/v1/payment_intents", payment],
  ] as const)(
    "ends a spend at %s before it is sent, and a repeat is charged with the new one",
    async (path, fields) => {
      const before = world.charges();
      let current = "";
      const key = `exchanged ${path}`;
      expect(await ask(path, fields, async () => (current = await rotate()), key)).toMatchObject(rotated);
      expect(sentTo(path)).toEqual([]);
      expect((await ask(path, fields, undefined, key)).status).toBe(200);
      expect(new Set(sentTo(path))).toEqual(new Set([current]));
      expect(world.charges() - before).toBe(1);
    },
  );

  test("ends a payment also between its steps, and a repeat goes on with it", async () => {
    const before = world.charges();
    const held = world.simulator.fault({ mode: "hold_after_execute", match: { path: "/v1/payment_intents" } });
    const first = ask("/v1/payment_intents", payment, undefined, "steps");
    await vi.waitUntil(() => sentTo("/v1/payment_intents").length === 1, { timeout: 30_000 });
    const current = await rotate();
    held.release();
    expect(await first).toMatchObject(rotated);
    expect(world.charges() - before).toBe(0);
    expect(await ask("/v1/payment_intents", payment, undefined, "steps")).toMatchObject({
      status: 200,
      body: { status: "succeeded" },
    });
    expect(sentTo("/v1/payment_intents/").at(-1)).toBe(current);
    expect(world.charges() - before).toBe(1);
  });
});

test.each([
  ["/v1/customers", { name: "x" }],
  ["/v1/charges", charge],
  ["/v1/payment_intents", payment],
] as const)("nothing is sent to %s with a key that is deleted while the body arrives", async (path, fields) => {
  const key = `deleted ${path}`;
  const remove = () => world.server.admin.deleteVendorCredential({ name, reason: "leaked" });
  expect(await ask(path, fields, remove, key)).toMatchObject(missing);
  expect(sentTo(path)).toEqual([]);
  await world.server.admin.createVendorCredential({ vendorCredentialId: "stripe", vendor: "stripe", secret });
  expect((await ask(path, fields, undefined, key)).status).toBe(200);
});

describe("a refusal names the kill switch and what it stops, and not its reason,", () => {
  const reason = "their words";
  async function engage(target: KillSwitchTarget["target"]) {
    const { killSwitch } = await world.server.admin.engageKillSwitch({ target: { target }, reason });
    const name = killSwitch?.name ?? "";
    return { name, release: () => world.server.admin.releaseKillSwitch({ name, reason: "over" }) };
  }

  test("at the head of a request", async () => {
    const engaged = await engage({ case: "workspace", value: true });
    const stopped = await world.ask("POST", "/v1/charges", { token, fields: charge });
    expect(stopped).toMatchObject({ status: 401, code: "kill_switch" });
    expect(stopped.body.error.message).toContain(`The kill switch ${engaged.name} stops every spend of the workspace`);
    expect(stopped.text).not.toContain(reason);
    await engaged.release();
  });

  test("right before the bytes", async () => {
    const held = world.simulator.fault({ mode: "hold_after_execute", match: { path: "/v1/payment_intents" } });
    const running = world.ask("POST", "/v1/payment_intents", {
      token,
      fields: payment,
      headers: { "holdfast-spend": "customer=c-1; period=p; purpose=x" },
    });
    await vi.waitUntil(() => sentTo("/v1/payment_intents").length === 1, { timeout: 30_000 });
    const engaged = await engage({ case: "customerId", value: "c-1" });
    held.release();
    const stopped = await running;
    expect(stopped).toMatchObject({ status: 401, code: "kill_switch" });
    expect(stopped.body.error.message).toContain(`The kill switch ${engaged.name} stops every spend of this customer`);
    expect(stopped.text).not.toContain(reason);
    await engaged.release();
  });
});
