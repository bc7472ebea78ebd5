import { context, metrics, propagation, trace } from "@opentelemetry/api";
import { AsyncLocalStorageContextManager } from "@opentelemetry/context-async-hooks";
import { W3CTraceContextPropagator } from "@opentelemetry/core";
import { OTLPMetricExporter } from "@opentelemetry/exporter-metrics-otlp-proto";
import { OTLPTraceExporter } from "@opentelemetry/exporter-trace-otlp-proto";
import { resourceFromAttributes } from "@opentelemetry/resources";
import { MeterProvider, type MetricReader, PeriodicExportingMetricReader } from "@opentelemetry/sdk-metrics";
import { BatchSpanProcessor, type SpanExporter, TracerProvider } from "@opentelemetry/sdk-trace";
import { ATTR_SERVICE_NAME } from "@opentelemetry/semantic-conventions";

export interface TelemetryOptions {
  readonly serviceName: string;
  /** Base address of an OTLP/HTTP collector, for example "http://localhost:4318"; "/v1/traces" and "/v1/metrics" are appended. */
  readonly otlpEndpoint?: string;
  /** How often metrics are exported; 60 s unless told. */
  readonly metricIntervalMs?: number;
  /** Instead of an endpoint, for tests. */
  readonly exporter?: SpanExporter;
  /** Instead of an endpoint, for tests. */
  readonly metricReader?: MetricReader;
}

export interface Telemetry {
  /** Sends what is queued, for at most 5 s, and restores the state before the start. Never rejects. */
  shutdown(): Promise<void>;
}

const shutdownMs = 5_000;

/**
 * Installs the process-wide tracer. Without an endpoint and an exporter only the context and the W3C propagator
 * are installed: trace ids of callers still reach the audit and the vendor calls, and no span costs anything.
 *
 * The queue is bounded and a full queue drops spans, one export is in flight at a time and is given up after 5 s:
 * a slow or dead collector costs memory for 4,096 spans and nothing else.
 */
export function startTelemetry(options: TelemetryOptions): Telemetry {
  context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
  propagation.setGlobalPropagator(new W3CTraceContextPropagator());

  const exporter = options.exporter ?? exporterFor(options.otlpEndpoint);
  const provider =
    exporter === undefined
      ? undefined
      : new TracerProvider({
          resource: resourceFromAttributes({ [ATTR_SERVICE_NAME]: options.serviceName }),
          // Identifiers come from callers: one that is too long must not become a large span.
          spanLimits: { attributeValueLengthLimit: 512, attributeCountLimit: 64, linkCountLimit: 512 },
          spanProcessors: [
            new BatchSpanProcessor({
              exporter,
              maxQueueSize: 4_096,
              maxExportBatchSize: 512,
              scheduledDelayMillis: 1_000,
              exportTimeoutMillis: 5_000,
            }),
          ],
        });
  if (provider !== undefined) trace.setGlobalTracerProvider(provider);
  const reader = options.metricReader ?? metricReaderFor(options);
  const meters =
    reader === undefined
      ? undefined
      : new MeterProvider({
          resource: resourceFromAttributes({ [ATTR_SERVICE_NAME]: options.serviceName }),
          readers: [reader],
        });
  if (meters !== undefined) metrics.setGlobalMeterProvider(meters);

  return {
    async shutdown() {
      await within(Promise.all([provider?.shutdown(), meters?.shutdown()]), shutdownMs);
      trace.disable();
      metrics.disable();
      propagation.disable();
      context.disable();
    },
  };
}

function exporterFor(endpoint: string | undefined): SpanExporter | undefined {
  if (endpoint === undefined) return undefined;
  const url = `${endpoint.replace(/\/+$/, "")}/v1/traces`;
  return new OTLPTraceExporter({ url, timeoutMillis: 5_000, concurrencyLimit: 2 });
}

function metricReaderFor({ otlpEndpoint, metricIntervalMs = 60_000 }: TelemetryOptions): MetricReader | undefined {
  if (otlpEndpoint === undefined) return undefined;
  const url = `${otlpEndpoint.replace(/\/+$/, "")}/v1/metrics`;
  return new PeriodicExportingMetricReader({
    exporter: new OTLPMetricExporter({ url, timeoutMillis: 5_000, concurrencyLimit: 2 }),
    exportIntervalMillis: metricIntervalMs,
    exportTimeoutMillis: Math.min(5_000, metricIntervalMs),
  });
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
