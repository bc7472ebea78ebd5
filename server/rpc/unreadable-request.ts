import type { DescMethod } from "@bufbuild/protobuf";
import {
  Code,
  ConnectError,
  type ConnectRouterOptions,
  createContextKey,
  type HandlerContext,
  type Interceptor,
} from "@connectrpc/connect";
import { HoldfastError } from "../domain/errors.ts";
import { type ErrorLog, toConnectError } from "./errors.ts";
import { readJsonRequest } from "./json-request.ts";

const wasRead = createContextKey(false, { description: "the request was decoded" });

/** Comes first, because only a request that could be decoded gets here. */
export const readInterceptor: Interceptor = (next) => async (request) => {
  request.contextValues.set(wasRead, true);
  return await next(request);
};

/** How the JSON of one RPC is read: strictly, and refused in our words. */
export function jsonOptionsOf(method: DescMethod, log: ErrorLog): NonNullable<ConnectRouterOptions["jsonOptions"]> {
  const textDecoder = {
    decode(bytes: Uint8Array): string {
      try {
        return readJsonRequest(method.input, bytes);
      } catch (error) {
        throw toConnectError(error, log);
      }
    },
  };
  return { ignoreUnknownFields: false, textDecoder } as NonNullable<ConnectRouterOptions["jsonOptions"]>;
}

/**
 * Connect calls a binary request that it cannot decode an internal error, with what its decoder says, and does so
 * outside of every interceptor. It is the caller's mistake. The handler's signal is aborted with the error before the
 * error is written, which is the one moment to correct it.
 */
export function refusingUnreadable(
  gate: ((context: HandlerContext) => void | Promise<void>) | undefined,
  log: ErrorLog,
): (context: HandlerContext) => Promise<void> {
  return async (context) => {
    context.signal.addEventListener("abort", () => {
      if (!context.values.get(wasRead)) refuseUnreadable(context.signal.reason, log);
    });
    await gate?.(context);
  };
}

/** Makes INVALID_FIELD of an error of Connect's that has come before the request was decoded, if it is an internal one. */
export function refuseUnreadable(error: unknown, log: ErrorLog): void {
  // A defect of a gate has details.
  if (!(error instanceof ConnectError) || error.code !== Code.Internal || error.details.length > 0) return;
  const refusal = toConnectError(unreadable(error), log);
  const { code, message, rawMessage } = refusal;
  error.details.push(...refusal.details);
  Object.assign(error, { code, message, rawMessage });
}

function unreadable(cause: ConnectError): HoldfastError {
  return new HoldfastError(
    "INVALID_FIELD",
    "The body is not a message of this RPC in the binary format; make it with the contract of this server.",
    { cause },
  );
}
