import { randomUUID } from "node:crypto";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { durationFromMs } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError, type Interceptor } from "@connectrpc/connect";
import { BadRequestSchema, ErrorInfoSchema, RetryInfoSchema } from "@holdfast/api/google/rpc/error_details_pb";
import { type RequestError, RequestErrorSchema } from "@holdfast/api/holdfast/v1/spend_pb";
import { type ErrorReasonName, HoldfastError } from "../domain/errors.ts";

/** `domain` of every google.rpc.ErrorInfo that this server sends. */
export const errorDomain = "holdfast";

/** Where defects are reported. A pino logger fits. */
export interface ErrorLog {
  error(fields: object, message: string): void;
}

/** The one table of reasons and codes; the contract states the same in the comments of `ErrorReason`. */
export const codeOfReason = {
  INVALID_FIELD: Code.InvalidArgument,
  INVALID_TOKEN: Code.Unauthenticated,
  ROLE_NOT_ALLOWED: Code.PermissionDenied,
  NOT_FOUND: Code.NotFound,
  ALREADY_EXISTS: Code.AlreadyExists,
  ETAG_MISMATCH: Code.Aborted,
  SPEND_MISMATCH: Code.FailedPrecondition,
  OTHER_VAULT_KEY: Code.FailedPrecondition,
  ATTEMPT_SUPERSEDED: Code.FailedPrecondition,
  GENERATION_NOT_FOUND: Code.FailedPrecondition,
  ALREADY_COMMITTED: Code.FailedPrecondition,
  ALREADY_VOIDED: Code.FailedPrecondition,
  COMMIT_CONTRADICTS: Code.FailedPrecondition,
  REFERENCE_ALREADY_COMMITTED: Code.FailedPrecondition,
  EVIDENCE_INSUFFICIENT: Code.FailedPrecondition,
  ALREADY_BOUND: Code.FailedPrecondition,
  STATE_NOT_ALLOWED: Code.FailedPrecondition,
  QUEUE_FULL: Code.ResourceExhausted,
  OUTCOME_UNKNOWN: Code.Unavailable,
  DATABASE_UNAVAILABLE: Code.Unavailable,
  AMOUNT_OUT_OF_RANGE: Code.OutOfRange,
  INTERNAL: Code.Internal,
  RECOVERY_REQUIRED: Code.FailedPrecondition,
  REFERENCE_BOUND_ELSEWHERE: Code.FailedPrecondition,
  STORAGE_FULL: Code.Unavailable,
} as const satisfies Record<ErrorReasonName, Code>;

/** What is wrong with one field. `field` is a path in the request, for example `requests[3].spend.purpose`. */
export interface FieldViolation {
  readonly field: string;
  readonly description: string;
}

/** A refusal of several fields at once. Its message and metadata name the first; the details list all. */
export class InvalidRequestError extends HoldfastError {
  readonly violations: readonly FieldViolation[];

  constructor(violations: readonly [FieldViolation, ...FieldViolation[]]) {
    const [first] = violations;
    super("INVALID_FIELD", `${first.field}: ${first.description}`, { metadata: { field: first.field } });
    this.violations = violations;
  }
}

/**
 * Translates anything that was thrown into what may leave the server. A `HoldfastError` keeps its message and gets
 * its details; a `ConnectError` passes; everything else is a defect: the caller sees "internal error" and a request
 * id, and the log has the cause under that id. If `signal` is aborted, what a handler threw is most likely the echo
 * of that abort, so its reason (deadline, cancellation, shutdown) is the answer.
 */
export function toConnectError(error: unknown, log: ErrorLog, signal?: AbortSignal): ConnectError {
  if (error instanceof HoldfastError) return fromHoldfastError(error);
  if (signal?.aborted) return abortError(signal);
  if (error instanceof ConnectError) return error;
  return fromHoldfastError(reportDefect(error, log));
}

/** The error of one item of a batch. Defects are reported to `log` and become INTERNAL. */
export function toRequestError(error: unknown, log: ErrorLog): RequestError {
  if (error instanceof ConnectError) {
    return create(RequestErrorSchema, { code: error.code, message: error.rawMessage });
  }
  const refusal = error instanceof HoldfastError ? error : reportDefect(error, log);
  return create(RequestErrorSchema, {
    code: codeOfReason[refusal.reason],
    reason: refusal.reason,
    message: refusal.message,
    metadata: { ...refusal.metadata },
    ...(refusal.retryAfterMs === undefined ? {} : { retryDelay: durationFromMs(refusal.retryAfterMs) }),
  });
}

/**
 * Lets only `ConnectError`s out, and does not start a handler for a call that is already over: a stream that was
 * reset or whose deadline has passed must not cost a transaction. A call is answered at its deadline, also while the
 * database is silent; what its handler has begun goes on.
 */
export function errorInterceptor(log: ErrorLog): Interceptor {
  return (next) => async (request) => {
    if (request.signal.aborted) throw abortError(request.signal);
    try {
      const response = request.stream ? await next(request) : await unlessAborted(next(request), request.signal);
      if (!response.stream) return response;
      return { ...response, message: translateStream(response.message, log, request.signal) };
    } catch (error) {
      throw toConnectError(error, log, request.signal);
    }
  };
}

async function unlessAborted<Answer>(answer: Promise<Answer>, signal: AbortSignal): Promise<Answer> {
  const { promise, resolve, reject } = Promise.withResolvers<Answer>();
  const abort = (): void => reject(abortError(signal));
  signal.addEventListener("abort", abort);
  answer.then(resolve, reject);
  try {
    return await promise;
  } finally {
    signal.removeEventListener("abort", abort);
  }
}

async function* translateStream<T>(messages: AsyncIterable<T>, log: ErrorLog, signal: AbortSignal): AsyncIterable<T> {
  try {
    yield* messages;
  } catch (error) {
    throw toConnectError(error, log, signal);
  }
}

function abortError(signal: AbortSignal): ConnectError {
  // Connect aborts with a ConnectError for deadlines, resets and shutdown; a plain AbortError means that the
  // client closed its connection.
  return ConnectError.from(signal.reason, Code.Canceled);
}

function reportDefect(error: unknown, log: ErrorLog): HoldfastError {
  const requestId = randomUUID();
  log.error({ err: error, request_id: requestId }, "internal error");
  return new HoldfastError("INTERNAL", "internal error", { metadata: { request_id: requestId }, cause: error });
}

function fromHoldfastError(error: HoldfastError): ConnectError {
  const { reason, metadata } = error;
  const result = new ConnectError(error.message, codeOfReason[reason], undefined, undefined, error);
  const info: MessageInitShape<typeof ErrorInfoSchema> = { domain: errorDomain, reason, metadata: { ...metadata } };
  result.details.push({ desc: ErrorInfoSchema, value: info });
  if (error.retryAfterMs !== undefined) {
    result.details.push({ desc: RetryInfoSchema, value: { retryDelay: durationFromMs(error.retryAfterMs) } });
  }
  const violations = fieldViolations(error);
  if (violations.length > 0) {
    result.details.push({ desc: BadRequestSchema, value: { fieldViolations: violations.map((one) => ({ ...one })) } });
  }
  return result;
}

function fieldViolations(error: HoldfastError): readonly FieldViolation[] {
  if (error instanceof InvalidRequestError) return error.violations;
  const field = error.metadata["field"];
  if (error.reason !== "INVALID_FIELD" || field === undefined) return [];
  const prefix = `${field}: `;
  return [
    { field, description: error.message.startsWith(prefix) ? error.message.slice(prefix.length) : error.message },
  ];
}
