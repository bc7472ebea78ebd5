import { metrics } from "@opentelemetry/api";
import type { Database } from "./store/database.ts";
import { readReconciliationFigures } from "./store/figures.ts";
import { attribute, metric } from "./telemetry-attributes.ts";

/** Counts charges above what was held, and shows what waits for a vendor whenever metrics are exported. */
export interface Figures {
  overCommitted(workspace: string, count: number): void;
  close(): void;
}

/** One query per export, and none where nobody collects. */
export function createFigures(database: Database): Figures {
  const meter = metrics.getMeter("holdfast");
  const inDoubt = meter.createObservableGauge(metric.inDoubt, { description: "Authorizations that are in doubt" });
  const oldest = meter.createObservableGauge(metric.inDoubtOldestAge, {
    description: "How long the oldest one has been in doubt",
    unit: "s",
  });
  const contradictions = meter.createObservableGauge(metric.openContradictions, {
    description: "Charges that their authorization does not allow, and that nobody has dealt with",
  });
  const lag = meter.createObservableGauge(metric.reconcileLag, {
    description: "Since when the oldest authorization is due to be asked about at its vendor",
    unit: "s",
  });
  const overCommits = meter.createCounter(metric.overCommits, { description: "Commits above what was held" });
  const observables = [inDoubt, oldest, contradictions, lag];
  // A vendor where nothing waits any more has to show zero once it was shown.
  const seen = new Map<string, { workspace: string; vendor: string }>();
  const observe: Parameters<typeof meter.addBatchObservableCallback>[0] = async (result) => {
    const rows = await readReconciliationFigures(database);
    const byKey = new Map(rows.map((row) => [`${row.workspace}/${row.vendor}`, row]));
    for (const [key, { workspace, vendor }] of byKey) seen.set(key, { workspace, vendor });
    for (const [key, { workspace, vendor }] of seen) {
      const row = byKey.get(key);
      const labels = { [attribute.workspace]: workspace, [attribute.vendor]: vendor };
      result.observe(inDoubt, row?.inDoubt ?? 0, labels);
      result.observe(oldest, row?.oldestAge ?? 0, labels);
      result.observe(contradictions, row?.openContradictions ?? 0, labels);
      result.observe(lag, row?.lag ?? 0, labels);
    }
  };
  meter.addBatchObservableCallback(observe, observables);
  return {
    overCommitted(workspace, count) {
      if (count > 0) overCommits.add(count, { [attribute.workspace]: workspace });
    },
    close: () => meter.removeBatchObservableCallback(observe, observables),
  };
}
