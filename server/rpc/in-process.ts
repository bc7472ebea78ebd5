import { Code, ConnectError, type Transport } from "@connectrpc/connect";
import { createUniversalHandlerClient } from "@connectrpc/connect/protocol";
import { createTransport } from "@connectrpc/connect/protocol-connect";
import { applyDeadline, createHandlers, type DispatchOptions } from "./dispatch.ts";
import { defaultLimits, type ListenerLimits } from "./listener-limits.ts";

export interface InProcessOptions extends Pick<DispatchOptions, "routes" | "interceptors" | "requestGate" | "log"> {
  readonly limits?: Partial<ListenerLimits>;
  /** Ends the calls that run when it is aborted, with its reason. */
  readonly shutdownSignal?: AbortSignal;
}

/**
 * The routes of a listener for callers inside this process: same gate, interceptors, limits and errors, and messages
 * that are encoded as on the wire, so that no caller shares an object with a handler. Nothing is taken for granted of
 * who calls: a call carries its token in its headers and is authenticated by it.
 */
export function createInProcessTransport(options: InProcessOptions): Transport {
  const limits = { ...defaultLimits, ...options.limits };
  const shutdownSignal = options.shutdownSignal ?? new AbortController().signal;
  const handlers = createHandlers({ ...options, limits, shutdownSignal });
  const send = createUniversalHandlerClient([...handlers.values()]);
  return createTransport({
    httpClient: (request) => {
      const method = handlers.get(new URL(request.url).pathname)?.method;
      if (method === undefined) throw new ConnectError("There is no such RPC.", Code.Unimplemented);
      if (method.methodKind === "unary") applyDeadline(request.header, limits.timeoutMaxMs);
      return send(request);
    },
    baseUrl: "http://in-process",
    useBinaryFormat: true,
    interceptors: [],
    acceptCompression: [],
    sendCompression: null,
    compressMinBytes: Number.MAX_SAFE_INTEGER,
    readMaxBytes: limits.writeMaxBytes,
    writeMaxBytes: Number.MAX_SAFE_INTEGER,
  });
}
