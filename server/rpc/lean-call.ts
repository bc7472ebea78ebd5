import { constants, type IncomingHttpHeaders } from "node:http2";
import type { DescMessage, DescMethodUnary, DescService, MessageShape } from "@bufbuild/protobuf";
import {
  Code,
  ConnectError,
  type ContextValues,
  createContextValues,
  type HandlerContext,
  type UnaryRequest,
  type UnaryResponse,
} from "@connectrpc/connect";
import { contentTypeProto, grpcStatusOk, headerGrpcStatus } from "@connectrpc/connect/protocol-grpc";
import { outgoing, RequestHeaders } from "./lean-headers.ts";

export interface CallOptions {
  readonly method: DescMethodUnary;
  readonly headers: IncomingHttpHeaders;
  readonly url: string;
  /** Undefined where the client's own could not be read. */
  readonly timeoutMs: number | undefined;
  /** Of the answer, as negotiated. */
  readonly encoding: string | undefined;
}

type OutgoingHeaders = ReturnType<typeof outgoing>;

const plainHeaders: OutgoingHeaders = { "content-type": contentTypeProto };
const plainTrailers: OutgoingHeaders = { [headerGrpcStatus.toLowerCase()]: grpcStatusOk };

/**
 * One call, as its gate, its interceptors and its handler see it. What hardly any of them asks for is made when it is
 * asked for: web headers cost as much as all the rest of a call.
 *
 * Its signal is not aborted by an answer: the handler has returned then, or the signal is aborted already.
 */
export class LeanCall implements HandlerContext, UnaryRequest {
  readonly stream = false;
  readonly protocolName = "grpc";
  readonly requestMethod = "POST";
  readonly service: DescService;
  readonly method: DescMethodUnary;
  readonly url: string;
  readonly header: RequestHeaders;
  readonly contextValues: ContextValues = createContextValues();
  readonly signal: AbortSignal;
  /** Set before the interceptors are entered. */
  declare message: MessageShape<DescMessage>;
  readonly #options: CallOptions;
  readonly #controller = new AbortController();
  readonly #expiresAt: number;
  #timer: NodeJS.Timeout | undefined;
  #responseHeader: Headers | undefined;
  #responseTrailer: Headers | undefined;

  constructor(options: CallOptions) {
    const { method, headers, url, timeoutMs } = options;
    this.#options = options;
    this.service = method.parent;
    this.method = method;
    this.url = url;
    this.header = new RequestHeaders(headers);
    this.signal = this.#controller.signal;
    this.#expiresAt = timeoutMs === undefined ? Number.NaN : Math.trunc(Date.now() + timeoutMs);
    if (timeoutMs === undefined) return;
    if (timeoutMs <= 0) expire(this);
    else this.#timer = setTimeout(expire, timeoutMs, this);
  }

  readonly timeoutMs = (): number | undefined =>
    this.#options.timeoutMs === undefined ? undefined : this.#expiresAt - Date.now();

  get requestHeader(): Headers {
    return this.header;
  }

  get values(): ContextValues {
    return this.contextValues;
  }

  get responseHeader(): Headers {
    this.#responseHeader ??= new Headers(this.#headers() as Record<string, string>);
    return this.#responseHeader;
  }

  get responseTrailer(): Headers {
    this.#responseTrailer ??= new Headers(plainTrailers as Record<string, string>);
    return this.#responseTrailer;
  }

  /** The first reason counts. Without one it is an AbortError. */
  abort(reason?: unknown): void {
    this.#controller.abort(reason);
  }

  /** Its deadline is no longer waited for. */
  end(): void {
    clearTimeout(this.#timer);
  }

  headersToSend(): OutgoingHeaders {
    return this.#responseHeader === undefined ? this.#headers() : outgoing(this.#responseHeader);
  }

  trailersToSend(): OutgoingHeaders {
    return this.#responseTrailer === undefined ? plainTrailers : outgoing(this.#responseTrailer);
  }

  #headers(): OutgoingHeaders {
    const { encoding } = this.#options;
    return encoding === undefined ? plainHeaders : { ...plainHeaders, "grpc-encoding": encoding };
  }
}

/** What a handler has answered, as the interceptors see it. */
export class LeanAnswer implements UnaryResponse {
  readonly stream = false;
  readonly message: MessageShape<DescMessage>;
  readonly #call: LeanCall;

  constructor(call: LeanCall, message: MessageShape<DescMessage>) {
    this.#call = call;
    this.message = message;
  }

  get service(): DescService {
    return this.#call.service;
  }

  get method(): DescMethodUnary {
    return this.#call.method;
  }

  get header(): Headers {
    return this.#call.responseHeader;
  }

  get trailer(): Headers {
    return this.#call.responseTrailer;
  }
}

function expire(call: LeanCall): void {
  call.abort(new ConnectError("the operation timed out", Code.DeadlineExceeded));
}

/** As gRPC maps the codes of HTTP/2. The others are a plain end. */
const codeOfReset = {
  PROTOCOL_ERROR: Code.Internal,
  INTERNAL_ERROR: Code.Internal,
  FLOW_CONTROL_ERROR: Code.Internal,
  SETTINGS_TIMEOUT: Code.Internal,
  FRAME_SIZE_ERROR: Code.Internal,
  REFUSED_STREAM: Code.Unavailable,
  CANCEL: Code.Canceled,
  COMPRESSION_ERROR: Code.Internal,
  CONNECT_ERROR: Code.Internal,
  ENHANCE_YOUR_CALM: Code.ResourceExhausted,
  INADEQUATE_SECURITY: Code.PermissionDenied,
  HTTP_1_1_REQUIRED: Code.PermissionDenied,
} as const;

/** Why a call ends whose stream was closed with that code; undefined for a plain end. */
export function resetReason(rstCode: number | undefined): ConnectError | undefined {
  for (const [name, code] of Object.entries(codeOfReset)) {
    if (constants[`NGHTTP2_${name as keyof typeof codeOfReset}`] !== rstCode) continue;
    const text = `http/2 stream closed with error code ${name} (0x${rstCode.toString(16)})`;
    return new ConnectError(text, code);
  }
  return undefined;
}
