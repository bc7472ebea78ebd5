import { type Context, context, createContextKey, type SpanContext, trace } from "@opentelemetry/api";

const key = createContextKey("holdfast.origin");

/**
 * The span that a command comes from, in the trace of its own caller: of a request that came in one call with those of
 * other traces. Undefined where the call is all that is known.
 */
export function originOf(context: Context): SpanContext | undefined {
  return context.getValue(key) as SpanContext | undefined;
}

/** The same context for a command that comes from there. The parent of new spans stays what it is. */
export function withOrigin(context: Context, origin: SpanContext): Context {
  return context.setValue(key, origin);
}

/**
 * The W3C trace id of what is being done, 32 lower-case hex digits: that of its origin, else that of the active span.
 * Undefined outside of both.
 */
export function currentTraceId(): string | undefined {
  const active = context.active();
  const current = originOf(active) ?? trace.getSpanContext(active);
  return current === undefined || !trace.isSpanContextValid(current) ? undefined : current.traceId;
}
