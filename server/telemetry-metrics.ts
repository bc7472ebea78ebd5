import { type Attributes, type Counter, type Histogram, type MeterProvider, metrics } from "@opentelemetry/api";
import {
  ATTR_ERROR_TYPE,
  ATTR_HTTP_REQUEST_METHOD,
  ATTR_HTTP_RESPONSE_STATUS_CODE,
  ATTR_RPC_METHOD,
  ATTR_RPC_STATUS_CODE,
  ATTR_RPC_SYSTEM_NAME,
  ATTR_SERVER_ADDRESS,
  ATTR_SERVER_PORT,
  METRIC_HTTP_CLIENT_REQUEST_DURATION,
  METRIC_RPC_SERVER_CALL_DURATION,
} from "@opentelemetry/semantic-conventions";
import { attribute } from "./telemetry-attributes.ts";

/** One metric: its name, and everything that it may be split by. None of the labels ever has a value of a caller. */
export interface Metric {
  readonly kind: "counter" | "histogram" | "gauge";
  readonly name: string;
  /** As UCUM writes it: "s", "1", or a thing in braces. */
  readonly unit: string;
  readonly description: string;
  readonly labels: readonly string[];
  /** Upper bounds of a histogram's buckets. */
  readonly boundaries?: readonly number[];
}

/** Those that the conventions give for a duration, and finer ones below: a grant takes a millisecond or two. */
const durations = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10];

// The conventions for connections are not stable yet, so their package does not promise these names.
const ATTR_POOL_NAME = "db.client.connection.pool.name";
const ATTR_CONNECTION_STATE = "db.client.connection.state";

/** Labels that the conventions name, under short words. */
export const label = {
  method: ATTR_HTTP_REQUEST_METHOD,
  status: ATTR_HTTP_RESPONSE_STATUS_CODE,
  address: ATTR_SERVER_ADDRESS,
  port: ATTR_SERVER_PORT,
  error: ATTR_ERROR_TYPE,
  pool: ATTR_POOL_NAME,
  connectionState: ATTR_CONNECTION_STATE,
} as const;

const { workspace, vendor, outcome } = attribute;

/** Every metric of the server. */
export const metric = {
  decisions: {
    kind: "counter",
    name: "holdfast.authorize.decisions",
    unit: "{decision}",
    description: "Answers to AuthorizeSpend by disposition, denials by rule, refusals by reason; no dry runs",
    labels: [workspace, attribute.disposition, attribute.denialRule, attribute.errorReason],
  },
  overCommits: {
    kind: "counter",
    name: "holdfast.over_commits",
    unit: "{commit}",
    description: "Commits above what was held",
    labels: [workspace],
  },
  batchSize: {
    kind: "histogram",
    name: "holdfast.batch.size",
    unit: "{command}",
    description: "Commands that went to the database together",
    labels: [attribute.batch],
    boundaries: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000],
  },
  batchWait: {
    kind: "histogram",
    name: "holdfast.batch.wait",
    unit: "s",
    description: "How long the oldest command of a batch has waited for it",
    labels: [attribute.batch],
    boundaries: durations,
  },
  batchDuration: {
    kind: "histogram",
    name: "holdfast.batch.duration",
    unit: "s",
    description: "How long the database took for a batch",
    labels: [attribute.batch],
    boundaries: durations,
  },
  headroom: {
    kind: "gauge",
    name: "holdfast.cap.headroom",
    unit: "1",
    description: "What a cap leaves in its current window, in major units of its currency or in spends",
    labels: [workspace, attribute.cap, attribute.currency],
  },
  headroomRatio: {
    kind: "gauge",
    name: "holdfast.cap.headroom_ratio",
    unit: "1",
    description: "What a cap leaves as a part of its limit; negative where more is used than that",
    labels: [workspace, attribute.cap, attribute.currency],
  },
  headroomUnshown: {
    kind: "gauge",
    name: "holdfast.cap.headroom_unshown",
    unit: "{cap}",
    description: "Caps whose headroom is not shown: they count per customer, or more than 200 caps have less of it",
    labels: [attribute.reason],
  },
  inDoubt: {
    kind: "gauge",
    name: "holdfast.in_doubt.count",
    unit: "{authorization}",
    description: "Authorizations that are in doubt",
    labels: [workspace, vendor],
  },
  inDoubtOldestAge: {
    kind: "gauge",
    name: "holdfast.in_doubt.oldest_age",
    unit: "s",
    description: "How long the oldest one has been in doubt",
    labels: [workspace, vendor],
  },
  openContradictions: {
    kind: "gauge",
    name: "holdfast.contradictions.open",
    unit: "{contradiction}",
    description: "Charges that their authorization does not allow, and that nobody has dealt with",
    labels: [workspace, vendor],
  },
  reconcileLag: {
    kind: "gauge",
    name: "holdfast.reconcile.lag",
    unit: "s",
    description: "Since when the oldest authorization is due to be asked about at its vendor",
    labels: [workspace, vendor],
  },
  reconcilerReads: {
    kind: "counter",
    name: "holdfast.reconciler.reads",
    unit: "{read}",
    description: "Reads of a vendor, by their answer",
    labels: [workspace, vendor, outcome],
  },
  reconcilerSettlements: {
    kind: "counter",
    name: "holdfast.reconciler.settlements",
    unit: "{authorization}",
    description: "Authorizations that the reconciler looked at, by what became of them",
    labels: [workspace, vendor, outcome],
  },
  leases: {
    kind: "gauge",
    name: "holdfast.leases",
    unit: "{lease}",
    description: "Billing leases by state: held, free or completed",
    labels: [workspace, attribute.leaseState],
  },
  sweeps: {
    kind: "counter",
    name: "holdfast.sweeps",
    unit: "{sweep}",
    description: "Rounds of the expiry sweep, by whether they went well",
    labels: [outcome],
  },
  observations: {
    kind: "counter",
    name: "holdfast.observations",
    unit: "{observation}",
    description: "Reads of the gauges that the database knows, by whether they went well; without one they are missing",
    labels: [outcome],
  },
  connections: {
    kind: "gauge",
    name: "db.client.connection.count",
    unit: "{connection}",
    description: "Connections to the database by state: used or idle",
    labels: [ATTR_POOL_NAME, ATTR_CONNECTION_STATE],
  },
  connectionsMax: {
    kind: "gauge",
    name: "db.client.connection.max",
    unit: "{connection}",
    description: "The most connections to the database",
    labels: [ATTR_POOL_NAME],
  },
  connectionWaits: {
    kind: "gauge",
    name: "db.client.connection.pending_requests",
    unit: "{request}",
    description: "Who waits for a connection to the database",
    labels: [ATTR_POOL_NAME],
  },
  poolDestroyed: {
    kind: "counter",
    name: "holdfast.pool.destroyed",
    unit: "{connection}",
    description: "Connections that were released in a state their next user must not meet, and destroyed",
    labels: [attribute.poolMistake],
  },
  oldestTransactionAge: {
    kind: "gauge",
    name: "holdfast.database.oldest_transaction_age",
    unit: "s",
    description: "How long the oldest transaction in the database has been open",
    labels: [],
  },
  oldestSnapshotLag: {
    kind: "gauge",
    name: "holdfast.database.oldest_snapshot_lag",
    unit: "{transaction}",
    description: "How many transactions ago the oldest snapshot is from, for which rows that are no more are kept",
    labels: [],
  },
  hiddenSessions: {
    kind: "gauge",
    name: "holdfast.database.hidden_sessions",
    unit: "{session}",
    description: "Sessions that the role of the server may not look at, so that the two before say nothing of them",
    labels: [],
  },
  rpcDuration: {
    kind: "histogram",
    name: METRIC_RPC_SERVER_CALL_DURATION,
    unit: "s",
    description: "How long calls took, by their code",
    labels: [ATTR_RPC_SYSTEM_NAME, ATTR_RPC_METHOD, ATTR_RPC_STATUS_CODE, ATTR_ERROR_TYPE],
    boundaries: durations,
  },
  proxiedRequests: {
    kind: "counter",
    name: "holdfast.proxy.requests",
    unit: "{request}",
    description: "Requests to the proxy, by what became of them and by the class of their status",
    labels: [vendor, attribute.disposition, attribute.statusClass],
  },
  proxyUnrecorded: {
    kind: "counter",
    name: "holdfast.proxy.unrecorded",
    unit: "{request}",
    description: "Requests to the proxy whose audit event could not be written",
    labels: [vendor],
  },
  upstreamDuration: {
    kind: "histogram",
    name: METRIC_HTTP_CLIENT_REQUEST_DURATION,
    unit: "s",
    description: "How long the proxy's requests to a vendor took",
    labels: [
      ATTR_HTTP_REQUEST_METHOD,
      ATTR_SERVER_ADDRESS,
      ATTR_SERVER_PORT,
      ATTR_HTTP_RESPONSE_STATUS_CODE,
      ATTR_ERROR_TYPE,
    ],
    boundaries: durations,
  },
  telemetryDropped: {
    kind: "counter",
    name: "holdfast.telemetry.dropped",
    unit: "{item}",
    description: "Spans, and exports of metrics, that no collector got",
    labels: [attribute.signal, attribute.reason],
  },
} as const satisfies Record<string, Metric>;

const counters = new WeakMap<MeterProvider, Map<Metric, Counter>>();
const histograms = new WeakMap<MeterProvider, Map<Metric, Histogram>>();

/** The instrument of the provider that is installed now: that comes after this module was loaded. */
function instrument<Instrument>(
  instruments: WeakMap<MeterProvider, Map<Metric, Instrument>>,
  of: Metric,
  create: (provider: MeterProvider) => Instrument,
): Instrument {
  const provider = metrics.getMeterProvider();
  let made = instruments.get(provider);
  if (made === undefined) instruments.set(provider, (made = new Map()));
  let found = made.get(of);
  if (found === undefined) made.set(of, (found = create(provider)));
  return found;
}

/** Adds to a counter. A value of 0 makes a series visible that alerts watch. */
export function count(of: Metric & { readonly kind: "counter" }, value: number, labels: Attributes): void {
  const { name, unit, description } = of;
  const create = (provider: MeterProvider) => provider.getMeter("holdfast").createCounter(name, { unit, description });
  instrument(counters, of, create).add(value, labels);
}

/** Records one value of a histogram, in its unit. */
export function measure(of: Metric & { readonly kind: "histogram" }, value: number, labels: Attributes): void {
  const { name, unit, description, boundaries = [] } = of;
  const advice = { explicitBucketBoundaries: [...boundaries] };
  const create = (provider: MeterProvider) =>
    provider.getMeter("holdfast").createHistogram(name, { unit, description, advice });
  instrument(histograms, of, create).record(value, labels);
}
