import {
  type Attributes,
  type Context,
  context,
  type Link,
  propagation,
  type Span,
  SpanStatusCode,
  trace,
} from "@opentelemetry/api";

const tracer = trace.getTracer("@holdfast/sdk");

/** Runs `fn` in a span that ends with it. A failure is marked with the error's name only, never with its text. */
export function inSpan<T>(
  name: string,
  attributes: Attributes,
  fn: (span: Span) => Promise<T>,
  links: Link[] = [],
): Promise<T> {
  return tracer.startActiveSpan(name, { attributes, links }, async (span) => {
    try {
      return await fn(span);
    } catch (error) {
      span.setStatus({ code: SpanStatusCode.ERROR, message: error instanceof Error ? error.name : "error" });
      throw error;
    } finally {
      span.end();
    }
  });
}

/** Puts the W3C trace context of the calling span into the headers of an RPC. */
export function injectTraceContext(headers: Headers): void {
  propagation.inject(context.active(), headers, { set: (target, name, value) => target.set(name, value) });
}

/** The W3C traceparent of a context; empty where nothing is traced or the application does not speak W3C. */
export function traceParentOf(of: Context): string {
  const carrier: { traceparent?: string } = {};
  propagation.inject(of, carrier);
  return carrier.traceparent ?? "";
}
