import nodeCrypto from "node:crypto";
import { syncBuiltinESMExports } from "node:module";
import type { EventHandle, EventLoop } from "./event-loop.ts";
import type { Chance } from "./random.ts";
import { currentProcess } from "./virtual-process.ts";

/** The instant at which every simulation begins. */
export const epochMs = Date.UTC(2026, 10, 1);

/**
 * Takes from the code under `work` what a machine would give it differently each time: the date, random numbers and
 * ids, and inside virtual processes the timers. Whatever the SDK and Stripe's client do not let inject is controlled here.
 */
export async function onControlledMachine<Value>(
  loop: EventLoop,
  chance: Chance,
  work: () => Promise<Value>,
): Promise<Value> {
  const restore = [
    replace(Date, "now", () => epochMs + loop.now()),
    replace(Math, "random", () => chance.next()),
    replace(globalThis, "setTimeout", timeoutInProcess(globalThis.setTimeout)),
    replace(globalThis, "clearTimeout", clearInProcess(globalThis.clearTimeout)),
    replace(globalThis, "setImmediate", immediateInProcess(loop, globalThis.setImmediate)),
    replace(globalThis.crypto, "randomUUID", () => uuid(chance)),
    replace(nodeCrypto, "randomUUID", () => uuid(chance)),
    replace(nodeCrypto, "randomBytes", (size: number) => Buffer.from(chance.hex(2 * size), "hex")),
  ];
  syncBuiltinESMExports();
  try {
    return await work();
  } finally {
    for (const undo of restore) undo();
    syncBuiltinESMExports();
  }
}

function replace(owner: object, name: string, value: unknown): () => void {
  const before = Object.getOwnPropertyDescriptor(owner, name);
  Object.defineProperty(owner, name, {
    value,
    configurable: true,
    writable: true,
    enumerable: before?.enumerable ?? false,
  });
  return () => {
    if (before === undefined) Reflect.deleteProperty(owner, name);
    else Object.defineProperty(owner, name, before);
  };
}

// Handles of virtual timers among those of the machine.
const handles = new WeakSet<object>();

function timeoutInProcess(real: typeof setTimeout) {
  return (callback: (...given: unknown[]) => void, delayMs = 0, ...given: unknown[]): unknown => {
    const process = currentProcess.getStore();
    if (process === undefined) return real(callback, delayMs, ...given);
    const handle = process.timers.setTimeout(() => callback(...given), delayMs) as EventHandle & { unref?: () => void };
    handle.unref = () => undefined;
    handles.add(handle);
    return handle;
  };
}

function clearInProcess(real: typeof clearTimeout) {
  return (handle: unknown): void => {
    if (typeof handle === "object" && handle !== null && handles.has(handle)) (handle as EventHandle).cancel();
    else real(handle as NodeJS.Timeout);
  };
}

function immediateInProcess(loop: EventLoop, real: typeof setImmediate) {
  return (callback: (...given: unknown[]) => void, ...given: unknown[]): unknown => {
    const process = currentProcess.getStore();
    if (process === undefined) return real(callback, ...given);
    loop.soon(() => {
      if (process.alive()) callback(...given);
    });
    return {};
  };
}

function uuid(chance: Chance): string {
  const hex = chance.hex(32);
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-4${hex.slice(13, 16)}-a${hex.slice(17, 20)}-${hex.slice(20)}`;
}
