import { AsyncLocalStorage } from "node:async_hooks";
import type { Clock, Random, Timers } from "../../sdk/runtime.ts";
import type { EventHandle, EventLoop } from "./event-loop.ts";
import type { Chance } from "./random.ts";

/**
 * A process of a service: everything that reaches it, an answer or a timer, is an event of its own, and between two
 * of them it may be frozen (nothing reaches it until later, its clock goes on) or end (nothing reaches it ever again).
 * So it stops at any await that waits for something outside.
 */
export interface VirtualProcess {
  readonly name: string;
  readonly clock: Clock;
  readonly timers: Timers;
  readonly random: Random;
  readonly alive: () => boolean;
  /** Runs in the process, at the instant or as soon as it is not frozen any more. */
  at(instant: number, run: () => void): EventHandle;
  /** Runs in the process now. */
  enter<Value>(run: () => Value): Value;
  crash(): void;
  freezeUntil(instant: number): void;
}

/** The process whose code runs. */
export const currentProcess = new AsyncLocalStorage<VirtualProcess>();

/** `disturb` runs before each event and may freeze or end the process. */
export function createVirtualProcess(
  loop: EventLoop,
  name: string,
  chance: Chance,
  disturb: (process: VirtualProcess) => void,
): VirtualProcess {
  let alive = true;
  let frozenUntil = 0;
  const bornAt = loop.now();
  const arrive = (run: () => void): (() => void) => {
    if (!alive) return () => undefined;
    disturb(process);
    if (!alive) return () => undefined;
    if (loop.now() < frozenUntil) {
      const thawed = process.at(frozenUntil, run);
      return () => thawed.cancel();
    }
    run();
    return () => undefined;
  };
  const process: VirtualProcess = {
    name,
    alive: () => alive,
    clock: { now: () => loop.now() - bornAt },
    timers: {
      setTimeout: (callback, delayMs) =>
        process.at(loop.now() + Math.max(0, delayMs), AsyncLocalStorage.bind(callback)),
      clearTimeout: (handle) => (handle as EventHandle | undefined)?.cancel(),
    },
    random: { next: () => chance.next(), hex128: () => chance.hex(32) },
    at(instant, run) {
      let canceled = false;
      let cancel: (() => void) | undefined;
      const handle = loop.at(Math.max(instant, frozenUntil), () => {
        cancel = arrive(() => {
          if (!canceled) currentProcess.run(process, run);
        });
      });
      return {
        cancel() {
          canceled = true;
          handle.cancel();
          cancel?.();
        },
      };
    },
    enter: (run) => currentProcess.run(process, run),
    crash() {
      alive = false;
    },
    freezeUntil(instant) {
      frozenUntil = Math.max(frozenUntil, instant);
    },
  };
  return process;
}
