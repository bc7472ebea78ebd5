import type { AuthorizeDecision } from "./domain/spend.ts";
import { attribute } from "./telemetry-attributes.ts";
import { count, metric } from "./telemetry-metrics.ts";

/** Counts what the queues and the sweep have done. */
export interface Figures {
  decided(workspace: string, decisions: readonly AuthorizeDecision[]): void;
  overCommitted(workspace: string, count: number): void;
  /** A round of the expiry sweep: undefined, or why it failed. */
  swept(error: unknown): void;
}

/** `workspace`: where the counters stand at 0 from the start, so that the first increase of each is seen. */
export function createFigures(workspace: string): Figures {
  for (const disposition of ["GRANTED", "DENIED"]) {
    count(metric.decisions, 0, { [attribute.workspace]: workspace, [attribute.disposition]: disposition });
  }
  for (const outcome of ["ok", "failed"]) {
    count(metric.sweeps, 0, { [attribute.outcome]: outcome });
    count(metric.observations, 0, { [attribute.outcome]: outcome });
  }
  count(metric.overCommits, 0, { [attribute.workspace]: workspace });
  return {
    decided(of, decisions) {
      for (const { disposition, rule, errorReason } of decisions) {
        count(metric.decisions, 1, {
          [attribute.workspace]: of,
          [attribute.disposition]: disposition ?? "REFUSED",
          ...(rule === undefined ? {} : { [attribute.denialRule]: rule }),
          ...(errorReason === undefined ? {} : { [attribute.errorReason]: errorReason }),
        });
      }
    },
    overCommitted(of, commits) {
      if (commits > 0) count(metric.overCommits, commits, { [attribute.workspace]: of });
    },
    swept: (error) => count(metric.sweeps, 1, { [attribute.outcome]: error === undefined ? "ok" : "failed" }),
  };
}
