import { unfoldAudit } from "./audit.ts";
import type { Database } from "./database.ts";
import { emptyProxiedAnswers } from "./proxied-request.ts";
import { sweepExpired } from "./spend.ts";
import { listWorkspaces } from "./workspace.ts";

export interface SweepOptions {
  readonly database: Database;
  readonly intervalMs: number;
  /** How long the answers of the proxy are kept. */
  readonly proxyAnswerDays: number;
  /** Comes first in every round. */
  readonly before?: () => Promise<void>;
  /** Told after every round: undefined, or why it failed. */
  readonly onResult: (error: unknown) => void;
}

const rowsPerRound = 200;
const emptiedRoundsMax = 10;

/**
 * Writes down, every `intervalMs`, which holds have run out, makes events of what the audit has folded, and empties the
 * proxy's answers that are too old. Expiry itself is decided from the clock when a row is read, so a late sweep changes
 * no answer; it only releases what is proven void and shows what is in doubt.
 * Several servers may sweep at once: locked rows are skipped.
 */
export function startSweep(options: SweepOptions): { stop(): Promise<void> } {
  let stopped = false;
  let timer: NodeJS.Timeout | undefined;
  let running = Promise.resolve();

  const sweep = async (): Promise<void> => {
    try {
      await options.before?.();
      for (const workspace of await listWorkspaces(options.database)) {
        while (!stopped && (await sweepExpired(options.database, workspace, rowsPerRound)) === rowsPerRound);
        while (!stopped && (await unfoldAudit(options.database, workspace, rowsPerRound)) === rowsPerRound);
        await emptyAnswers(workspace);
      }
      options.onResult(undefined);
    } catch (error) {
      options.onResult(error);
    }
    schedule();
  };
  // No more than that at once: what has run out elsewhere must not wait for a year of answers.
  const emptyAnswers = async (workspace: string): Promise<void> => {
    for (let round = 0; round < emptiedRoundsMax && !stopped; round += 1) {
      const { database, proxyAnswerDays } = options;
      if ((await emptyProxiedAnswers(database, workspace, proxyAnswerDays, rowsPerRound)) < rowsPerRound) return;
    }
  };
  const schedule = (): void => {
    if (stopped) return;
    timer = setTimeout(() => {
      running = sweep();
    }, options.intervalMs);
  };
  schedule();

  return {
    async stop() {
      stopped = true;
      clearTimeout(timer);
      await running;
    },
  };
}
