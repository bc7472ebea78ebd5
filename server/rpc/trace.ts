import {
  type Attributes,
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
import { withOrigin } from "../store/trace-origin.ts";
import { attribute } from "../telemetry-attributes.ts";
import { measure, metric } from "../telemetry-metrics.ts";
import { principalKey } from "./auth.ts";

export { currentTraceId } from "../store/trace-origin.ts";

const scope = "holdfast";

/** Runs `fn` for the trace that a request names; for that of its call where it names none, or nothing well-formed. */
export function inTraceOf<Result>(traceParent: string, fn: () => Result): Result {
  if (traceParent === "") return fn();
  const origin = trace.getSpanContext(propagation.extract(ROOT_CONTEXT, { traceparent: traceParent }));
  return origin === undefined ? fn() : context.with(withOrigin(context.active(), origin), fn);
}

/**
 * One server span per RPC, a child of the caller's `traceparent`. It is the active span of the handler. The
 * outermost interceptor, so that it sees the code that the caller gets.
 */
export function traceInterceptor(): Interceptor {
  return (next) => async (request) => {
    const parent = propagation.extract(ROOT_CONTEXT, request.header, headerGetter);
    const call = startCall(parent, request);
    const { span } = call;
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
      if (!response.stream) return succeed(call, response);
      streaming = true;
      return { ...response, message: traceStream(response.message, call, active) };
    } catch (error) {
      failRpc(call, error);
      throw error;
    } finally {
      if (!streaming) endCall(call);
    }
  };
}

/**
 * Gives a span to every call that the gate refuses. Interceptors run after the gate, so without this an attack on
 * tokens would be invisible in traces.
 */
export function traceGate(gate: (call: HandlerContext) => Promise<void>): (call: HandlerContext) => Promise<void> {
  return async (call) => {
    const since = { startTime: Date.now(), begun: performance.now() };
    try {
      await gate(call);
    } catch (error) {
      const parent = propagation.extract(ROOT_CONTEXT, call.requestHeader, headerGetter);
      const refused = startCall(parent, { ...call, header: call.requestHeader }, since);
      failRpc(refused, error);
      endCall(refused);
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

/** One call on its way, for its span and for the metric of its duration. */
interface Call {
  readonly span: Span;
  /** On the clock of `performance`. */
  readonly begun: number;
  readonly labels: Attributes;
  /** Undefined until it has ended. */
  status: string | undefined;
  failed: boolean;
}

function startCall(
  parent: Context,
  call: Called,
  since?: { readonly startTime: number; readonly begun: number },
): Call {
  const name = `${call.service.typeName}/${call.method.name}`;
  const grpc = call.header.get("content-type")?.startsWith("application/grpc") ?? false;
  const labels = {
    [ATTR_RPC_SYSTEM_NAME]: grpc ? RPC_SYSTEM_NAME_VALUE_GRPC : "connectrpc",
    [ATTR_RPC_METHOD]: name,
  };
  const startTime = since === undefined ? {} : { startTime: since.startTime };
  const options = { kind: SpanKind.SERVER, attributes: labels, ...startTime };
  const span = trace.getTracer(scope).startSpan(name, options, parent);
  return { span, labels, begun: since?.begun ?? performance.now(), status: undefined, failed: false };
}

function endCall({ span, begun, labels, status = "CANCELLED", failed }: Call): void {
  span.end();
  measure(metric.rpcDuration, (performance.now() - begun) / 1000, {
    ...labels,
    [ATTR_RPC_STATUS_CODE]: status,
    ...(failed ? { [ATTR_ERROR_TYPE]: status } : {}),
  });
}

async function* traceStream<T>(messages: AsyncIterable<T>, call: Call, active: Context): AsyncIterable<T> {
  const iterator = messages[Symbol.asyncIterator]();
  try {
    while (true) {
      // A generator resumes in the context of whoever pulls it, so the span is made active for every pull.
      const { done, value } = await context.with(active, () => iterator.next());
      if (done === true) break;
      yield value;
    }
    succeed(call, undefined);
  } catch (error) {
    failRpc(call, error);
    throw error;
  } finally {
    endCall(call);
    await iterator.return?.();
  }
}

function succeed<T>(call: Call, value: T): T {
  call.status = "OK";
  call.span.setAttribute(ATTR_RPC_STATUS_CODE, "OK");
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

function failRpc(call: Call, error: unknown): void {
  const { span } = call;
  const failure = ConnectError.from(error, Code.Internal);
  const code = statusName(failure.code);
  call.status = code;
  call.failed = serverFaults.has(failure.code);
  span.setAttribute(ATTR_RPC_STATUS_CODE, code);
  if (failure.cause instanceof HoldfastError) span.setAttribute(attribute.errorReason, failure.cause.reason);
  if (!call.failed) return;
  span.setAttribute(ATTR_ERROR_TYPE, code);
  span.setStatus({ code: SpanStatusCode.ERROR, message: failure.rawMessage });
}

/** "FailedPrecondition" → "FAILED_PRECONDITION", the spelling that gRPC and the conventions use. */
function statusName(code: Code): string {
  if (code === Code.Canceled) return "CANCELLED";
  return (Code[code] ?? "Unknown").replace(/(?<=[a-z])(?=[A-Z])/g, "_").toUpperCase();
}
