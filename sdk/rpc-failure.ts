import { Code, ConnectError } from "@connectrpc/connect";
import { ErrorInfoSchema, RetryInfoSchema } from "@holdfast/api/google/rpc/error_details_pb";
import type { RequestError } from "@holdfast/api/holdfast/v1/spend_pb";
import type { Duration } from "@bufbuild/protobuf/wkt";

/** A failed RPC, or a failed request inside a batch, in one shape. */
export class RpcFailure extends Error {
  readonly rpcCode: Code;
  /** An ErrorReason without its prefix; empty if the failure was made on the way and not by the server. */
  readonly reason: string;
  readonly metadata: Readonly<Record<string, string>>;
  readonly retryDelayMs: number | undefined;

  constructor(options: {
    message: string;
    code: Code;
    reason?: string;
    metadata?: Readonly<Record<string, string>>;
    retryDelayMs?: number | undefined;
    cause?: unknown;
  }) {
    super(options.message, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = "RpcFailure";
    this.rpcCode = options.code;
    this.reason = options.reason ?? "";
    this.metadata = options.metadata ?? {};
    this.retryDelayMs = options.retryDelayMs;
  }
}

export function durationToMs(duration: Duration): number {
  return Number(duration.seconds) * 1000 + duration.nanos / 1_000_000;
}

/** Translates whatever a transport threw. */
export function toRpcFailure(error: unknown): RpcFailure {
  if (error instanceof RpcFailure) return error;
  const connectError = ConnectError.from(error);
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

export function deadlineFailure(): RpcFailure {
  return new RpcFailure({ message: "no answer before the deadline", code: Code.DeadlineExceeded });
}

const RETRYABLE_REASONS = new Set(["OUTCOME_UNKNOWN", "DATABASE_UNAVAILABLE", "QUEUE_FULL"]);
// Without a reason the failure is the transport's: the connection was refused, reset, or ended by a restart.
const RETRYABLE_TRANSPORT_CODES = new Set([Code.Unavailable, Code.Aborted, Code.Canceled, Code.DeadlineExceeded]);

/** True if the same request may simply be sent again: every RPC of this SDK is idempotent under its attempt id. */
export function isRetryable(failure: RpcFailure): boolean {
  return failure.reason === "" ? RETRYABLE_TRANSPORT_CODES.has(failure.rpcCode) : RETRYABLE_REASONS.has(failure.reason);
}
