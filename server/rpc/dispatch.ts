import type { IncomingMessage, ServerResponse } from "node:http";
import { constants, type Http2ServerRequest, type Http2ServerResponse } from "node:http2";
import type { DescMethod, DescMethodUnary } from "@bufbuild/protobuf";
import { type ConnectRouter, createConnectRouter, type HandlerContext, type Interceptor } from "@connectrpc/connect";
import { createMethodUrl, type UniversalHandler, type UniversalServerRequest } from "@connectrpc/connect/protocol";
import {
  compressionGzip,
  universalRequestFromNodeRequest,
  universalResponseToNodeResponse,
} from "@connectrpc/connect-node";
import type { ErrorLog } from "./errors.ts";
import { createLeanPath, type TakeStream, type UnaryRoute } from "./lean.ts";
import type { ListenerLimits } from "./listener-limits.ts";
import { jsonOptionsOf, readInterceptor, refusingUnreadable } from "./unreadable-request.ts";

export interface DispatchOptions {
  readonly routes: (router: ConnectRouter) => void;
  /** The first is the outermost. */
  readonly interceptors: readonly Interceptor[];
  /** Runs on the headers, before the body is read. */
  readonly requestGate?: (context: HandlerContext) => void | Promise<void>;
  /** Full names of unary RPCs whose plain gRPC calls go past the adapter. */
  readonly leanMethods?: ReadonlySet<string>;
  readonly limits: ListenerLimits;
  readonly shutdownSignal: AbortSignal;
  readonly log: ErrorLog;
}

/** What a service asks for with every spend. */
const hotMethods: ReadonlySet<string> = new Set(
  ["AuthorizeSpend", "BatchAuthorizeSpend", "CommitSpend", "BatchCommitSpend", "VoidSpend", "BindVendorReference"].map(
    (name) => `holdfast.v1.SpendControlService.${name}`,
  ),
);

type NodeRequest = IncomingMessage | Http2ServerRequest;
type NodeResponse = ServerResponse | Http2ServerResponse;

export interface Dispatcher {
  readonly handle: (request: NodeRequest, response: NodeResponse) => void;
  /** Serves a stream of HTTP/2 without the adapter, or answers false: then it is to be handled. */
  readonly take: TakeStream;
  /** Whether a path belongs to an RPC that streams, and so may live long. */
  readonly isStreaming: (path: string | undefined) => boolean;
}

/**
 * Serves the routes over Connect, gRPC and gRPC-Web. A path is served only if it equals the RPC's path byte for
 * byte: no query, no escapes, no double or missing slash. So whatever decides by path elsewhere, a load balancer
 * for example, decides about the same RPC as this server.
 */
export function createDispatcher(options: DispatchOptions): Dispatcher {
  const { limits, log, leanMethods = hotMethods } = options;
  const unary = new Map<string, UnaryRoute>();
  const handlers = createHandlers(options, unary);
  const hot = [...unary].filter(([, { method }]) => leanMethods.has(nameOf(method)));

  function handle(request: NodeRequest, response: NodeResponse): void {
    const handler = handlers.get(request.url ?? "");
    if (handler === undefined) return refuse(request, response, 404);
    if (request.rawHeaders.length > 2 * limits.headersMax) return refuse(request, response, 431);
    let universal: UniversalServerRequest;
    try {
      universal = universalRequestFromNodeRequest(request, response as ServerResponse, undefined, undefined);
    } catch {
      // No authority, or one that no URL can have. Thrown from an event listener it would end the process.
      return refuse(request, response, 400);
    }
    if (handler.method.methodKind === "unary") applyDeadline(universal.header, limits.timeoutMaxMs);
    handler(universal)
      .then((answer) => universalResponseToNodeResponse(answer, response))
      .catch((error: unknown) => {
        if (universal.signal.aborted) return;
        log.error({ err: error, method: handler.method.name }, "the response could not be written");
        response.destroy();
      });
  }

  return {
    handle,
    take: createLeanPath({ ...options, routes: new Map(hot) }),
    isStreaming: (path) => (handlers.get(path ?? "")?.method.methodKind ?? "unary") !== "unary",
  };
}

/** The handler of every RPC, by its path. The unary ones of Holdfast's own services are put into `unary` as they are. */
export function createHandlers(
  options: DispatchOptions,
  unary = new Map<string, UnaryRoute>(),
): ReadonlyMap<string, UniversalHandler> {
  const { limits } = options;
  const router = createConnectRouter({
    interceptors: [readInterceptor, ...options.interceptors],
    requestGate: refusingUnreadable(options.requestGate, options.log),
    readMaxBytes: limits.readMaxBytes,
    writeMaxBytes: limits.writeMaxBytes,
    maxTimeoutMs: limits.timeoutMaxMs,
    jsonOptions: { ignoreUnknownFields: false },
    shutdownSignal: options.shutdownSignal,
    acceptCompression: [compressionGzip],
    // Requests may be compressed, responses are not: every client offers gzip, and it costs about 1.5 ms of CPU for
    // the 200 KB answer to a batch, to save bytes inside one network.
    compressMinBytes: limits.writeMaxBytes,
  });
  options.routes(perMethod(router, options, unary));
  // Of two handlers for one path the later one counts, which is the one with the method's own options.
  return new Map(router.handlers.map((handler) => [handler.requestPath, handler]));
}

/**
 * Connect has one message limit and one way to read JSON per service. This registers the RPCs of Holdfast's own services
 * once more, each with its own.
 */
function perMethod(
  router: ConnectRouter,
  { limits, log }: DispatchOptions,
  unary: Map<string, UnaryRoute>,
): ConnectRouter {
  const wrapped: ConnectRouter = {
    handlers: router.handlers,
    rpc(method, implementation, options) {
      const isBatch = limits.batchMethods.has(nameOf(method));
      const readMaxBytes = isBatch ? limits.batchReadMaxBytes : limits.readMaxBytes;
      router.rpc(method, implementation, { readMaxBytes, jsonOptions: jsonOptionsOf(method, log), ...options });
      if (method.methodKind === "unary") {
        const route = { method: method as DescMethodUnary, implementation: implementation as never, readMaxBytes };
        unary.set(createMethodUrl("/", method), route);
      }
      return wrapped;
    },
    service(service, implementation, options) {
      router.service(service, implementation, options);
      if (!service.typeName.startsWith("holdfast.")) return wrapped;
      const methods = implementation as Record<string, ((...input: never[]) => never) | undefined>;
      for (const method of service.methods) {
        const fn = methods[method.localName]?.bind(implementation);
        if (fn !== undefined) wrapped.rpc(method, fn as never, options);
      }
      return wrapped;
    },
  };
  return wrapped;
}

function nameOf(method: DescMethod): string {
  return `${method.parent.typeName}.${method.name}`;
}

/** A call without a deadline gets the longest one, so that nothing waits for ever for a caller that has gone. */
export function applyDeadline(headers: Headers, timeoutMs: number): void {
  const grpc = headers.get("content-type")?.startsWith("application/grpc") ?? false;
  const name = grpc ? "grpc-timeout" : "connect-timeout-ms";
  if (!headers.has(name)) headers.set(name, grpc ? `${timeoutMs}m` : `${timeoutMs}`);
}

function refuse(request: NodeRequest, response: NodeResponse, status: number): void {
  if ("stream" in response) {
    const { stream } = response;
    response.writeHead(status);
    // Tells the client to stop sending a body that nobody will read.
    response.end(() => stream.close(constants.NGHTTP2_NO_ERROR));
    return;
  }
  if (!request.complete) response.shouldKeepAlive = false;
  response.writeHead(status);
  response.end();
}
