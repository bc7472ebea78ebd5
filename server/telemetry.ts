import { context, metrics, propagation, trace, TraceFlags } from "@opentelemetry/api";
import { AsyncLocalStorageContextManager } from "@opentelemetry/context-async-hooks";
import { ExportResultCode, W3CTraceContextPropagator } from "@opentelemetry/core";
import { OTLPMetricExporter } from "@opentelemetry/exporter-metrics-otlp-proto";
import { PrometheusExporter, PrometheusSerializer } from "@opentelemetry/exporter-prometheus";
import { OTLPTraceExporter } from "@opentelemetry/exporter-trace-otlp-proto";
import { emptyResource, resourceFromAttributes } from "@opentelemetry/resources";
import {
  MeterProvider,
  type MetricProducer,
  type MetricReader,
  PeriodicExportingMetricReader,
} from "@opentelemetry/sdk-metrics";
import {
  AlwaysOffSampler,
  AlwaysOnSampler,
  BatchSpanProcessor,
  ParentBasedSampler,
  type Sampler,
  type SpanExporter,
  type SpanProcessor,
  TraceIdRatioBasedSampler,
  TracerProvider,
} from "@opentelemetry/sdk-trace";
import { ATTR_SERVICE_INSTANCE_ID, ATTR_SERVICE_NAME } from "@opentelemetry/semantic-conventions";
import { attribute } from "./telemetry-attributes.ts";
import { count, metric } from "./telemetry-metrics.ts";

/** Which traces are recorded, in the words of `OTEL_TRACES_SAMPLER`. */
export interface TraceSampling {
  readonly sampler:
    | "always_on"
    | "always_off"
    | "traceidratio"
    | "parentbased_always_on"
    | "parentbased_always_off"
    | "parentbased_traceidratio";
  /** Of those that go by a ratio: 0 to 1. */
  readonly ratio: number;
}

export interface TelemetryOptions {
  readonly serviceName: string;
  /** Tells this process from every other one: a collector would take the counters of two for those of one. */
  readonly instanceId: string;
  /** Base address of an OTLP/HTTP collector, for example "http://localhost:4318"; "/v1/traces" and "/v1/metrics" are appended. */
  readonly otlpEndpoint?: string;
  /** How often metrics are exported; 60 s unless told. */
  readonly metricIntervalMs?: number;
  /** All of them unless told, or as the caller has decided. */
  readonly traceSampling?: TraceSampling;
  /** Also collects metrics for `scrape`. */
  readonly scraped?: boolean;
  /** Instead of an endpoint, for tests. */
  readonly exporter?: SpanExporter;
}

export interface Telemetry {
  /** Adds gauges that are looked up whenever metrics are collected, until it is told of others. */
  observe(producer: MetricProducer | undefined): void;
  /** Every metric in Prometheus' text format. Undefined unless `scraped`. */
  readonly scrape: (() => Promise<string>) | undefined;
  /** Sends what is queued, for at most 5 s, and restores the state before the start. Never rejects. */
  shutdown(): Promise<void>;
}

const shutdownMs = 5_000;
const queueMax = 4_096;

/**
 * Installs the process-wide tracer and meter. Without an endpoint and an exporter only the context and the W3C propagator
 * are installed: trace ids of callers still reach the audit and the vendor calls, and no span costs anything. Which traces
 * are recorded makes no difference to the audit either.
 *
 * The queue is bounded and a full queue drops spans, one export is in flight at a time and is given up after 5 s:
 * a slow or dead collector costs memory for 4,096 spans and nothing else. What it did not get is counted.
 */
export function startTelemetry(options: TelemetryOptions): Telemetry {
  context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
  propagation.setGlobalPropagator(new W3CTraceContextPropagator());
  const resource = resourceFromAttributes({
    [ATTR_SERVICE_NAME]: options.serviceName,
    [ATTR_SERVICE_INSTANCE_ID]: options.instanceId,
  });

  const exporter = options.exporter ?? exporterFor(options.otlpEndpoint);
  const provider =
    exporter === undefined
      ? undefined
      : new TracerProvider({
          resource,
          sampler: samplerFor(options.traceSampling),
          // Identifiers come from callers: one that is too long must not become a large span.
          spanLimits: { attributeValueLengthLimit: 512, attributeCountLimit: 64, linkCountLimit: 512 },
          spanProcessors: [batching(exporter)],
        });
  if (provider !== undefined) trace.setGlobalTracerProvider(provider);

  let observed: MetricProducer | undefined;
  const producer: MetricProducer = {
    collect: (how) => observed?.collect(how) ?? Promise.resolve({ resourceMetrics: nothing(), errors: [] }),
  };
  const scraped = options.scraped === true ? scrapedReader(producer) : undefined;
  const readers = [scraped?.reader, exportingReader(options, producer)].filter((reader) => reader !== undefined);
  const meters = readers.length === 0 ? undefined : new MeterProvider({ resource, readers });
  if (meters !== undefined) metrics.setGlobalMeterProvider(meters);
  for (const signal of options.otlpEndpoint === undefined ? [] : ["traces", "metrics"]) dropped(0, signal, "export");

  return {
    observe(next) {
      observed = next;
    },
    scrape: scraped?.scrape,
    async shutdown() {
      await within(Promise.all([provider?.shutdown(), meters?.shutdown()]), shutdownMs);
      trace.disable();
      metrics.disable();
      propagation.disable();
      context.disable();
    },
  };
}

function dropped(items: number, signal: string, reason: "export" | "queue_full"): void {
  count(metric.telemetryDropped, items, { [attribute.signal]: signal, [attribute.reason]: reason });
}

const nothing = () => ({ resource: emptyResource(), scopeMetrics: [] });

function samplerFor({ sampler, ratio }: TraceSampling = { sampler: "parentbased_always_on", ratio: 1 }): Sampler {
  const root: Sampler = sampler.endsWith("always_off")
    ? new AlwaysOffSampler()
    : sampler.endsWith("always_on")
      ? new AlwaysOnSampler()
      : new TraceIdRatioBasedSampler(ratio);
  return sampler.startsWith("parentbased") ? new ParentBasedSampler({ root }) : root;
}

function exporterFor(endpoint: string | undefined): SpanExporter | undefined {
  if (endpoint === undefined) return undefined;
  const url = `${endpoint.replace(/\/+$/, "")}/v1/traces`;
  return new OTLPTraceExporter({ url, timeoutMillis: 5_000, concurrencyLimit: 2 });
}

/** Exports in batches, and counts what is lost in the queue and on the way: the processor itself only logs it. */
function batching(exporter: SpanExporter): SpanProcessor {
  let queued = 0;
  const counting: SpanExporter = {
    export(spans, done) {
      queued -= spans.length;
      exporter.export(spans, (result) => {
        if (result.code !== ExportResultCode.SUCCESS) dropped(spans.length, "traces", "export");
        done(result);
      });
    },
    forceFlush: () => exporter.forceFlush?.() ?? Promise.resolve(),
    shutdown: () => exporter.shutdown(),
  };
  const processor = new BatchSpanProcessor({
    exporter: counting,
    maxQueueSize: queueMax,
    maxExportBatchSize: 512,
    scheduledDelayMillis: 1_000,
    exportTimeoutMillis: 5_000,
  });
  return {
    onStart: (span, parent) => processor.onStart(span, parent),
    onEnd(span) {
      if ((span.spanContext().traceFlags & TraceFlags.SAMPLED) === 0) return;
      if (queued >= queueMax) return dropped(1, "traces", "queue_full");
      queued += 1;
      processor.onEnd(span);
    },
    forceFlush: () => processor.forceFlush(),
    shutdown: () => processor.shutdown(),
  };
}

/** Counts the exports that failed; their figures are cumulative, so that the next one makes up for them. */
class CountingMetricExporter extends OTLPMetricExporter {
  override export(...[items, done]: Parameters<OTLPMetricExporter["export"]>): void {
    super.export(items, (result) => {
      if (result.code !== ExportResultCode.SUCCESS) dropped(1, "metrics", "export");
      done(result);
    });
  }
}

function exportingReader(
  { otlpEndpoint, metricIntervalMs = 60_000 }: TelemetryOptions,
  producer: MetricProducer,
): MetricReader | undefined {
  if (otlpEndpoint === undefined) return undefined;
  const url = `${otlpEndpoint.replace(/\/+$/, "")}/v1/metrics`;
  return new PeriodicExportingMetricReader({
    exporter: new CountingMetricExporter({ url, timeoutMillis: 5_000, concurrencyLimit: 2 }),
    exportIntervalMillis: metricIntervalMs,
    exportTimeoutMillis: Math.min(5_000, metricIntervalMs),
    metricProducers: [producer],
  });
}

function scrapedReader(producer: MetricProducer): { reader: MetricReader; scrape: () => Promise<string> } {
  const reader = new PrometheusExporter({ preventServerStart: true, metricProducers: [producer] });
  const serializer = new PrometheusSerializer("", false, undefined, false, true);
  return {
    reader,
    scrape: async () => serializer.serialize((await reader.collect()).resourceMetrics),
  };
}

/** A collector that is gone must not keep the process alive, and what it did not take is lost on purpose. */
async function within(work: Promise<unknown>, ms: number): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  const timer = setTimeout(resolve, ms);
  work.then(
    () => resolve(),
    () => resolve(),
  );
  await promise;
  clearTimeout(timer);
}
