import { Code, ConnectError } from "@connectrpc/connect";
import { ErrorInfoSchema, RetryInfoSchema } from "@holdfast/api/google/rpc/error_details_pb";
import type { RequestError } from "@holdfast/api/holdfast/v1/spend_pb";
import type { Duration } from "@bufbuild/protobuf/wkt";
import { tlsFailure } from "./tls.ts";

/** A failed RPC, or a failed request inside a batch, in one shape. */
export class RpcFailure extends Error {
  readonly rpcCode: Code;
  /** An ErrorReason without its prefix; empty if the failure was made on the way and not by the server. */
  readonly reason: string;
  readonly metadata: Readonly<Record<string, string>>;
  readonly retryDelayMs: number | undefined;
  /** True if it is certain that no try of the request left this process. */
  readonly neverSent: boolean;

  constructor(options: {
    message: string;
    code: Code;
    reason?: string;
    metadata?: Readonly<Record<string, string>>;
    retryDelayMs?: number | undefined;
    neverSent?: boolean;
    cause?: unknown;
  }) {
    super(options.message, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = "RpcFailure";
    this.rpcCode = options.code;
    this.reason = options.reason ?? "";
    this.metadata = options.metadata ?? {};
    this.retryDelayMs = options.retryDelayMs;
    this.neverSent = options.neverSent ?? false;
  }
}

export function durationToMs(duration: Duration): number {
  return Number(duration.seconds) * 1000 + duration.nanos / 1_000_000;
}

/** Translates whatever a transport threw. */
export function toRpcFailure(error: unknown): RpcFailure {
  if (error instanceof RpcFailure) return error;
  const connectError = (error instanceof Error ? tlsFailure(error.cause) : undefined) ?? ConnectError.from(error);
  const info = connectError.findDetails(ErrorInfoSchema)[0];
  const retryDelay = connectError.findDetails(RetryInfoSchema)[0]?.retryDelay;
  return new RpcFailure({
    message: connectError.rawMessage,
    code: connectError.code,
    ...(info === undefined ? {} : { reason: info.reason, metadata: info.metadata }),
    retryDelayMs: retryDelay === undefined ? undefined : durationToMs(retryDelay),
    cause: error,
  });
}

/** Translates the error of one request of a batch. */
export function requestErrorToFailure(error: RequestError): RpcFailure {
  return new RpcFailure({
    message: error.message,
    // google.rpc.Code and Connect's Code have the same numbers.
    code: error.code,
    reason: error.reason,
    metadata: error.metadata,
    retryDelayMs: error.retryDelay === undefined ? undefined : durationToMs(error.retryDelay),
  });
}

export function deadlineFailure(neverSent = false): RpcFailure {
  return new RpcFailure({ message: "no answer before the deadline", code: Code.DeadlineExceeded, neverSent });
}

/** The caller gave the request up before it was sent. */
export function abortedFailure(): RpcFailure {
  return new RpcFailure({ message: "aborted before it was sent", code: Code.Canceled, neverSent: true });
}

/** Made here, for a request that was not even sent because too many wait. */
export const OVERLOADED = "CLIENT_OVERLOADED";

export function overloadedFailure(message: string): RpcFailure {
  return new RpcFailure({ message, code: Code.ResourceExhausted, reason: OVERLOADED, neverSent: true });
}

/** For a request that the server would refuse, and that would fail its neighbours in a batch. */
export function invalidRequest(message: string, cause?: unknown): RpcFailure {
  return new RpcFailure({ message, code: Code.InvalidArgument, reason: "INVALID_FIELD", neverSent: true, cause });
}

const RETRYABLE_REASONS = new Set(["OUTCOME_UNKNOWN", "DATABASE_UNAVAILABLE", "STORAGE_FULL", "QUEUE_FULL"]);
// Without a reason the failure is the transport's: the connection was refused, reset, ended by a restart, or somebody
// in between answered in another language.
const RETRYABLE_TRANSPORT_CODES = new Set([
  Code.Unavailable,
  Code.Aborted,
  Code.Canceled,
  Code.DeadlineExceeded,
  Code.ResourceExhausted,
  Code.Internal,
  Code.Unknown,
  Code.DataLoss,
]);

/** True if the same request may simply be sent again: every RPC of this SDK is idempotent under its attempt id. */
export function isRetryable(failure: RpcFailure): boolean {
  return failure.reason === "" ? RETRYABLE_TRANSPORT_CODES.has(failure.rpcCode) : RETRYABLE_REASONS.has(failure.reason);
}
