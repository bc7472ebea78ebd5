import { type ChildProcess, fork } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { afterEach, beforeEach, expect, it } from "vitest";
import type { Replica, Told } from "./cron-process.ts";
import { BILLING_PERIOD, oneEach, payers, startWorld, type World } from "./world.ts";

let world: World;
const children = new Set<ChildProcess>();
beforeEach(async () => {
  world = await startWorld();
});
afterEach(async () => {
  for (const child of children) child.kill("SIGKILL");
  await world.close();
});

/** Several processes are started one after the other. */
const processesMs = 180_000;

interface Run {
  readonly child: ChildProcess;
  /** Resolves with the message that names this customer as paid. */
  paid(id: string): Promise<void>;
  readonly result: Promise<string>;
}

function start(stopAfter?: string): Run {
  const child = fork(join(import.meta.dirname, "cron-process.ts"), [], {
    execArgv: ["--conditions=holdfast-source", "--disable-warning=ExperimentalWarning"],
  });
  children.add(child);
  child.once("exit", () => children.delete(child));
  const replica: Replica = {
    baseUrl: world.baseUrl,
    vaultKey: world.vaultKey,
    stripePort: world.simulator.port,
    billingPeriod: BILLING_PERIOD,
    subscribers: payers(5),
    ...(stopAfter === undefined ? {} : { stopAfter }),
  };
  child.send(replica);
  const until = <Value>(pick: (told: Told) => Value | undefined): Promise<Value> =>
    new Promise((resolve, reject) => {
      child.on("message", (told: Told) => {
        const value = pick(told);
        if (value !== undefined) resolve(value);
      });
      child.once("exit", (code) => reject(new Error(`The replica ended with ${String(code)}.`)));
    });
  const result = until((told) => ("result" in told ? told.result : undefined));
  result.catch(() => {});
  return {
    child,
    result,
    paid: async (id) => void (await until((told) => ("paid" in told && told.paid === id ? true : undefined))),
  };
}

it(
  "three replicas with the same timer charge each customer once, and the period is closed",
  async () => {
    const results = await Promise.all([start(), start(), start()].map(({ result }) => result));
    expect(results.filter((result) => result === "billed")).toHaveLength(1);
    expect(world.charges()).toEqual(oneEach(5));
    expect(await start().result).toBe("already billed");
    expect(world.charges()).toEqual(oneEach(5));
  },
  processesMs,
);

it(
  "a replica that is killed in the middle keeps the others out, until one continues where it stopped",
  async () => {
    const killed = start("cust_2");
    await killed.paid("cust_2");
    expect(await start().result).toBe("another replica is at it");
    const exited = once(killed.child, "exit");
    killed.child.kill("SIGKILL");
    await exited;
    await world.server.clock.advance(31_000);
    expect(await start().result).toBe("billed");
    expect(world.charges()).toEqual(oneEach(5));
  },
  processesMs,
);
