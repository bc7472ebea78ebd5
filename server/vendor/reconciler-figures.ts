import type { Meter } from "@opentelemetry/api";
import { attribute, metric } from "../telemetry-attributes.ts";

/** Counts what the reconciler does. */
export interface ReconcilerFigures {
  /** One read of a vendor: "2xx", "4xx", "5xx" or "lost". */
  read(workspace: string, vendor: string, outcome: string): void;
  /** One authorization that was looked at, and what became of it. */
  settled(workspace: string, vendor: string, outcome: string): void;
}

export function createReconcilerFigures(meter: Meter): ReconcilerFigures {
  const reads = meter.createCounter(metric.reconcilerReads, { description: "Reads of a vendor, by their answer" });
  const settlements = meter.createCounter(metric.reconcilerSettlements, {
    description: "Authorizations that the reconciler looked at, by what became of them",
  });
  const labels = (workspace: string, vendor: string, outcome: string) => ({
    [attribute.workspace]: workspace,
    [attribute.vendor]: vendor,
    [attribute.outcome]: outcome,
  });
  return {
    read: (workspace, vendor, outcome) => reads.add(1, labels(workspace, vendor, outcome)),
    settled: (workspace, vendor, outcome) => settlements.add(1, labels(workspace, vendor, outcome)),
  };
}
