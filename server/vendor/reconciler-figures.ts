import { attribute } from "../telemetry-attributes.ts";
import { count, metric } from "../telemetry-metrics.ts";

/** Counts what the reconciler does. */
export interface ReconcilerFigures {
  /** One read of a vendor: "2xx", "4xx", "5xx" or "lost". */
  read(workspace: string, vendor: string, outcome: string): void;
  /** One authorization that was looked at, and what became of it. */
  settled(workspace: string, vendor: string, outcome: string): void;
}

export function createReconcilerFigures(): ReconcilerFigures {
  const labels = (workspace: string, vendor: string, outcome: string) => ({
    [attribute.workspace]: workspace,
    [attribute.vendor]: vendor,
    [attribute.outcome]: outcome,
  });
  return {
    read: (workspace, vendor, outcome) => count(metric.reconcilerReads, 1, labels(workspace, vendor, outcome)),
    settled: (workspace, vendor, outcome) => count(metric.reconcilerSettlements, 1, labels(workspace, vendor, outcome)),
  };
}
