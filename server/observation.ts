import { ValueType } from "@opentelemetry/api";
import { emptyResource } from "@opentelemetry/resources";
import {
  AggregationTemporality,
  type CollectionResult,
  DataPointType,
  type GaugeMetricData,
  type MetricProducer,
} from "@opentelemetry/sdk-metrics";
import type { Database } from "./store/database.ts";
import {
  type Headroom,
  type LeaseFigures,
  readHeadroom,
  readLeaseFigures,
  readReconciliationFigures,
  type ReconciliationFigures,
} from "./store/figures.ts";
import { readSnapshotFigures, type SnapshotFigures } from "./store/snapshot-figures.ts";
import { attribute } from "./telemetry-attributes.ts";
import { count, label, type Metric, metric } from "./telemetry-metrics.ts";

/** What a pool says about its connections. */
export interface PoolCounts {
  readonly totalCount: number;
  readonly idleCount: number;
  readonly waitingCount: number;
}

export interface ObservationOptions {
  readonly database: Database;
  readonly pool: PoolCounts;
  readonly poolMax: number;
  /** How long what was read of the database is shown, whoever asks: it is read once in that time at most. */
  readonly maxAgeMs: number;
  /** Learns why the database could not be read. */
  readonly onError: (error: unknown) => void;
  /** On a monotonic clock. */
  readonly nowMs?: () => number;
  /** How long who asks waits for the database. */
  readonly waitMs?: number;
}

/** How many caps are shown, of all workspaces. */
const capsMax = 200;

interface Observed {
  readonly reconciliation: readonly ReconciliationFigures[];
  readonly headroom: Headroom;
  readonly leases: readonly LeaseFigures[];
  readonly snapshots: SnapshotFigures;
}

type Point = readonly [of: Metric, value: number, labels: Readonly<Record<string, string>>];

/**
 * The gauges. Each collection shows exactly what is there now: a gauge of the SDK would go on showing every cap that was
 * ever among those with least headroom, and the last figures of a database that does not answer any more. What the
 * database knows is left out for as long as it cannot be read; the pool's figures never are.
 */
export function createObservation(options: ObservationOptions): MetricProducer {
  const { database, pool, poolMax, maxAgeMs, onError, nowMs = () => performance.now(), waitMs = 3000 } = options;
  let readAt = Number.NEGATIVE_INFINITY;
  let latest: Promise<Observed> | undefined;
  let busy = false;
  const observe = (): Promise<Observed> => {
    if (latest === undefined || (!busy && nowMs() - readAt >= maxAgeMs)) {
      readAt = nowMs();
      busy = true;
      latest = read(database, onError).finally(() => (busy = false));
    }
    return latest;
  };
  // A vendor where nothing waits any more has to show zero once it was shown.
  const seen = new Map<string, ReconciliationFigures>();
  return {
    async collect(): Promise<CollectionResult> {
      const points: Point[] = [...poolPoints(pool, poolMax)];
      const errors: unknown[] = [];
      try {
        const observed = await within(observe(), waitMs);
        points.push(...reconciliationPoints(observed.reconciliation, seen));
        points.push(...headroomPoints(observed.headroom), ...leasePoints(observed.leases));
        points.push(...snapshotPoints(observed.snapshots));
      } catch (error) {
        errors.push(error);
      }
      return { resourceMetrics: { resource: emptyResource(), scopeMetrics: [scopeOf(points)] }, errors };
    },
  };
}

async function read(database: Database, onError: (error: unknown) => void): Promise<Observed> {
  try {
    // One after the other: who looks at figures may take one connection, not four.
    const reconciliation = await readReconciliationFigures(database);
    const headroom = await readHeadroom(database, capsMax);
    const leases = await readLeaseFigures(database);
    const snapshots = await readSnapshotFigures(database);
    count(metric.observations, 1, { [attribute.outcome]: "ok" });
    return { reconciliation, headroom, leases, snapshots };
  } catch (error) {
    count(metric.observations, 1, { [attribute.outcome]: "failed" });
    onError(error);
    throw error;
  }
}

async function within<T>(work: Promise<T>, ms: number): Promise<T> {
  const late = Promise.withResolvers<never>();
  const timer = setTimeout(() => late.reject(new Error(`the database gave no figures within ${ms} ms`)), ms);
  try {
    return await Promise.race([work, late.promise]);
  } finally {
    clearTimeout(timer);
  }
}

function poolPoints(pool: PoolCounts, max: number): Point[] {
  const named = { [label.pool]: "holdfast" };
  const { totalCount, idleCount, waitingCount } = pool;
  return [
    [metric.connections, totalCount - idleCount, { ...named, [label.connectionState]: "used" }],
    [metric.connections, idleCount, { ...named, [label.connectionState]: "idle" }],
    [metric.connectionsMax, max, named],
    [metric.connectionWaits, waitingCount, named],
  ];
}

function reconciliationPoints(
  rows: readonly ReconciliationFigures[],
  seen: Map<string, ReconciliationFigures>,
): Point[] {
  const keyOf = ({ workspace, vendor }: ReconciliationFigures): string => `${workspace}/${vendor}`;
  const none = { inDoubt: 0, oldestAge: 0, openContradictions: 0, lag: 0 };
  const now = new Map(rows.map((row) => [keyOf(row), row]));
  for (const [key, row] of now) seen.set(key, row);
  return [...seen].flatMap(([key, { workspace, vendor }]): Point[] => {
    const { inDoubt, oldestAge, openContradictions, lag } = now.get(key) ?? none;
    const labels = { [attribute.workspace]: workspace, [attribute.vendor]: vendor };
    return [
      [metric.inDoubt, inDoubt, labels],
      [metric.inDoubtOldestAge, oldestAge, labels],
      [metric.openContradictions, openContradictions, labels],
      [metric.reconcileLag, lag, labels],
    ];
  });
}

function headroomPoints({ shown, hidden, perCustomer }: Headroom): Point[] {
  return [
    ...shown.flatMap(({ workspace, cap, currency = "", headroom, ratio }): Point[] => {
      const labels = { [attribute.workspace]: workspace, [attribute.cap]: cap, [attribute.currency]: currency };
      return [
        [metric.headroom, headroom, labels],
        [metric.headroomRatio, ratio, labels],
      ];
    }),
    [metric.headroomUnshown, hidden, { [attribute.reason]: "too_many" }],
    [metric.headroomUnshown, perCustomer, { [attribute.reason]: "per_customer" }],
  ];
}

function leasePoints(rows: readonly LeaseFigures[]): Point[] {
  return rows.flatMap(({ workspace, held, free, completed }) =>
    Object.entries({ held, free, completed }).map(
      ([state, leases]): Point => [
        metric.leases,
        leases,
        { [attribute.workspace]: workspace, [attribute.leaseState]: state },
      ],
    ),
  );
}

function snapshotPoints({ oldestAge, lag, hidden }: SnapshotFigures): Point[] {
  return [
    [metric.oldestTransactionAge, oldestAge, {}],
    [metric.oldestSnapshotLag, lag, {}],
    [metric.hiddenSessions, hidden, {}],
  ];
}

function scopeOf(points: readonly Point[]): CollectionResult["resourceMetrics"]["scopeMetrics"][number] {
  const nowMs = Date.now();
  const time: [number, number] = [Math.floor(nowMs / 1000), (nowMs % 1000) * 1_000_000];
  const byMetric = Map.groupBy(points, ([of]) => of);
  const metrics = [...byMetric].map(
    ([{ name, description, unit }, its]): GaugeMetricData => ({
      descriptor: { name, description, unit, valueType: ValueType.DOUBLE },
      aggregationTemporality: AggregationTemporality.CUMULATIVE,
      dataPointType: DataPointType.GAUGE,
      dataPoints: its.map(([, value, attributes]) => ({ startTime: time, endTime: time, attributes, value })),
    }),
  );
  return { scope: { name: "holdfast" }, metrics };
}
