import { once } from "node:events";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { NotChargedError, SpendInDoubtError } from "@holdfast/sdk";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { billingPeriod, purpose } from "../crash/billing-call.ts";
import { rejection } from "../sdk/setup.ts";
import { HOUR_MS, openTill, type Till } from "./till.ts";

/** A vendor that sends a message for every request it sees, and knows no keys. */
interface Plain {
  readonly messages: string[];
  fault: "none" | "reset before" | "reset after" | "error after" | "refuse";
}

let till: Till;
let server: Server;
const vendor: Plain = { messages: [], fault: "none" };
beforeAll(async () => {
  till = await openTill();
  server = createServer((request, response) => {
    request.resume().once("end", () => {
      const to = request.headers["x-to"] as string;
      if (vendor.fault === "reset before") return void response.destroy();
      if (vendor.fault === "refuse") return void response.writeHead(400).end("{}");
      vendor.messages.push(to);
      if (vendor.fault === "reset after") return void response.destroy();
      response.writeHead(vendor.fault === "error after" ? 500 : 201).end(JSON.stringify({ sid: `SM_${to}` }));
    });
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
});
afterAll(async () => {
  server.closeAllConnections();
  server.close();
  await till.close();
});

let key = "";
async function send(to: string): Promise<{ vendorReference: string }> {
  key ||= await till.server.vaultKey("sms", { vendor: "twilio", allowedEndpoints: ["POST /messages"] });
  const { holdfast } = till.clerk({ vaultKey: key });
  const what = { amount: "0.0079", currency: "usd", vendor: "twilio", endpoint: "POST /messages" };
  return holdfast.spend({ customerId: to, billingPeriod, purpose }, what, async (grant) => {
    grant.assertHeld();
    const { port } = server.address() as AddressInfo;
    const answer = await fetch(`http://127.0.0.1:${port}/messages`, { method: "POST", headers: { "x-to": to } });
    if (answer.status === 400) throw new NotChargedError({ vendorStatus: 400 });
    if (!answer.ok) throw new Error(`the vendor answered ${answer.status}`);
    return { vendorReference: ((await answer.json()) as { sid: string }).sid };
  });
}

const sentTo = (to: string) => vendor.messages.filter((one) => one === to).length;

describe("a vendor that knows no idempotency", () => {
  test.each([
    ["reset before", 0],
    ["reset after", 1],
    ["error after", 1],
  ] as const)("%s: sent once, in doubt, never sent again by itself, settled by an operator", async (fault, sent) => {
    const to = fault.replace(" ", "-");
    vendor.fault = fault;
    const error = await rejection(send(to)).finally(() => {
      vendor.fault = "none";
    });
    expect(error).toBeInstanceOf(SpendInDoubtError);
    const held = (await till.usage()).held;
    // Run again at once, after the hold, and a week later.
    for (const ms of [0, HOUR_MS, 168 * HOUR_MS]) {
      await till.advance(ms);
      expect(await rejection(send(to))).toBeInstanceOf(SpendInDoubtError);
    }
    expect(sentTo(to)).toBe(sent);
    expect((await till.usage()).held).toBe(held);
    const name = (error as SpendInDoubtError).authorization ?? "";
    const money = { currency: "usd", amount: "0.0079" };
    await till.server.admin.resolveAuthorization({
      name,
      reason: "looked it up in the vendor's log",
      resolution:
        sent === 1
          ? { case: "committed", value: { amount: money, vendorReference: `SM_${to}` } }
          : { case: "voided", value: {} },
    });
    const again = await send(to).catch((reason: unknown) => reason);
    if (sent === 1) expect(again).toMatchObject({ vendorReference: `SM_${to}`, alreadyCommitted: true });
    else expect(again).toMatchObject({ code: "holdfast_spend_already_failed", retryAfterGeneration: 1 });
    expect(sentTo(to)).toBe(sent);
  });

  test("refuses: given back, and never sent again without being asked to", async () => {
    vendor.fault = "refuse";
    expect(await rejection(send("refused"))).toBeInstanceOf(NotChargedError);
    vendor.fault = "none";
    expect(await rejection(send("refused"))).toMatchObject({ code: "holdfast_spend_already_failed" });
    expect(sentTo("refused")).toBe(0);
  });

  test("twenty processes for one message at once: one is sent", async () => {
    const results = await Promise.all(Array.from({ length: 20 }, () => send("many")));
    expect(new Set(results.map(({ vendorReference }) => vendorReference))).toEqual(new Set(["SM_many"]));
    expect(sentTo("many")).toBe(1);
  });
});
