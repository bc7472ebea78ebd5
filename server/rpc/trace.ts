import {
  type Context,
  context,
  propagation,
  ROOT_CONTEXT,
  type Span,
  SpanKind,
  SpanStatusCode,
  type TextMapGetter,
  trace,
} from "@opentelemetry/api";
import {
  ATTR_ERROR_TYPE,
  ATTR_RPC_METHOD,
  ATTR_RPC_STATUS_CODE,
  ATTR_RPC_SYSTEM_NAME,
  RPC_SYSTEM_NAME_VALUE_GRPC,
} from "@opentelemetry/semantic-conventions";
import { Code, ConnectError, type HandlerContext, type Interceptor } from "@connectrpc/connect";
import { HoldfastError } from "../domain/errors.ts";
import { attribute } from "../telemetry-attributes.ts";
import { principalKey } from "./auth.ts";

const scope = "holdfast";

/** The W3C trace id of the call that is being served: 32 lower-case hex digits, or undefined outside of one. */
export function currentTraceId(): string | undefined {
  const current = trace.getSpanContext(context.active());
  return current === undefined || !trace.isSpanContextValid(current) ? undefined : current.traceId;
}

/**
 * One server span per RPC, a child of the caller's `traceparent`. It is the active span of the handler. The
 * outermost interceptor, so that it sees the code that the caller gets.
 */
export function traceInterceptor(): Interceptor {
  return (next) => async (request) => {
    const parent = propagation.extract(ROOT_CONTEXT, request.header, headerGetter);
    const span = startServerSpan(parent, request);
    const principal = request.contextValues.get(principalKey);
    if (principal !== undefined) {
      span.setAttribute(attribute.workspace, principal.workspace);
      span.setAttribute(attribute.role, principal.role);
      if (principal.role === "vault_key") span.setAttribute(attribute.vaultKey, principal.id);
    }
    const active = trace.setSpan(parent, span);
    let streaming = false;
    try {
      const response = await context.with(active, next, undefined, request);
      if (!response.stream) return succeed(span, response);
      streaming = true;
      return { ...response, message: traceStream(response.message, span, active) };
    } catch (error) {
      failRpc(span, error);
      throw error;
    } finally {
      if (!streaming) span.end();
    }
  };
}

/**
 * Gives a span to every call that the gate refuses. Interceptors run after the gate, so without this an attack on
 * tokens would be invisible in traces.
 */
export function traceGate(gate: (call: HandlerContext) => Promise<void>): (call: HandlerContext) => Promise<void> {
  return async (call) => {
    const startTime = Date.now();
    try {
      await gate(call);
    } catch (error) {
      const parent = propagation.extract(ROOT_CONTEXT, call.requestHeader, headerGetter);
      const span = startServerSpan(parent, { ...call, header: call.requestHeader }, startTime);
      failRpc(span, error);
      span.end();
      throw error;
    }
  };
}

interface Called {
  readonly header: Headers;
  readonly service: { readonly typeName: string };
  readonly method: { readonly name: string };
}

const headerGetter: TextMapGetter<Headers> = {
  keys: (headers) => [...headers.keys()],
  get: (headers, key) => headers.get(key) ?? undefined,
};

function startServerSpan(parent: Context, call: Called, startTime?: number): Span {
  const name = `${call.service.typeName}/${call.method.name}`;
  const grpc = call.header.get("content-type")?.startsWith("application/grpc") ?? false;
  return trace.getTracer(scope).startSpan(
    name,
    {
      kind: SpanKind.SERVER,
      attributes: {
        [ATTR_RPC_SYSTEM_NAME]: grpc ? RPC_SYSTEM_NAME_VALUE_GRPC : "connectrpc",
        [ATTR_RPC_METHOD]: name,
      },
      ...(startTime === undefined ? {} : { startTime }),
    },
    parent,
  );
}

async function* traceStream<T>(messages: AsyncIterable<T>, span: Span, active: Context): AsyncIterable<T> {
  const iterator = messages[Symbol.asyncIterator]();
  try {
    while (true) {
      // A generator resumes in the context of whoever pulls it, so the span is made active for every pull.
      const { done, value } = await context.with(active, () => iterator.next());
      if (done === true) break;
      yield value;
    }
    succeed(span, undefined);
  } catch (error) {
    failRpc(span, error);
    throw error;
  } finally {
    span.end();
    await iterator.return?.();
  }
}

function succeed<T>(span: Span, value: T): T {
  span.setAttribute(ATTR_RPC_STATUS_CODE, "OK");
  return value;
}

/** Codes that say that the server failed. The others are the caller's mistakes and do not colour the span red. */
const serverFaults: ReadonlySet<Code> = new Set([
  Code.Unknown,
  Code.DeadlineExceeded,
  Code.Unimplemented,
  Code.Internal,
  Code.Unavailable,
  Code.DataLoss,
]);

function failRpc(span: Span, error: unknown): void {
  const failure = ConnectError.from(error, Code.Internal);
  const code = statusName(failure.code);
  span.setAttribute(ATTR_RPC_STATUS_CODE, code);
  if (failure.cause instanceof HoldfastError) span.setAttribute(attribute.errorReason, failure.cause.reason);
  if (!serverFaults.has(failure.code)) return;
  span.setAttribute(ATTR_ERROR_TYPE, code);
  span.setStatus({ code: SpanStatusCode.ERROR, message: failure.rawMessage });
}

/** "FailedPrecondition" → "FAILED_PRECONDITION", the spelling that gRPC and the conventions use. */
function statusName(code: Code): string {
  if (code === Code.Canceled) return "CANCELLED";
  return (Code[code] ?? "Unknown").replace(/(?<=[a-z])(?=[A-Z])/g, "_").toUpperCase();
}
