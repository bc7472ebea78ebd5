import type { Database } from "./database.ts";
import { sweepExpired } from "./spend.ts";
import { listWorkspaces } from "./workspace.ts";

export interface SweepOptions {
  readonly database: Database;
  readonly intervalMs: number;
  /** Comes first in every round. */
  readonly before?: () => Promise<void>;
  /** Told after every round: undefined, or why it failed. */
  readonly onResult: (error: unknown) => void;
}

const rowsPerRound = 200;

/**
 * Writes down, every `intervalMs`, which holds have run out. Expiry itself is decided from the clock when a row is
 * read, so a late sweep changes no answer; it only releases what is proven void and shows what is in doubt.
 * Several servers may sweep at once: locked rows are skipped.
 */
export function startSweep(options: SweepOptions): { stop(): Promise<void> } {
  let stopped = false;
  let timer: NodeJS.Timeout | undefined;
  let round = Promise.resolve();

  const sweep = async (): Promise<void> => {
    try {
      await options.before?.();
      for (const workspace of await listWorkspaces(options.database)) {
        while (!stopped && (await sweepExpired(options.database, workspace, rowsPerRound)) === rowsPerRound);
      }
      options.onResult(undefined);
    } catch (error) {
      options.onResult(error);
    }
    schedule();
  };
  const schedule = (): void => {
    if (stopped) return;
    timer = setTimeout(() => {
      round = sweep();
    }, options.intervalMs);
  };
  schedule();

  return {
    async stop() {
      stopped = true;
      clearTimeout(timer);
      await round;
    },
  };
}
