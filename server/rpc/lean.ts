import { constants, type IncomingHttpHeaders, type ServerHttp2Stream } from "node:http2";
import { create, type DescMessage, type DescMethodUnary, type MessageShape } from "@bufbuild/protobuf";
import {
  Code,
  ConnectError,
  createContextKey,
  type HandlerContext,
  type Interceptor,
  type MethodImpl,
  type UnaryRequest,
  type UnaryResponse,
} from "@connectrpc/connect";
import { compressionNegotiate, createMethodSerializationLookup } from "@connectrpc/connect/protocol";
import { headerAcceptEncoding, parseTimeout, setTrailerStatus } from "@connectrpc/connect/protocol-grpc";
import { compressionGzip } from "@connectrpc/connect-node";
import type { ErrorLog } from "./errors.ts";
import { prefixBytes, readMessage } from "./lean-body.ts";
import { LeanAnswer, LeanCall, resetReason } from "./lean-call.ts";
import type { ListenerLimits } from "./listener-limits.ts";
import { refuseUnreadable } from "./unreadable-request.ts";

/** A unary RPC as it was registered. */
export interface UnaryRoute {
  readonly method: DescMethodUnary;
  readonly implementation: MethodImpl<DescMethodUnary>;
  /** Largest request message, after decompression. */
  readonly readMaxBytes: number;
}

export interface LeanOptions {
  /** By path. Only these are served. */
  readonly routes: ReadonlyMap<string, UnaryRoute>;
  /** The first is the outermost. Applied once, not once per call. */
  readonly interceptors: readonly Interceptor[];
  readonly requestGate?: (context: HandlerContext) => void | Promise<void>;
  readonly limits: Pick<ListenerLimits, "headersMax" | "timeoutMaxMs" | "writeMaxBytes">;
  readonly shutdownSignal: AbortSignal;
  readonly log: ErrorLog;
}

/** Serves a new HTTP/2 stream, or answers false and leaves it to somebody else. */
export type TakeStream = (
  stream: ServerHttp2Stream,
  headers: IncomingHttpHeaders,
  rawHeaders: readonly string[],
) => boolean;

/** One of the listed RPCs, with all that is the same for each of its calls. */
interface LeanMethod extends UnaryRoute {
  readonly parse: (bytes: Uint8Array) => MessageShape<DescMessage>;
  readonly serialize: (message: MessageShape<DescMessage>) => Uint8Array;
  /** The interceptors around the handler. */
  readonly invoke: (request: UnaryRequest) => Promise<UnaryResponse>;
}

const callKey = createContextKey<LeanCall | undefined>(undefined, { description: "lean call" });

/**
 * A path for the plainest calls of the RPCs that are called most: gRPC in binary, one message each way. The adapter
 * between Node and Connect costs several times what such a call does, in web headers, web streams and iterators in
 * iterators. Gate, interceptors, handlers, limits and errors are the same ones; whatever is unusual about a call is left
 * to the adapter or read with its parts, so that no client can tell which of the two has answered.
 */
export function createLeanPath(options: LeanOptions): TakeStream {
  const methods = new Map([...options.routes].map(([path, route]) => [path, leanMethod(route, options)]));
  const calls = new Set<LeanCall>();
  const origins = createOrigins();
  const { shutdownSignal, limits, log } = options;
  shutdownSignal.addEventListener("abort", () => {
    for (const call of calls) call.abort(shutdownSignal.reason);
  });
  return (stream, headers, rawHeaders) => {
    const path = headers[":path"] ?? "";
    const method = methods.get(path);
    if (method === undefined || !isPlain(headers) || rawHeaders.length > 2 * limits.headersMax) return false;
    const origin = origins(stream.session?.encrypted === true ? "https" : "http", headers[":authority"]);
    if (origin === undefined) return false;
    begin({ stream, headers, url: origin + path }, method, { options, calls }).catch((error: unknown) => {
      log.error({ err: error, method: method.method.name }, "the response could not be written");
      stream.destroy();
    });
    return true;
  };
}

/** What all calls share. */
interface LeanPath {
  readonly options: LeanOptions;
  /** Those that are not answered. */
  readonly calls: Set<LeanCall>;
}

/** The head of a call. */
interface Arrived {
  readonly stream: ServerHttp2Stream;
  readonly headers: IncomingHttpHeaders;
  readonly url: string;
}

const originsMax = 1_000;

/** The origin that an authority stands for, remembered; undefined for one that no URL can have. */
function createOrigins(): (scheme: string, authority: string | undefined) => string | undefined {
  const known = new Map<string, string>();
  return (scheme, authority) => {
    if (authority === undefined) return undefined;
    const given = `${scheme}://${authority}`;
    let origin = known.get(given);
    if (origin === undefined) {
      if (!URL.canParse(given)) return undefined;
      origin = new URL("/", given).toString().slice(0, -1);
      if (known.size >= originsMax) known.clear();
      known.set(given, origin);
    }
    return origin;
  };
}

function leanMethod(route: UnaryRoute, { interceptors, limits }: LeanOptions): LeanMethod {
  const { method, implementation, readMaxBytes } = route;
  const { writeMaxBytes } = limits;
  const serialization = createMethodSerializationLookup(method, undefined, undefined, { readMaxBytes, writeMaxBytes });
  const handle = async (request: UnaryRequest): Promise<UnaryResponse> => {
    const call = request.contextValues.get(callKey);
    if (call === undefined) throw new Error("an interceptor has taken the values of the call away");
    const message = await implementation(request.message, contextOf(call, request));
    return new LeanAnswer(call, create(method.output, message));
  };
  return {
    ...route,
    parse: serialization.getI(true).parse,
    serialize: serialization.getO(true).serialize,
    invoke: interceptors.toReversed().reduce((next, one) => one(next as never) as never, handle),
  };
}

/** What a handler is told of a call whose interceptors may have put something in front of it. */
function contextOf(call: LeanCall, request: UnaryRequest): HandlerContext {
  if (request === call) return call;
  const { method, protocolName, requestMethod, timeoutMs, url, responseHeader, responseTrailer } = call;
  return {
    method,
    protocolName,
    requestMethod,
    timeoutMs,
    url,
    responseHeader,
    responseTrailer,
    service: request.service,
    requestHeader: request.header,
    signal: request.signal,
    values: request.contextValues,
  };
}

function isPlain(headers: IncomingHttpHeaders): boolean {
  const type = headers["content-type"];
  return (
    headers[":method"] === "POST" &&
    (type === "application/grpc" || type === "application/grpc+proto") &&
    headers.expect === undefined
  );
}

async function begin(arrived: Arrived, method: LeanMethod, path: LeanPath): Promise<void> {
  const { stream, headers } = arrived;
  const { limits, shutdownSignal } = path.options;
  headers["grpc-timeout"] ??= `${limits.timeoutMaxMs}m`;
  const timeout = parseTimeout(text(headers["grpc-timeout"]), limits.timeoutMaxMs);
  const compression = compressionNegotiate(
    [compressionGzip],
    text(headers["grpc-encoding"]),
    text(headers["grpc-accept-encoding"]),
    headerAcceptEncoding,
  );
  const call = new LeanCall({
    method: method.method,
    headers,
    url: arrived.url,
    timeoutMs: timeout.timeoutMs,
    encoding: compression.response?.name,
  });
  call.contextValues.set(callKey, call);
  if (shutdownSignal.aborted) call.abort(shutdownSignal.reason);
  path.calls.add(call);
  // Whoever has gone needs no answer, and without a listener an error would end the process.
  stream.on("error", () => {});
  stream.once("close", () => {
    if (path.calls.delete(call)) call.abort(resetReason(stream.rstCode));
    call.end();
  });
  await serve({ stream, call, method, path, compression, refused: compression.error ?? timeout.error });
}

/** One call under way. */
interface Serving {
  readonly stream: ServerHttp2Stream;
  readonly call: LeanCall;
  readonly method: LeanMethod;
  readonly path: LeanPath;
  readonly compression: ReturnType<typeof compressionNegotiate>;
  /** What is wrong with its headers; said only to those whom the gate lets through. */
  readonly refused: ConnectError | undefined;
}

async function serve({ stream, call, method, path, compression, refused }: Serving): Promise<void> {
  const { requestGate, log } = path.options;
  let read = false;
  let frame: Buffer | undefined;
  try {
    await requestGate?.(call);
    if (refused !== undefined) throw refused;
    call.message = await readMessage(stream, {
      bytesMax: method.readMaxBytes,
      compression: compression.request,
      parse: method.parse,
    });
    read = true;
    const response = await method.invoke(call);
    if (!(response instanceof LeanAnswer)) takeHeaders(call, response);
    frame = frameOf(method.serialize(response.message));
  } catch (error) {
    if (!read) refuseUnreadable(error, log);
    call.abort(error);
    const said = error instanceof ConnectError ? error : new ConnectError("internal error", Code.Internal);
    setTrailerStatus(call.responseTrailer, said);
  }
  path.calls.delete(call);
  call.end();
  if (!stream.destroyed && !stream.closed) answer(stream, call, frame);
}

/** Without a frame only the trailers are sent, after the headers. */
function answer(stream: ServerHttp2Stream, call: LeanCall, frame: Buffer | undefined): void {
  stream.once("wantTrailers", () => {
    stream.sendTrailers(call.trailersToSend());
    // Node sends them with the next turn. Only then may a client be told to stop sending what nobody reads.
    if (frame === undefined) setImmediate(leaveUnread, stream);
  });
  stream.respond(call.headersToSend(), { waitForTrailers: true });
  if (frame === undefined) stream.end();
  else stream.end(frame);
}

/** A stream is over only when what has come is consumed. */
function leaveUnread(stream: ServerHttp2Stream): void {
  if (stream.state.remoteClose === 0) stream.close(constants.NGHTTP2_NO_ERROR);
  stream.resume();
}

/** An interceptor may have put others in the place of the call's own. */
function takeHeaders(call: LeanCall, { header, trailer }: Partial<UnaryResponse>): void {
  replace(call.responseHeader, header);
  replace(call.responseTrailer, trailer);
}

function replace(own: Headers, other: Headers | undefined): void {
  if (other === undefined || other === own) return;
  for (const name of Array.from(own.keys())) own.delete(name);
  for (const [name, value] of other) own.set(name, value);
}

function frameOf(message: Uint8Array): Buffer {
  const frame = Buffer.allocUnsafe(prefixBytes + message.length);
  frame[0] = 0;
  frame.writeUInt32BE(message.length, 1);
  frame.set(message, prefixBytes);
  return frame;
}

function text(value: string | string[] | undefined): string | null {
  return value === undefined ? null : value.toString();
}
