import { once } from "node:events";
import { type AddressInfo, createServer, type Server, type Socket } from "node:net";
import { createClient } from "@connectrpc/connect";
import { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { Disposition } from "@holdfast/api/holdfast/v1/spend_pb";
import { afterEach, expect, test } from "vitest";
import { startApp } from "../../server/app.ts";
import { readConfig } from "../../server/config.ts";
import { createPolicy, transportOf } from "../crash/policy.ts";
import { createTestDatabase } from "../support/postgres.ts";
import { operatorToken } from "./server-process.ts";
import { dollar } from "./spend-call.ts";

const closers: (() => unknown)[] = [];
afterEach(async () => {
  for (const closer of closers.splice(0).toReversed()) await closer();
});

/** A collector that treats every connection alike. Counts them. */
async function startCollector(onConnection: (socket: Socket) => void): Promise<{ url: string; connections(): number }> {
  const sockets = new Set<Socket>();
  let connections = 0;
  const server: Server = createServer((socket) => {
    connections += 1;
    sockets.add(socket);
    socket.on("error", () => {});
    onConnection(socket);
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  closers.push(() => {
    server.close();
    for (const socket of sockets) socket.destroy();
  });
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, connections: () => connections };
}

// Node keeps the process-wide tracer of one server at a time, so each case has a server and a database of its own.
test.each<[string, number, (socket: Socket) => void]>([
  // More calls than the queue of spans holds.
  ["accepts and does not answer", 1_500, (socket) => void socket.resume()],
  ["reads nothing at all", 200, (socket) => void socket.pause()],
  ["resets every connection", 200, (socket) => void socket.once("data", () => socket.resetAndDestroy())],
])(
  "a collector that %s: every call is answered while an export is stuck, and the server still stops",
  async (_, calls, how) => {
    const collector = await startCollector(how);
    const database = await createTestDatabase();
    closers.push(() => database.close());
    const config = {
      ...readConfig({}, []),
      port: 0,
      logLevel: "silent",
      operatorToken,
      otlpEndpoint: collector.url,
      shutdownGraceMs: 1_000,
    } as const;
    const app = await startApp(config, { connection: database.connection, fsyncOff: "allowed" });
    try {
      const policy = await createPolicy(app.url, operatorToken, "1000000");
      const spends = createClient(SpendControlService, transportOf(app.url, policy.vaultKey));
      // An export is under way from here on.
      await spends.authorizeSpend(dollar("first"));
      await expect.poll(() => collector.connections()).toBeGreaterThan(0);
      let granted = 0;
      for (let round = 0; round < calls / 100; round += 1) {
        const requests = Array.from({ length: 100 }, (__, n) => dollar(`c${round}-${n}`));
        const answers = await Promise.all(requests.map((request) => spends.authorizeSpend(request)));
        granted += answers.filter(({ disposition }) => disposition === Disposition.GRANTED).length;
      }
      expect(granted).toBe(calls);
    } finally {
      await app.close();
    }
  },
);
