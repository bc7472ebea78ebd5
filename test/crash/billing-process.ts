import { Code, ConnectError } from "@connectrpc/connect";
import { openSync, readSync, writeSync } from "node:fs";
import { createInterface } from "node:readline";
import { plants } from "../crashpoints/plant.ts";
import { createVirtualTime } from "../support/virtual-time.ts";
import { type BillingCall, billingPeriod, type BillingOutcome } from "./billing-call.ts";
import { type BillingClient, type BillingTime, createBillingClient, failedOutcome } from "./billing-client.ts";

// A billing service in a process of its own. Each line of standard input is a call to make, or {"go": id} for one
// that has stopped at its point; {"drop": id} goes on without the answer that had arrived there. It says {"ready"},
// {"id", "at"} at that point, {"id", "outcome"}, {"id", "closed"} when everything is delivered, and {"defect"} for
// whatever would have ended a careless process.

type Command = { readonly call: BillingCall } | { readonly go: string } | { readonly drop: string };

// At once, so that a kill right afterwards loses nothing.
function say(line: object): void {
  writeSync(1, `${JSON.stringify(line)}\n`);
}

process.on("unhandledRejection", (reason) => say({ defect: `unhandled rejection: ${String(reason)}` }));
process.on("uncaughtException", (error) => say({ defect: `uncaught exception: ${String(error)}` }));

const paused = new Map<string, { readonly point: string; readonly stop: PromiseWithResolvers<void> }>();
// A machine that stalls for some seconds while time is hurried does not lose it.
const leaseTtlMs = 90_000;
const afterRenewal = "after RenewBillingLease";
const plant = plants.find((one) => one === process.env["HOLDFAST_TEST_PLANT"]);

async function run(call: BillingCall): Promise<void> {
  let left = call.pauseAt === undefined ? -1 : (call.pauseNth ?? 1);
  // However long it stands still, nothing else of it goes on: not the repeat of what takes too long, either.
  const resumed = Promise.withResolvers<void>();
  const renewed = Promise.withResolvers<void>();
  const hurries = call.pauseAt?.includes("Renew") === true;
  const time = call.clockFile === undefined ? undefined : movedTime(call.clockFile, () => hurries && left > 0);
  const client = createBillingClient(
    call,
    async (point) => {
      if (left === 0) {
        await resumed.promise;
        if (point === afterRenewal) renewed.resolve();
        return;
      }
      if (!isAt(call.pauseAt, point)) return;
      left -= 1;
      if (left > 0) return;
      const stop = Promise.withResolvers<void>();
      paused.set(call.id, { point, stop });
      say({ id: call.id, at: point });
      try {
        await stop.promise;
        if (point === afterRenewal) renewed.resolve();
      } finally {
        resumed.resolve();
      }
    },
    time,
    plant === undefined ? {} : { plant },
  );
  const outcome = await work(call, client, renewed.promise);
  say({ id: call.id, outcome });
  await client.holdfast.close();
  say({ id: call.id, closed: true });
}

function isAt(pauseAt: string | undefined, point: string): boolean {
  if (pauseAt?.endsWith("*") === true) return point.startsWith(pauseAt.slice(0, -1));
  return point === pauseAt;
}

async function work(call: BillingCall, client: BillingClient, renewed: Promise<void>): Promise<BillingOutcome> {
  const { holdfast, plain, charge } = client;
  const start = performance.now();
  try {
    switch (call.work) {
      case "reconcile": {
        const { counts } = await holdfast.reconcile(plain, { includeNotDue: true });
        return { ok: "", status: JSON.stringify(counts), ms: performance.now() - start };
      }
      case "under_lease": {
        const options = { lease: call.customerId, billingPeriod, ttlMs: leaseTtlMs };
        const result = await holdfast.withBillingLease(options, async ({ signal }) => {
          // The job begins when its lease was renewed, or cannot be.
          if (call.pauseAt?.includes("Renew") === true) await Promise.race([renewed, aborted(signal)]);
          return await charge();
        });
        if (!result.acquired) return { ok: "", status: result.answer, ms: performance.now() - start };
        return result.value;
      }
      default:
        return await charge();
    }
  } catch (error) {
    return failedOutcome(error, performance.now() - start);
  }
}

function aborted(signal: AbortSignal): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  if (signal.aborted) resolve();
  else signal.addEventListener("abort", () => resolve(), { once: true });
  return promise;
}

/** The process's time, and what all clocks were moved by; ten times as fast while something is waited for. */
function movedTime(file: string, hurries: () => boolean): BillingTime {
  const descriptor = openSync(file, "r");
  const bytes = Buffer.alloc(32);
  const moved = (): number => Number(bytes.toString("utf8", 0, readSync(descriptor, bytes, 0, bytes.length, 0)));
  if (!hurries()) return { clock: { now: () => performance.now() + moved() } };
  const time = createVirtualTime();
  setInterval(() => void time.advance(hurries() ? 200 : 20), 20).unref();
  return { clock: { now: () => time.now() + moved() }, timers: time };
}

/** As the transport would say it, or Stripe's client. */
function drop(id: string): void {
  const { point, stop } = paused.get(id) ?? {};
  const what = "the connection was lost before the answer arrived";
  const isVendor = point?.includes(" /v1/") === true;
  stop?.reject(
    isVendor ? Object.assign(new Error(what), { code: "ECONNRESET" }) : new ConnectError(what, Code.Unavailable),
  );
}

createInterface(process.stdin)
  .on("line", (line) => {
    const command = JSON.parse(line) as Command;
    if ("go" in command) paused.get(command.go)?.stop.resolve();
    else if ("drop" in command) drop(command.drop);
    else void run(command.call);
  })
  .once("close", () => process.exit(0));
say({ ready: true });
