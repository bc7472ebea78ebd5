import { once } from "node:events";
import { type AddressInfo, createServer, type Server, type Socket } from "node:net";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { BillingCall, BillingKind, BillingOutcome } from "./billing-call.ts";
import { type LineProcess, startLineProcess } from "./line-process.ts";
import { startStage, type Stage } from "./stage.ts";

let stage: Stage;
let billing: LineProcess;
const closers: (() => void)[] = [];
beforeAll(async () => {
  [stage, billing] = await Promise.all([
    startStage(),
    Promise.resolve(startLineProcess(join(import.meta.dirname, "billing-process.ts"))),
  ]);
});
afterAll(async () => {
  await billing.kill();
  for (const close of closers) close();
  await stage.close();
});

const timeoutMs = 2_000;
/** Of a client that is told none: a call that ends sooner has ended by its own. */
const usualTimeoutMs = 30_000;

/** Has the billing process make a call, and hands out what the application saw. */
async function charge(id: string, options: Partial<BillingCall> = {}): Promise<BillingOutcome> {
  billing.tell({
    call: {
      id,
      kind: "two_step",
      baseUrl: stage.url,
      vaultKey: stage.policy.vaultKey,
      stripePort: stage.simulator.port,
      customerId: id,
      amount: 490,
      timeoutMs,
      vendorDeadlineMs: 20_000,
      holdMs: 60_000,
      ...options,
    },
  });
  return (await billing.said((line) => line["id"] === id && "outcome" in line))["outcome"] as BillingOutcome;
}

function requestsOf(customerId: string): number {
  return stage.simulator.requests().filter(({ params }) => params["customer"] === customerId).length;
}

async function listen(onConnection: (socket: Socket) => void): Promise<string> {
  const sockets = new Set<Socket>();
  const server: Server = createServer((socket) => {
    sockets.add(socket);
    socket.on("error", () => {});
    onConnection(socket);
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  closers.push(() => {
    server.close();
    for (const socket of sockets) socket.destroy();
  });
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

const unreachable: Record<string, () => Promise<string>> = {
  "refuses connections": async () => {
    const server = createServer().listen(0, "127.0.0.1");
    await once(server, "listening");
    const { port } = server.address() as AddressInfo;
    server.close();
    await once(server, "close");
    return `http://127.0.0.1:${port}`;
  },
  "accepts and never answers": () => listen(() => {}),
  "resets in the middle of the call": () =>
    listen((socket) => void socket.once("data", () => socket.resetAndDestroy())),
  "ends the connection in the middle of the call": () =>
    listen((socket) => void socket.once("data", () => socket.end())),
  "speaks another protocol": () =>
    listen((socket) => void socket.once("data", () => socket.end("HTTP/1.1 502 Bad Gateway\r\n\r\n<html>"))),
};

describe.each<BillingKind>(["two_step", "one_call"])("%s", (kind) => {
  test.each(Object.keys(unreachable))("a server that %s: a typed error in time, and nothing is sent", async (how) => {
    const id = `${kind}-${how.replaceAll(" ", "-")}`;
    const baseUrl = (await unreachable[how]?.()) ?? "";
    const outcome = await charge(id, { kind, baseUrl });
    expect(outcome).toMatchObject({ error: "HoldfastUnavailableError", code: "holdfast_unavailable" });
    expect(outcome.ms).toBeLessThan(usualTimeoutMs);
    expect(requestsOf(id)).toBe(0);
  });

  test("a denial is a typed error at once, asked for once, and nothing is sent", async () => {
    const id = `${kind}-denied`;
    const outcome = await charge(id, { kind, amount: 10_000_000, timeoutMs: 60_000 });
    expect(outcome).toMatchObject({ error: "SpendDeniedError", code: "holdfast_spend_denied" });
    expect(outcome.ms).toBeLessThan(60_000);
    const { rows } = await stage.pool.query<{ disposition: string }>(
      "select disposition from holdfast.audit_events where customer_id = $1",
      [id],
    );
    expect(rows).toEqual([{ disposition: "DENIED" }]);
    expect(requestsOf(id)).toBe(0);
  });
});

test("a server that is killed during the call: a typed error in time, and nothing is sent", async () => {
  const locker = await stage.pool.connect();
  locker.on("error", () => {});
  await locker.query("begin");
  await locker.query("select from holdfast.workspaces for no key update");
  // Long enough to be seen in the database, however slow this test is.
  const outcome = charge("killed-during-call", { timeoutMs: 10_000 });
  await expect
    .poll(async () => {
      const { rowCount } = await stage.pool.query(
        "select from pg_stat_activity where wait_event_type = 'Lock' and query like '/* authorize_batch */%'",
      );
      return rowCount;
    })
    .toBe(1);
  await stage.killServer();
  expect(await outcome).toMatchObject({ error: "HoldfastUnavailableError" });
  expect((await outcome).ms).toBeLessThan(usualTimeoutMs);
  expect(requestsOf("killed-during-call")).toBe(0);
  locker.release(true);
  await stage.startServer();
});

test("five restarts under a loop of calls: every call ends typed, every spend is charged once", async () => {
  const restarts = (async () => {
    for (let n = 0; n < 5; n += 1) {
      if (n % 2 === 0) await stage.killServer();
      else await stage.stopServer();
      await stage.startServer();
    }
  })();
  let over = false;
  void restarts.finally(() => {
    over = true;
  });
  const errors = new Set<string>();
  const unfinished: { customerId: string; kind: BillingKind }[] = [];
  let spends = 0;
  const caller = async (name: string, kind: BillingKind): Promise<void> => {
    for (let customer = 0; !over; customer += 1) {
      const customerId = `loop-${name}-${customer}`;
      spends += 1;
      const outcome = await charge(customerId, { kind, timeoutMs: 30_000 });
      if ("ok" in outcome) continue;
      errors.add(outcome.error);
      unfinished.push({ customerId, kind });
    }
  };
  await Promise.all([caller("a", "two_step"), caller("b", "one_call"), caller("c", "two_step"), restarts]);
  errors.delete("HoldfastUnavailableError");
  expect([...errors]).toEqual([]);
  // What the calls that ended without an answer hold runs out, and the same calls find the truth.
  await stage.advance(120_000);
  const again = unfinished.map(({ customerId, kind }) => charge(`${customerId}-again`, { customerId, kind }));
  for (const outcome of await Promise.all(again)) expect(outcome).toMatchObject({ status: "succeeded" });
  const charged = stage.simulator.movements().map(({ customer }) => customer);
  const inLoop = charged.filter((customer) => customer?.startsWith("loop-"));
  expect(new Set(inLoop).size).toBe(inLoop.length);
  expect(inLoop).toHaveLength(spends);
});

test("nothing ever escaped the calls of the process", () => {
  expect(billing.lines.filter((line) => "defect" in line)).toEqual([]);
  expect(billing.errors()).toBe("");
});
