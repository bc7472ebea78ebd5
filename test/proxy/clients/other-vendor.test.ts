import { spawn } from "node:child_process";
import { once } from "node:events";
import { createServer, request, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { createInterface } from "node:readline";
import Stripe from "stripe";
import { afterAll, beforeAll, expect, test } from "vitest";
import { type ProxyWorld, startProxyWorld } from "../world.ts";
import { realClient } from "./stripe-node.ts";

// stripe-stateful-mock, a Stripe that others wrote, behind the proxy: it has charges, refunds and idempotency keys. What
// it has not, such as the account that a stored secret is tried on, is asked of the simulator.

const mock = spawn(process.execPath, [join(import.meta.dirname, "../../demo/mock-stripe-process.ts")], {
  env: { ...process.env, LOG_LEVEL: "silent" },
  stdio: ["ignore", "pipe", "inherit"],
});
let world: ProxyWorld;
let direct: Stripe;
let split: Server;

/** Sends to the mock what is about charges and refunds, and everything else to the simulator. */
async function startSplit(mockPort: number, simulatorPort: number): Promise<Server> {
  const server = createServer((message, response) => {
    const { method, url = "", headers } = message;
    const port = /^\/v1\/(?:charges|refunds)\b/.test(url) ? mockPort : simulatorPort;
    const upstream = request({ host: "127.0.0.1", port, method, path: url, headers }, (answer) => {
      response.writeHead(answer.statusCode ?? 502, answer.headers);
      answer.pipe(response);
    });
    upstream.on("error", () => response.destroy());
    message.pipe(upstream);
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  return server;
}

beforeAll(async () => {
  const [line] = (await once(createInterface(mock.stdout), "line")) as [string];
  direct = new Stripe("sk_test_direct", { host: "127.0.0.1", port: Number(line), protocol: "http", telemetry: false });
  world = await startProxyWorld({
    origin: async ({ port }) => {
      split = await startSplit(Number(line), port);
      return `http://127.0.0.1:${(split.address() as AddressInfo).port}`;
    },
  });
});

afterAll(async () => {
  mock.kill("SIGKILL");
  await world.close();
  split.closeAllConnections();
  split.close();
});

const CHARGE = { amount: 4900, currency: "usd", source: "tok_visa" } as const;

async function open(id: string): Promise<Stripe> {
  return realClient(Stripe, { url: world.url, token: await world.key(id) }).stripe;
}

test("a charge is made once there, whoever asks again, and refunded once", async () => {
  const stripe = await open("once");
  const options = { idempotencyKey: "order-1" };
  const all = await Promise.all([1, 2, 3].map(() => stripe.charges.create(CHARGE, options)));
  all.push(await stripe.charges.create(CHARGE, options));
  expect(new Set(all.map(({ id }) => id)).size).toBe(1);
  const charge = all[0]?.id ?? "";
  for (let n = 0; n < 2; n += 1) await stripe.refunds.create({ charge }, { idempotencyKey: "back-1" });
  expect(await direct.charges.retrieve(charge)).toMatchObject({ paid: true, amount_refunded: 4900 });
  expect((await direct.charges.list({ limit: 100 })).data).toHaveLength(1);
});

test("a decline there is a decline here, and its repeat another answer of it, not another try", async () => {
  const stripe = await open("declined");
  for (let n = 0; n < 2; n += 1) {
    const declined = stripe.charges.create({ ...CHARGE, source: "tok_chargeDeclined" }, { idempotencyKey: "order-1" });
    await expect(declined).rejects.toMatchObject({ type: "StripeCardError", statusCode: 402, code: "card_declined" });
  }
  const failed = (await direct.charges.list({ limit: 100 })).data.filter(({ status }) => status === "failed");
  expect(failed.length).toBeLessThanOrEqual(1);
});

test("what a cap has no room for never gets there", async () => {
  const stripe = await open("capped");
  const before = (await direct.charges.list({ limit: 100 })).data.length;
  const large = stripe.charges.create({ ...CHARGE, amount: 200_000 });
  await expect(large).rejects.toMatchObject({ type: "StripePermissionError", code: "spend_cap_exceeded" });
  expect((await direct.charges.list({ limit: 100 })).data).toHaveLength(before);
});
