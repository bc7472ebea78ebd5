import { setMaxListeners } from "node:events";
import { setTimeout as delay } from "node:timers/promises";
import type { Contender } from "./contender.ts";

/** Calls that come at their own rate, whether or not the ones before were answered, each with a deadline. */
export interface Flood {
  readonly perSecond: number;
  readonly calls: number;
  readonly deadlineMs: number;
}

export interface Flooded {
  /** Grants per second that were answered before their deadline, as long as calls came. */
  readonly goodput: number;
  /** Grants in all: also those that were answered after the last call or too late. */
  readonly granted: number;
  readonly refused: number;
  readonly late: number;
}

/** All of them are told the outcome before this resolves. */
export async function flood(contender: Contender, { perSecond, calls, deadlineMs }: Flood): Promise<Flooded> {
  const all: Promise<void>[] = [];
  const answered = { inTime: 0, granted: 0, refused: 0, late: 0 };
  let isOver = false;
  const one = async (signal: AbortSignal, deadlineAt: number): Promise<void> => {
    try {
      if (!(await contender.attempt("hot", { signal, deadlineAt }))) throw new Error("a spend that fits was denied");
      answered.granted += 1;
      if (performance.now() > deadlineAt) answered.late += 1;
      else if (!isOver) answered.inTime += 1;
    } catch (error) {
      if (signal.aborted) answered.late += 1;
      else if ((error as { readonly reason?: unknown }).reason === "QUEUE_FULL") answered.refused += 1;
      else throw error;
    }
  };
  const begun = performance.now();
  while (all.length < calls) {
    const now = performance.now();
    const due = Math.min(calls, Math.ceil(((now - begun) * perSecond) / 1_000));
    // One deadline for all that come in one turn: a timer each would measure timers.
    const controller = new AbortController();
    setMaxListeners(0, controller.signal);
    setTimeout(() => controller.abort(new Error("the deadline is over")), deadlineMs).unref();
    while (all.length < due) all.push(one(controller.signal, now + deadlineMs));
    await delay(1);
  }
  const elapsedMs = performance.now() - begun;
  isOver = true;
  await Promise.all(all);
  const { inTime, ...others } = answered;
  return { goodput: (inTime * 1_000) / elapsedMs, ...others };
}
