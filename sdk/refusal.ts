import { Code } from "@connectrpc/connect";
import {
  type ErrorContext,
  HoldfastError,
  HoldfastOverloadedError,
  HoldfastRefusedError,
  HoldfastUnavailableError,
  SpendMismatchError,
} from "./errors.ts";
import { isRetryable, OVERLOADED, RpcFailure } from "./rpc-failure.ts";

/**
 * The typed error for a failed RPC. Whatever is not understood is "unavailable": the caller must not call the vendor.
 * `what` completes "Holdfast did not answer …".
 */
export function translateFailure(error: unknown, what: string, context: ErrorContext): HoldfastError {
  if (error instanceof HoldfastError) return error;
  if (!(error instanceof RpcFailure)) return new HoldfastUnavailableError(what, { ...context, cause: error });
  if (error.reason === "SPEND_MISMATCH") {
    const fields = (error.metadata["fields"] ?? "").split(",").map((field) => field.trim());
    return new SpendMismatchError(fields, { ...context, cause: error });
  }
  if (error.reason === OVERLOADED) return new HoldfastOverloadedError(error.message, { ...context, cause: error });
  if (error.rpcCode === Code.Unauthenticated) {
    const remedy =
      "Check vaultKey: it must be the whole token of a key of this server's workspace, not revoked by a rotation.";
    const explanation = `${error.message.replace(/\.?$/, ".")} ${remedy}`;
    return new HoldfastRefusedError(error.reason, explanation, { ...context, metadata: error.metadata, cause: error });
  }
  if (isRetryable(error) || error.reason === "INTERNAL" || error.reason === "") {
    return new HoldfastUnavailableError(`${what} (${error.message})`, { ...context, cause: error });
  }
  return new HoldfastRefusedError(error.reason, error.message, { ...context, metadata: error.metadata, cause: error });
}
