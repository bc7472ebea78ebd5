import { type IncomingMessage, createServer, request as httpRequest, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import Stripe from "stripe";
import type { Drops, Vendor, VendorCharge } from "./vendor.ts";

/**
 * stripe-stateful-mock, a fake Stripe that others wrote, behind a small proxy: the mock cannot cut a connection.
 * The truth is the mock's own list of charges.
 */
export async function startMockVendor(mockPort: number): Promise<Vendor & { close(): Promise<void> }> {
  let drops: Drops | undefined;
  let accepted = 0;
  let dropped = 0;
  const server = createServer((message, response) => {
    forward(mockPort, message, response, (status) => {
      const isCharge = message.method === "POST" && message.url === "/v1/charges" && status === 200;
      if (drops === undefined || !isCharge) return false;
      accepted += 1;
      if (accepted % drops.everyNth !== 0 || dropped >= drops.times) return false;
      dropped += 1;
      return true;
    });
  });
  server.keepAliveTimeout = 120_000;
  await new Promise<void>((resolve) => {
    server.listen(0, "127.0.0.1", resolve);
  });
  return {
    name: "stripe-stateful-mock",
    port: (server.address() as AddressInfo).port,
    charges: () => listCharges(mockPort),
    dropConnections(next) {
      [drops, accepted, dropped] = [next, 0, 0];
      return Promise.resolve();
    },
    endDrops() {
      drops = undefined;
      return Promise.resolve(dropped);
    },
    // The mock remembers its keys for ever.
    advance: () => Promise.resolve(),
    async close() {
      server.closeAllConnections();
      await new Promise((resolve) => {
        server.close(resolve);
      });
    },
  };
}

function forward(
  port: number,
  message: IncomingMessage,
  response: ServerResponse,
  isCut: (status: number) => boolean,
): void {
  const { method, url, headers } = message;
  const upstream = httpRequest({ host: "127.0.0.1", port, method, path: url, headers }, (answer) => {
    const chunks: Buffer[] = [];
    answer.on("data", (chunk: Buffer) => chunks.push(chunk));
    answer.on("end", () => {
      const status = answer.statusCode ?? 502;
      const body = Buffer.concat(chunks);
      response.writeHead(status, answer.headers);
      if (isCut(status)) response.write(body.subarray(0, body.length / 2), () => message.socket.destroy());
      else response.end(body);
    });
  });
  upstream.on("error", () => response.destroy());
  message.pipe(upstream);
}

async function listCharges(port: number): Promise<readonly VendorCharge[]> {
  const stripe = new Stripe("sk_test_demo", { host: "127.0.0.1", port, protocol: "http", telemetry: false });
  const charges: VendorCharge[] = [];
  for await (const { id, metadata, amount, paid } of stripe.charges.list({ limit: 100 })) {
    if (paid) charges.push({ id, customerId: metadata["customer_id"] ?? "", cents: amount });
  }
  return charges;
}
