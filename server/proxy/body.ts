import type { IncomingMessage } from "node:http";
import type { BodyLength } from "./framing.ts";
import type { ProxyRefusal } from "./refusal.ts";

export interface BodyOptions {
  readonly length: BodyLength;
  /** 0 where no body is taken. */
  readonly bytesMax: number;
  readonly bodyMs: number;
  /** Aborted with a `ProxyRefusal` when what follows cannot be read. */
  readonly broken: AbortSignal;
  /** Called right before the body is read: it is wanted, and not announced to be too large. */
  readonly goAhead: () => void;
}

/** Reads a body that is wanted, or says why there is none. Trailers are not looked at. */
export async function readBody(request: IncomingMessage, options: BodyOptions): Promise<Uint8Array | ProxyRefusal> {
  const { length, bytesMax, broken, goAhead } = options;
  if (length === 0) return new Uint8Array();
  if (bytesMax === 0) {
    return { status: 400, code: "unexpected_body", message: "Send this request without a body." };
  }
  if (length !== "chunked" && length > bytesMax) return tooLarge(bytesMax);
  if (broken.aborted) return broken.reason as ProxyRefusal;
  goAhead();
  return collect(request, options);
}

function collect(
  request: IncomingMessage,
  { length, bytesMax, bodyMs, broken }: BodyOptions,
): Promise<Uint8Array | ProxyRefusal> {
  // Copied together: a body of chunks of one byte each would otherwise cost a hundred times its size.
  let bytes = Buffer.alloc(Math.min(65_536, length === "chunked" ? bytesMax : length));
  let size = 0;
  const { promise, resolve } = Promise.withResolvers<Uint8Array | ProxyRefusal>();
  const onData = (chunk: Buffer): void => {
    if (size + chunk.length > bytesMax) return resolve(tooLarge(bytesMax));
    if (size + chunk.length > bytes.length) {
      bytes = Buffer.concat([bytes, Buffer.alloc(Math.max(bytes.length, chunk.length))]);
    }
    chunk.copy(bytes, size);
    size += chunk.length;
  };
  const onEnd = (): void => resolve(bytes.subarray(0, size));
  const onBroken = (): void => resolve(broken.reason as ProxyRefusal);
  const onClose = (): void => resolve(incomplete);
  // What has arrived while this process was busy still counts: it is read before the immediate runs.
  const timer = setTimeout(() => setImmediate(() => resolve(late)), bodyMs);
  request.on("data", onData).on("end", onEnd).on("close", onClose).on("error", onClose);
  broken.addEventListener("abort", onBroken);
  return promise.finally(() => {
    clearTimeout(timer);
    broken.removeEventListener("abort", onBroken);
    request.off("data", onData).off("end", onEnd).off("close", onClose);
  });
}

const incomplete: ProxyRefusal = {
  status: 400,
  code: "incomplete_body",
  message: "The connection ended before the whole body had arrived.",
};
const late: ProxyRefusal = {
  status: 408,
  code: "body_timeout",
  message: "The body did not arrive in time, and nothing was sent for it. Send the request again.",
  retry: true,
};

function tooLarge(bytesMax: number): ProxyRefusal {
  return { status: 413, code: "body_too_large", message: `Send a body of at most ${bytesMax} bytes.` };
}
