import { once } from "node:events";
import { connect, type Socket } from "node:net";
import { createClient } from "@connectrpc/connect";
import { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { Disposition } from "@holdfast/api/holdfast/v1/spend_pb";
import { afterAll, beforeAll, expect, test } from "vitest";
import { createPolicy, type Policy, transportOf } from "../crash/policy.ts";
import { type DurablePostgres, startDurablePostgres } from "./durable-postgres.ts";
import { operatorToken, type ServerProcess, startServerProcess } from "./server-process.ts";
import { dollar } from "./spend-call.ts";

let postgres: DurablePostgres;
let server: ServerProcess;
let policy: Policy;
const sockets: Socket[] = [];

beforeAll(async () => {
  postgres = await startDurablePostgres();
  server = await startServerProcess({ connection: postgres.connection, openFiles: 64 });
  policy = await createPolicy(server.url, operatorToken);
});
afterAll(async () => {
  for (const socket of sockets) socket.destroy();
  await server?.end("SIGTERM");
  await postgres?.close();
});

/** Resolves when the connection is open or refused. */
async function open(port: number): Promise<void> {
  const socket = connect({ host: "127.0.0.1", port });
  sockets.push(socket);
  socket.on("error", () => {});
  await Promise.race([once(socket, "connect"), once(socket, "close")]).catch(() => {});
}

test("more connections than it may have open files: the process stays up, and serves again when they are gone", async () => {
  const spends = () => createClient(SpendControlService, transportOf(server.url, policy.vaultKey));
  expect(await spends().authorizeSpend(dollar("before"))).toMatchObject({ disposition: Disposition.GRANTED });
  const port = Number(new URL(server.url).port);
  await Promise.all(Array.from({ length: 200 }, () => open(port)));
  // What is too much was closed by the server, and nothing else was.
  await expect
    .poll(() => sockets.filter((socket) => socket.destroyed || socket.readableEnded).length)
    .toBeGreaterThan(100);
  expect(sockets.filter((socket) => !socket.destroyed && !socket.readableEnded).length).toBeGreaterThan(0);
  expect(server.child.exitCode).toBe(null);
  const starved = spends()
    .authorizeSpend(dollar("starved"), { timeoutMs: 5_000 })
    .then(
      ({ disposition }) => disposition === Disposition.GRANTED,
      () => true,
    );
  expect(await starved).toBe(true);
  for (const socket of sockets.splice(0)) socket.destroy();
  const answered = async () =>
    await spends()
      .authorizeSpend(dollar("after"), { timeoutMs: 20_000 })
      .then(
        ({ disposition }) => disposition === Disposition.GRANTED || disposition === Disposition.IN_PROGRESS,
        () => false,
      );
  await expect.poll(answered).toBe(true);
  expect(server.child.exitCode).toBe(null);
});
