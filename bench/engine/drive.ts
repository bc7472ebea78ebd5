import type { Contender, Load } from "./contender.ts";

/** A closed loop: `callers` that each ask again when they have their answer, `calls` in all. */
export interface Drive {
  readonly load: Load;
  readonly callers: number;
  readonly calls: number;
}

export interface Driven {
  /** Grants per second. */
  readonly rate: number;
  readonly granted: number;
  /** Milliseconds of each call. */
  readonly times: readonly number[];
  /** Processor time of this process, in milliseconds. */
  readonly cpuMs: number;
  /** And of the server it talks to, where that is no Postgres. */
  readonly serverCpuMs?: number;
  /** Statements and commands that were sent and answered. */
  readonly roundTrips: number;
}

/** `roundTrips` counts since the start of the process. */
export async function drive(contender: Contender, asked: Drive, roundTrips: () => number): Promise<Driven> {
  const times: number[] = [];
  let left = asked.calls;
  let granted = 0;
  const caller = async (): Promise<void> => {
    while (left > 0) {
      left -= 1;
      const begun = performance.now();
      if (await contender.attempt(asked.load)) granted += 1;
      times.push(performance.now() - begun);
    }
  };
  const before = { cpu: process.cpuUsage(), server: contender.serverCpuMs?.() ?? 0, trips: roundTrips() };
  const begun = performance.now();
  await Promise.all(Array.from({ length: Math.min(asked.callers, asked.calls) }, caller));
  const elapsedMs = performance.now() - begun;
  const { user, system } = process.cpuUsage(before.cpu);
  const server = contender.serverCpuMs?.();
  return {
    rate: (granted * 1_000) / elapsedMs,
    granted,
    times,
    cpuMs: (user + system) / 1_000,
    ...(server === undefined ? {} : { serverCpuMs: server - before.server }),
    roundTrips: roundTrips() - before.trips,
  };
}
