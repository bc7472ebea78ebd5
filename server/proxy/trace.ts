import {
  type Attributes,
  context,
  propagation,
  ROOT_CONTEXT,
  SpanKind,
  SpanStatusCode,
  type TextMapGetter,
  trace,
} from "@opentelemetry/api";
import {
  ATTR_HTTP_REQUEST_METHOD,
  ATTR_HTTP_RESPONSE_STATUS_CODE,
  ATTR_SERVER_ADDRESS,
  ATTR_SERVER_PORT,
} from "@opentelemetry/semantic-conventions";
import { attribute } from "../telemetry-attributes.ts";
import { count, label, measure, metric } from "../telemetry-metrics.ts";
import { linesOf } from "./headers.ts";
import type { RawHead, RequestHead } from "./vendor.ts";

const tracer = trace.getTracer("holdfast");

/** The span of one request, from its head to its answer. */
export interface RequestTrace {
  /** Runs a step of the request below its span. */
  run<Result>(step: () => Promise<Result>): Promise<Result>;
  /** Whose it is. */
  owner(key: { readonly workspace: string; readonly vaultKeyId: string }): void;
  /** What is asked for. Before that nothing is known of a request that may be put into a span. */
  asked(head: RequestHead): void;
  /** The audit has no event of it. */
  unrecorded(): void;
  end(ended: {
    readonly requestId: string;
    readonly status: number;
    readonly disposition: string;
    readonly reason: string;
  }): void;
}

/** Begins the span of a request, a child of the client's `traceparent` where it sends one. */
export function traceRequest(raw: RawHead, vendor: string): RequestTrace {
  const parent = propagation.extract(ROOT_CONTEXT, raw, headGetter);
  const options = { kind: SpanKind.SERVER, attributes: { [attribute.vendor]: vendor } };
  const span = tracer.startSpan("holdfast.proxy", options, parent);
  const active = trace.setSpan(parent, span);
  return {
    run: (step) => context.with(active, step),
    owner({ workspace, vaultKeyId }) {
      span.setAttribute(attribute.workspace, workspace);
      span.setAttribute(attribute.vaultKey, vaultKeyId);
    },
    asked({ method, endpoint }) {
      span.updateName(`holdfast.proxy ${endpoint}`);
      span.setAttribute(ATTR_HTTP_REQUEST_METHOD, method);
      span.setAttribute(attribute.vendorEndpoint, endpoint);
    },
    unrecorded: () => count(metric.proxyUnrecorded, 1, { [attribute.vendor]: vendor }),
    end({ requestId, status, disposition, reason }) {
      span.setAttribute(attribute.requestId, requestId);
      span.setAttribute(attribute.disposition, disposition);
      span.setAttribute(ATTR_HTTP_RESPONSE_STATUS_CODE, status);
      if (reason !== "") span.setAttribute(attribute.reason, reason);
      if (status >= 500) span.setStatus({ code: SpanStatusCode.ERROR });
      span.end();
      count(metric.proxiedRequests, 1, {
        [attribute.vendor]: vendor,
        [attribute.disposition]: disposition,
        [attribute.statusClass]: `${Math.floor(status / 100)}xx`,
      });
    },
  };
}

const headGetter: TextMapGetter<RawHead> = {
  keys: ({ rawHeaders }) => [...linesOf(rawHeaders)].map(([name]) => name),
  get({ rawHeaders }, key) {
    const values = [...linesOf(rawHeaders)].filter(([name]) => name === key).map(([, value]) => value);
    // A state may come in several lines. Of several parents none is the parent.
    if (key === "traceparent") return values.length === 1 ? values[0] : undefined;
    return values.length === 0 ? undefined : values;
  },
};

/** Runs one request to the vendor in a span of its own. */
export function traceUpstream<Answer extends { getStatusCode(): number }>(
  { method, host, port }: { readonly method: string; readonly host: string; readonly port: number },
  send: () => Promise<Answer>,
): Promise<Answer> {
  const attributes = { [ATTR_HTTP_REQUEST_METHOD]: method, [ATTR_SERVER_ADDRESS]: host, [ATTR_SERVER_PORT]: port };
  const begun = performance.now();
  const measured = (ended: Attributes): void =>
    measure(metric.upstreamDuration, (performance.now() - begun) / 1000, { ...attributes, ...ended });
  return tracer.startActiveSpan("holdfast.upstream", { kind: SpanKind.CLIENT, attributes }, async (span) => {
    try {
      const answer = await send();
      span.setAttribute(ATTR_HTTP_RESPONSE_STATUS_CODE, answer.getStatusCode());
      measured({ [ATTR_HTTP_RESPONSE_STATUS_CODE]: answer.getStatusCode() });
      return answer;
    } catch (error) {
      span.setStatus({ code: SpanStatusCode.ERROR, message: error instanceof Error ? error.name : "error" });
      measured({ [label.error]: (error as NodeJS.ErrnoException).code ?? "lost" });
      throw error;
    } finally {
      span.end();
    }
  });
}
