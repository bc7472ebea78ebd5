import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { closeSync, constants, openSync, readSync, writeSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createClient } from "@connectrpc/connect";
import { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { Disposition } from "@holdfast/api/holdfast/v1/spend_pb";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { createLogDestination } from "../../server/log-destination.ts";
import { createPolicy, transportOf } from "../crash/policy.ts";
import { type DurablePostgres, startDurablePostgres } from "./durable-postgres.ts";
import { operatorToken, serveCommand } from "./server-process.ts";
import { dollar } from "./spend-call.ts";

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "holdfast-log-"));
});
afterAll(() => rm(folder, { recursive: true, force: true }));

/** A pipe that is full. `writing` blocks, as a container's does; `reading` does not. */
function fullPipe(name: string): { readonly reading: number; readonly writing: number } {
  const path = join(folder, name);
  execFileSync("mkfifo", [path]);
  const reading = openSync(path, constants.O_RDWR | constants.O_NONBLOCK);
  // The last single bytes too, so that not even the shortest line fits.
  for (const size of [4096, 1]) {
    try {
      for (;;) writeSync(reading, Buffer.alloc(size, 46));
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "EAGAIN") throw error;
    }
  }
  return { reading, writing: openSync(path, "w") };
}

function readAll(fd: number): string {
  const chunks: Buffer[] = [];
  const chunk = Buffer.alloc(65_536);
  try {
    for (;;) chunks.push(Buffer.from(chunk.subarray(0, readSync(fd, chunk))));
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "EAGAIN") throw error;
  }
  return Buffer.concat(chunks).toString().replaceAll(/^\.+/g, "");
}

describe("a destination of log lines", () => {
  test("keeps what a full pipe does not take, drops what is too much, and says how much", async () => {
    const { reading, writing } = fullPipe("destination");
    const destination = createLogDestination(writing);
    destination.write("first\n");
    const long = `${"x".repeat(299_999)}\n`;
    for (let n = 0; n < 5; n += 1) destination.write(long);
    let text = "";
    // It tries again by itself; the pipe takes 64 KiB at a time.
    await expect
      .poll(() => {
        text += readAll(reading);
        return text.length;
      })
      .toBe("first\n".length + 3 * long.length);
    destination.write("last\n");
    await expect
      .poll(() => {
        text += readAll(reading);
        return text.endsWith("last\n");
      })
      .toBe(true);
    expect(text.split("\n").at(-3)).toContain('"dropped":2');
    closeSync(reading);
    closeSync(writing);
  });

  test("gives up what a full disk does not take", () => {
    const full = openSync("/dev/full", "w");
    const destination = createLogDestination(full);
    for (let n = 0; n < 3; n += 1) destination.write("lost\n");
    closeSync(full);
  });
});

describe("a server whose log", () => {
  let postgres: DurablePostgres;
  beforeAll(async () => {
    postgres = await startDurablePostgres();
  });
  afterAll(() => postgres.close());

  async function freePort(): Promise<number> {
    const server = createServer().listen(0, "127.0.0.1");
    await once(server, "listening");
    const { port } = server.address() as { port: number };
    server.close();
    await once(server, "close");
    return port;
  }

  async function expectServing(standardError: number): Promise<void> {
    const port = await freePort();
    const url = `http://127.0.0.1:${port}`;
    const env = { HOLDFAST_PORT: `${port}`, HOLDFAST_LOG_LEVEL: "trace" };
    const { program, args, env: whole } = serveCommand({ connection: postgres.connection, env });
    const child = spawn(program, args, { env: whole, stdio: ["ignore", "ignore", standardError] });
    try {
      const health = async () => {
        const init = { method: "POST", headers: { "content-type": "application/json" }, body: "{}" };
        return (await fetch(`${url}/grpc.health.v1.Health/Check`, init).catch(() => undefined))?.status;
      };
      await expect.poll(health).toBe(200);
      const policy = await createPolicy(url, operatorToken).catch(() => undefined);
      const key = policy?.vaultKey ?? vaultKey;
      vaultKey = key;
      const spends = createClient(SpendControlService, transportOf(url, key));
      const customers = Array.from({ length: 20 }, (_, n) => `${standardError}-${n}`);
      for (const customer of customers) {
        expect(await spends.authorizeSpend(dollar(customer))).toMatchObject({ disposition: Disposition.GRANTED });
      }
      child.kill("SIGTERM");
      expect(await once(child, "exit")).toEqual([0, null]);
    } finally {
      child.kill("SIGKILL");
    }
  }
  let vaultKey = "";

  test("goes into a pipe that nobody reads: it starts, answers and stops, and the log goes on when it is read", async () => {
    const { reading, writing } = fullPipe("server");
    await expectServing(writing);
    closeSync(writing);
    closeSync(reading);
  });

  test("goes onto a full disk: it starts, answers and stops", async () => {
    const full = openSync("/dev/full", "w");
    await expectServing(full);
    closeSync(full);
  });
});
