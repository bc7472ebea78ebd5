import type { Runtime } from "@holdfast/sdk/stripe-vendor";
import { listDueVendors } from "../store/reconciler.ts";
import { listWorkspaces } from "../store/workspace.ts";
import { createPace, type Pace } from "./pace.ts";
import { type PassSettings, reconcileVendor } from "./reconcile-pass.ts";

export interface ReconcilerOptions extends Omit<PassSettings, "signal"> {
  readonly intervalMs: number;
  /** Per credential. */
  readonly readsPerSecond: number;
  /** Told of every failure that is not the vendor's; the next round tries again. */
  readonly onError: (error: unknown) => void;
}

// Reads wait for the vendor, and a workspace that is slow must not hold up the others.
const passesMax = 4;

/**
 * Looks every `intervalMs` at which vendors something is due, in every workspace, and settles it there. Any number of
 * servers may do so: a claim in the database says whose turn it is, and every step may be done twice.
 */
export function startReconciler(options: ReconcilerOptions): { stop(): Promise<void> } {
  const { database, intervalMs, readsPerSecond, onError, ...others } = options;
  const stopping = new AbortController();
  const { signal } = stopping;
  const settings: PassSettings = { ...others, database, signal };
  const passes = new Map<string, Promise<void>>();
  const paceOf = pacesOf(options.runtime, readsPerSecond);
  let timer: NodeJS.Timeout | undefined;
  let round = Promise.resolve();

  const start = (workspace: string, vendor: string): void => {
    const key = `${workspace}/${vendor}`;
    if (passes.has(key) || passes.size >= passesMax) return;
    const pass = reconcileVendor(settings, workspace, vendor, paceOf(key))
      .catch(onError)
      .finally(() => passes.delete(key));
    passes.set(key, pass);
  };
  const look = async (): Promise<void> => {
    try {
      for (const workspace of await listWorkspaces(database)) {
        if (signal.aborted) return;
        for (const vendor of await listDueVendors(database, workspace)) start(workspace, vendor);
      }
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
      await Promise.all(passes.values());
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
