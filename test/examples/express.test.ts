import type { Server } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, beforeEach, expect, it } from "vitest";
import { createShop, type Order } from "../../sdk/examples/express-endpoint.ts";
import { oneEach, payers, startWorld, type World } from "./world.ts";

let world: World;
const servers: Server[] = [];
beforeEach(async () => {
  world = await startWorld();
});
afterEach(async () => {
  for (const server of servers.splice(0)) {
    server.closeAllConnections();
    server.close();
  }
  await world.close();
});

const orders = new Map<string, Order>(
  payers(3).map((payer, index) => [`order_${index + 1}`, { ...payer, id: `order_${index + 1}` }]),
);

/** Starts a shop of its own, as each replica is one, and gives the address of an order's payment. */
async function startShop(findOrder = (id: string) => Promise.resolve(orders.get(id))): Promise<(id: string) => string> {
  const shop = createShop({ stripe: world.client().stripe, findOrder });
  const server = await new Promise<Server>((resolve) => {
    const started = shop.listen(0, "127.0.0.1", () => resolve(started));
  });
  servers.push(server);
  return (id) => `http://127.0.0.1:${(server.address() as AddressInfo).port}/orders/${id}/payment`;
}

async function post(url: string, signal?: AbortSignal): Promise<{ status: number; body: unknown }> {
  const response = await fetch(url, { method: "POST", ...(signal === undefined ? {} : { signal }) });
  return { status: response.status, body: await response.json() };
}

it("a client that gives up and asks again, at another replica, pays the order once", async () => {
  const [first, second] = [await startShop(), await startShop()];
  const confirming = world.simulator.fault({ match: { path: /\/confirm$/ }, mode: "hold_after_execute" });
  const client = new AbortController();
  const given = post(first("order_1"), client.signal).catch((error: unknown) => error);
  await confirming.arrivals();
  client.abort();
  expect(await given).toMatchObject({ name: "AbortError" });
  const again = post(second("order_1"));
  confirming.release();
  const { status, body } = await again;
  expect([status, body]).toMatchObject([200, { status: "succeeded" }]);
  expect(await post(first("order_1"))).toEqual({ status, body });
  expect(world.charges()).toEqual(oneEach(1));
});

it("a button that is pressed five times pays once, and everybody who waits gets the same payment", async () => {
  const shops = [await startShop(), await startShop()];
  const answers = await Promise.all(Array.from({ length: 5 }, (_, n) => post(shops[n % 2]?.("order_1") ?? "")));
  expect(new Set(answers.map(({ body }) => JSON.stringify(body))).size).toBe(1);
  expect(answers.map(({ status }) => status)).toEqual([200, 200, 200, 200, 200]);
  expect(world.charges()).toEqual(oneEach(1));
});

it("an answer says whether to ask again", async () => {
  const order = orders.get("order_1");
  if (order === undefined) throw new Error("There is one.");
  const shop = await startShop((id) => {
    if (id === "dear") return Promise.resolve({ ...order, id, amount: 200_000 });
    return Promise.resolve(id === "card" ? { ...order, id, paymentMethod: "pm_card_chargeDeclined" } : undefined);
  });
  expect((await post(shop("card"))).status).toBe(402);
  expect((await post(shop("dear"))).status).toBe(403);
  expect((await post(shop("none"))).status).toBe(404);
  expect(world.charges()).toEqual({});
});
