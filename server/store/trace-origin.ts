import { type Context, createContextKey, type SpanContext } from "@opentelemetry/api";

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
