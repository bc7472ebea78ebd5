import type { Runtime } from "@holdfast/sdk/stripe-vendor";
import { listDueVendors } from "../store/reconciler.ts";
import { listWorkspaces } from "../store/workspace.ts";
import { createPace, type Pace } from "./pace.ts";
import { type PassSettings, reconcileVendor } from "./reconcile-pass.ts";
import { createTurns } from "./turns.ts";

export interface ReconcilerOptions extends Omit<PassSettings, "signal" | "yields"> {
  readonly intervalMs: number;
  /** Per credential. */
  readonly readsPerSecond: number;
  /** Told of every failure that is not the vendor's; the next round tries again. */
  readonly onError: (error: unknown) => void;
}

// Reads wait for the vendor, and a workspace that is slow must not hold up the others. Where more of them have something
// to do, each gives way after a page or a step.
const passesMax = 4;

interface Due {
  readonly workspace: string;
  readonly vendor: string;
}

/**
 * Looks every `intervalMs` at which vendors something is due, in every workspace, and settles it there. Any number of
 * servers may do so: a claim in the database says whose turn it is, and every step may be done twice.
 */
export function startReconciler(options: ReconcilerOptions): { stop(): Promise<void> } {
  const { database, intervalMs, readsPerSecond, onError, ...others } = options;
  const stopping = new AbortController();
  const { signal } = stopping;
  const paceOf = pacesOf(options.runtime, readsPerSecond);
  let timer: NodeJS.Timeout | undefined;
  let round = Promise.resolve();

  const keyOf = ({ workspace, vendor }: Due): string => `${workspace}/${vendor}`;
  const turns = createTurns<Due>({
    max: passesMax,
    keyOf,
    run: (due, yields) =>
      reconcileVendor({ ...others, database, signal, yields }, due.workspace, due.vendor, paceOf(keyOf(due))).catch(
        onError,
      ),
  });
  const look = async (): Promise<void> => {
    try {
      const due: Due[] = [];
      for (const workspace of await listWorkspaces(database)) {
        if (signal.aborted) return;
        for (const vendor of await listDueVendors(database, workspace)) due.push({ workspace, vendor });
      }
      turns.offer(due);
    } catch (error) {
      onError(error);
    }
    schedule();
  };
  const schedule = (): void => {
    if (signal.aborted) return;
    timer = setTimeout(() => {
      round = look();
    }, intervalMs);
  };
  schedule();

  return {
    async stop() {
      stopping.abort();
      clearTimeout(timer);
      await round;
      await turns.stop();
    },
  };
}

/** One pace per credential, kept from one pass to the next. */
function pacesOf(runtime: Runtime, readsPerSecond: number): (key: string) => Pace {
  const paces = new Map<string, Pace>();
  return (key) => {
    let pace = paces.get(key);
    if (pace === undefined) {
      pace = createPace(runtime, readsPerSecond);
      paces.set(key, pace);
    }
    return pace;
  };
}
