import { ChannelCredentials, Client, Metadata, type ServiceError, status } from "@grpc/grpc-js";
import { create, fromBinary, type MessageShape, toBinary } from "@bufbuild/protobuf";
import { BinaryReader } from "@bufbuild/protobuf/wire";
import { type Any, AnySchema } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError, type Transport } from "@connectrpc/connect";
import { checkNumber, refuseUnknown } from "./option-check.ts";
import { checkTls, type TlsOptions } from "./tls.ts";

/** Settings of `createGrpcJsTransport`. */
export interface GrpcJsTransportOptions {
  /**
   * Where the servers are, in gRPC's own naming: "dns:///holdfast:8443" for every address of a name, or
   * "ipv4:10.0.0.1:8443,10.0.0.2:8443".
   */
  readonly target: string;
  /** Certificates, all PEM; `{}` trusts the public authorities. Without it the connection is plaintext. */
  readonly tls?: TlsOptions;
  /** Lets a plaintext target be another machine. False by default: the vault key would be readable on the way. */
  readonly allowPlaintext?: boolean;
  /** Largest message in either direction, in bytes. 4 MiB by default. */
  readonly maxMessageBytes?: number;
}

/** A transport for unary calls over @grpc/grpc-js. */
export interface GrpcJsTransport extends Transport {
  /** Ends the connections. Calls that run are ended; close the Holdfast client first. */
  close(): void;
}

const PROPERTIES = { target: true, tls: true, allowPlaintext: true, maxMessageBytes: true } as const satisfies Record<
  keyof GrpcJsTransportOptions,
  true
>;

const MESSAGE_BYTES_DEFAULT = 4 * 1024 * 1024;
const MESSAGE_BYTES_MAX = 64 * 1024 * 1024;

/**
 * Spreads the calls over all servers that the target names (round robin), which the SDK's own transport with its one
 * connection does not. Needs the optional peer dependency @grpc/grpc-js. Give it to `createHoldfast` as `transport`;
 * deadlines, retries, the vault key and the trace context are the SDK's, which sends them with every call. Calls fail
 * with a ConnectError that carries the server's error details. Throws a TypeError on a wrong option.
 */
export function createGrpcJsTransport(options: GrpcJsTransportOptions): GrpcJsTransport {
  refuseUnknown("the options of createGrpcJsTransport", options, PROPERTIES);
  const { tls, maxMessageBytes = MESSAGE_BYTES_DEFAULT } = options;
  checkNumber("maxMessageBytes", maxMessageBytes, { min: 1, max: MESSAGE_BYTES_MAX, unit: "bytes", whole: true });
  checkTarget(options);
  if (tls !== undefined) checkTls(tls);
  const client = new Client(options.target, credentialsOf(tls), {
    "grpc.service_config": JSON.stringify({ loadBalancingConfig: [{ round_robin: {} }] }),
    "grpc.max_receive_message_length": maxMessageBytes,
    "grpc.max_send_message_length": maxMessageBytes,
    // A connection whose other side is gone without a word is noticed while a call waits on it.
    "grpc.keepalive_time_ms": 5_000,
    "grpc.keepalive_timeout_ms": 4_000,
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.max_reconnect_backoff_ms": 2_000,
    // The SDK repeats what may be repeated.
    "grpc.enable_retries": 0,
    ...(tls?.serverName === undefined
      ? {}
      : { "grpc.ssl_target_name_override": tls.serverName, "grpc.default_authority": tls.serverName }),
  });
  return {
    unary: (method, signal, timeoutMs, header, input) =>
      new Promise((resolve, reject) => {
        if (signal?.aborted === true) {
          reject(ConnectError.from(signal.reason, Code.Canceled));
          return;
        }
        const responseHeader = new Headers();
        let message: MessageShape<typeof method.output> | undefined;
        let failure: ServiceError | undefined;
        const call = client.makeUnaryRequest(
          `/${method.parent.typeName}/${method.name}`,
          (request: MessageShape<typeof method.input>) => Buffer.from(toBinary(method.input, request)),
          (bytes: Buffer) => fromBinary(method.output, bytes),
          create(method.input, input),
          toMetadata(header),
          timeoutMs === undefined ? {} : { deadline: Date.now() + timeoutMs },
          (error, value) => {
            failure = error ?? undefined;
            message = value;
          },
        );
        const onAbort = (): void => call.cancel();
        signal?.addEventListener("abort", onAbort, { once: true });
        call.on("metadata", (metadata) => copyInto(responseHeader, metadata));
        // Comes after the callback, also for a call that failed before it was sent.
        call.on("status", ({ metadata }) => {
          signal?.removeEventListener("abort", onAbort);
          if (message === undefined) {
            reject(toConnectError(failure, signal));
            return;
          }
          const trailer = new Headers();
          copyInto(trailer, metadata);
          const { parent: service } = method;
          resolve({ stream: false, service, method, header: responseHeader, trailer, message });
        });
      }),
    stream: () => Promise.reject(new ConnectError("this transport makes unary calls only", Code.Unimplemented)),
    close: () => client.close(),
  };
}

function checkTarget({ target, tls, allowPlaintext }: GrpcJsTransportOptions): void {
  if (typeof target !== "string" || target === "" || /^https?:/.test(target)) {
    throw new TypeError('target must be a gRPC target, for example "dns:///holdfast:8443", and no http address.');
  }
  if (tls !== undefined || allowPlaintext === true || target.startsWith("unix:")) return;
  const addresses = target.replace(/^(dns|ipv4|ipv6):(\/\/[^/]*\/)?/, "").split(",");
  const loopback = /^(localhost|[^,]+\.localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?$/;
  if (addresses.every((address) => loopback.test(address))) return;
  throw new TypeError(
    `target ${target} is plaintext to another machine: the vault key would be readable on the way. Give tls, or set ` +
      "allowPlaintext: true where the network itself is private.",
  );
}

function credentialsOf(tls: TlsOptions | undefined): ChannelCredentials {
  if (tls === undefined) return ChannelCredentials.createInsecure();
  const pem = (text: string | undefined): Buffer | null => (text === undefined ? null : Buffer.from(text));
  return ChannelCredentials.createSsl(pem(tls.ca), pem(tls.key), pem(tls.cert));
}

function toMetadata(header: ConstructorParameters<typeof Headers>[0]): Metadata {
  const metadata = new Metadata();
  for (const [name, value] of new Headers(header)) {
    metadata.add(name, name.endsWith("-bin") ? Buffer.from(value, "base64") : value);
  }
  return metadata;
}

function copyInto(headers: Headers, metadata: Metadata): void {
  for (const name of Object.keys(metadata.getMap())) {
    for (const value of metadata.get(name)) {
      headers.append(name, typeof value === "string" ? value : value.toString("base64"));
    }
  }
}

/** With the server's error details, which the SDK's own errors are made of. */
function toConnectError(failure: ServiceError | undefined, signal: AbortSignal | undefined): ConnectError {
  if (failure === undefined) return new ConnectError("the call ended without an answer", Code.Internal);
  if (signal?.aborted === true) return ConnectError.from(signal.reason, Code.Canceled);
  // gRPC's codes and Connect's have the same numbers; OK without a message is a broken answer.
  const code = failure.code === status.OK ? Code.Internal : (failure.code as number as Code);
  const trailer = new Headers();
  copyInto(trailer, failure.metadata);
  const error = new ConnectError(failure.details, code, trailer, undefined, failure);
  const [bytes] = failure.metadata.get("grpc-status-details-bin");
  if (bytes === undefined || typeof bytes === "string") return error;
  try {
    error.details = readDetails(bytes).map(({ typeUrl, value }) => ({
      type: typeUrl.slice(typeUrl.lastIndexOf("/") + 1),
      value,
    }));
  } catch {
    // Details that cannot be read leave the code and the message.
  }
  return error;
}

const DETAILS_FIELD = 3;

/** The `details` of a google.rpc.Status; its code and its message are known already. */
function readDetails(bytes: Uint8Array): Any[] {
  const details: Any[] = [];
  const reader = new BinaryReader(bytes);
  while (reader.pos < reader.len) {
    const [field, wireType] = reader.tag();
    if (field === DETAILS_FIELD) details.push(fromBinary(AnySchema, reader.bytes()));
    else reader.skip(wireType);
  }
  return details;
}
