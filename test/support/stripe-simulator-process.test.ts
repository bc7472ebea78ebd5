import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import Stripe from "stripe";
import { afterAll, beforeAll, expect, test } from "vitest";
import { readMovements } from "./stripe-simulator/movements.ts";

const folder = mkdtempSync(join(tmpdir(), "stripe-simulator-process-"));
const file = join(folder, "movements.jsonl");
const main = join(import.meta.dirname, "stripe-simulator/main.ts");
let child: ChildProcess;
let url: string;
let stripe: Stripe;

beforeAll(async () => {
  child = spawn(process.execPath, [main, "--file", file], { stdio: ["ignore", "pipe", "inherit"] });
  if (child.stdout === null) throw new Error("The simulator has no output.");
  const [line] = (await once(createInterface(child.stdout), "line")) as [string];
  url = `http://127.0.0.1:${line}`;
  stripe = new Stripe("sk_test_1", {
    host: "127.0.0.1",
    port: Number(line),
    protocol: "http",
    telemetry: false,
    maxNetworkRetries: 0,
  });
});
afterAll(() => {
  child.kill("SIGKILL");
  rmSync(folder, { recursive: true, force: true });
});

async function control(method: string, path: string, body?: object): Promise<{ status: number; json: unknown }> {
  const response = await fetch(`${url}/_simulator/${path}`, {
    method,
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  return { status: response.status, json: await response.json() };
}

function charge(key: string): Promise<Stripe.Charge> {
  return stripe.charges.create({ amount: 4900, currency: "usd", source: "tok_visa" }, { idempotencyKey: key });
}

test("movements are in the file, and both logs can be read over HTTP", async () => {
  const { id } = await charge("p1");
  expect(readMovements(file)).toMatchObject([{ id, idempotency_key: "p1" }]);
  expect((await control("GET", "movements")).json).toEqual(readMovements(file));
  expect((await control("GET", "requests")).json).toMatchObject([
    {
      method: "POST",
      path: "/v1/charges",
      key: "p1",
      replayed: false,
      status: 200,
      body: expect.stringMatching(/4900/),
    },
  ]);
});

test("faults are set, awaited, released and removed over HTTP", async () => {
  const { json } = await control("POST", "faults", { mode: "hold", match: { path: "^/v1/ch", key: "p2" } });
  const { id } = json as { id: string };
  const held = charge("p2");
  expect((await control("GET", `faults/${id}/arrivals?count=1`)).json).toMatchObject([{ key: "p2", fault: "hold" }]);
  expect(readMovements(file)).toHaveLength(1);
  await control("POST", `faults/${id}/release`);
  await held;
  expect(readMovements(file)).toHaveLength(2);

  const second = (await control("POST", "faults", { mode: "error_500_before", times: 5 })).json as { id: string };
  await expect(charge("p3")).rejects.toMatchObject({ statusCode: 500 });
  await control("DELETE", `faults/${second.id}`);
  await charge("p4");
  await control("POST", "faults", { mode: "error_500_before", times: 5 });
  await control("DELETE", "faults");
  await charge("p5");
});

test("a mistake in a control call is told", async () => {
  expect(await control("POST", "faults", { mode: "explode" })).toMatchObject({
    status: 400,
    json: { error: expect.stringContaining("mode must be one of") },
  });
  expect((await control("POST", "faults", { mode: "hold", time: 2 })).status).toBe(400);
  expect((await control("POST", "faults/fault_99/release")).status).toBe(400);
  expect((await control("POST", "clock", { advance: 1 })).status).toBe(400);
  expect((await control("GET", "nothing")).status).toBe(404);
});

test("the clock is moved over HTTP", async () => {
  const first = await charge("p6");
  const { now } = (await control("POST", "clock", { advanceMs: 25 * 3_600_000 })).json as { now: number };
  expect(now - Date.now()).toBeGreaterThan(24 * 3_600_000);
  expect((await charge("p6")).id).not.toBe(first.id);
  await control("POST", "clock", { setTime: 1_800_000_000_000 });
  expect((await charge("p7")).created).toBeGreaterThanOrEqual(1_800_000_000);
  expect((await charge("p7")).created).toBeLessThan(1_800_000_060);
});

test("a browser and a bank act over HTTP", async () => {
  const intent = await stripe.paymentIntents.create({ amount: 100, currency: "usd" });
  const confirm = `payment_intents/${intent.id}/confirm`;
  expect((await control("POST", confirm, { paymentMethod: "pm_card_visa" })).json).toMatchObject({
    status: "succeeded",
  });
  expect((await control("POST", confirm)).status).toBe(400);
  const slow = await stripe.paymentIntents.create({
    amount: 100,
    currency: "usd",
    payment_method: "pm_processing",
    confirm: true,
  });
  const settle = `payment_intents/${slow.id}/settle`;
  expect((await control("POST", settle, { outcome: "succeeded" })).json).toMatchObject({ status: "succeeded" });
});

test("what browsers, banks and the clock do is told over HTTP", async () => {
  const item = { price_data: { currency: "usd", unit_amount: 600, product: "prod_1" }, quantity: 1 };
  const { id } = await stripe.checkout.sessions.create({ mode: "payment", line_items: [item] });
  const declined = await control("POST", `checkout_sessions/${id}/complete`, {
    paymentMethod: "pm_card_chargeDeclined",
  });
  expect(declined.status).toBe(402);
  expect((await control("POST", `checkout_sessions/${id}/complete`)).json).toMatchObject({ status: "complete" });
  const link = await stripe.paymentLinks.create({
    line_items: [
      { price: (await stripe.prices.create({ currency: "usd", unit_amount: 70, product: "prod_1" })).id, quantity: 1 },
    ],
  });
  for (const customer of ["cus_1", "cus_2"]) {
    expect((await control("POST", `payment_links/${link.id}/pay`, { customer })).status).toBe(200);
  }
  const payout = await stripe.payouts.create({ amount: 5, currency: "usd" });
  expect((await control("POST", `payouts/${payout.id}/settle`, { outcome: "failed" })).json).toMatchObject({
    status: "failed",
  });
  const asked = await stripe.paymentIntents.create({
    amount: 9,
    currency: "usd",
    payment_method: "pm_card_authenticationRequired",
    confirm: true,
  });
  expect((await control("POST", `payment_intents/${asked.id}/fail`)).json).toMatchObject({
    status: "requires_payment_method",
  });
  const invoice = await stripe.invoices.create({ customer: "cus_1", auto_advance: true });
  await stripe.invoiceItems.create({ customer: "cus_1", invoice: invoice.id, amount: 44, currency: "usd" });
  await control("POST", "clock", { advanceMs: 2 * 3_600_000 });
  expect(await stripe.invoices.retrieve(invoice.id)).toMatchObject({ status: "paid" });
  expect(
    readMovements(file)
      .slice(-6)
      .map(({ kind, amount }) => [kind, amount]),
  ).toEqual([
    ["charge", 600],
    ["charge", 70],
    ["charge", 70],
    ["payout", 5],
    ["payout_return", 5],
    ["charge", 44],
  ]);
  const placed = (await control("POST", "objects", { object: "dispute", charge: "ch_1", status: "needs_response" }))
    .json;
  const { id: dispute } = placed as { id: string };
  expect(await stripe.disputes.close(dispute)).toMatchObject({ status: "lost" });
  expect((await control("POST", "objects", {})).status).toBe(400);
  expect((await control("POST", `invoices/${invoice.id}/pay`)).status).toBe(404);
});

test("memory outlives a client that dies in the middle of a request, and the process ends cleanly", async () => {
  const before = readMovements(file).length;
  await control("POST", "faults", { mode: "slow_reply", afterMs: 60_000 });
  const script = `
    await fetch("${url}/v1/charges", {
      method: "POST",
      headers: { authorization: "Bearer sk_test_1", "idempotency-key": "p8", "content-type": "application/x-www-form-urlencoded" },
      body: "amount=4900&currency=usd&source=tok_visa",
    });`;
  const killed = spawn(process.execPath, ["--input-type=module", "-e", script], { stdio: "ignore" });
  await expect.poll(() => readMovements(file).length).toBe(before + 1);
  killed.kill("SIGKILL");
  await once(killed, "exit");
  const { id } = await charge("p8");
  expect(readMovements(file).at(-1)).toMatchObject({ id, idempotency_key: "p8" });
  expect(readMovements(file)).toHaveLength(before + 1);

  child.kill("SIGTERM");
  expect(await once(child, "exit")).toEqual([0, null]);
});

test("without a file it says what to give", async () => {
  const bare = spawn(process.execPath, [main], { stdio: ["ignore", "ignore", "pipe"] });
  const [output, [code]] = await Promise.all([once(bare.stderr, "data"), once(bare, "exit")]);
  expect(String(output[0])).toContain("--file");
  expect(code).toBe(2);
});
