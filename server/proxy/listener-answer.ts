import { type IncomingMessage, type ServerResponse, STATUS_CODES } from "node:http";
import type { Socket } from "node:net";
import type { ProxyAnswer } from "./vendor.ts";

export interface Ending {
  /** The last answer of its connection. */
  readonly close: boolean;
  /** For how long the client may keep the connection for another request, in milliseconds. */
  readonly idleToldMs: number;
  readonly lingerMs: number;
}

/**
 * Writes a whole answer. Where the client may still be sending, it gets the answer first and the connection ends after
 * that: a connection that is closed on unread bytes is reset, and takes the answer with it.
 *
 * @throws on a status or a header that HTTP does not know; nothing was written then.
 */
export async function writeAnswer(
  request: IncomingMessage,
  response: ServerResponse,
  answer: ProxyAnswer,
  { close, idleToldMs, lingerMs }: Ending,
): Promise<void> {
  if (response.destroyed || request.socket.destroyed) return;
  if (close) response.shouldKeepAlive = false;
  response.writeHead(answer.status, {
    ...answer.headers,
    "content-length": Buffer.byteLength(answer.body),
    ...(close ? {} : { "keep-alive": `timeout=${Math.floor(idleToldMs / 1000)}` }),
  });
  if (close && !request.complete) {
    if (answer.body === "") response.flushHeaders();
    else response.write(answer.body);
    await drained(request, lingerMs);
    response.end();
  } else {
    response.end(answer.body);
  }
}

/** Reads and drops what a client still sends, until it has sent all, has gone, or takes too long. */
function drained(request: IncomingMessage, lingerMs: number): Promise<void> {
  if (request.readableEnded || request.destroyed) return Promise.resolve();
  const { promise, resolve } = Promise.withResolvers<void>();
  const timer = setTimeout(resolve, lingerMs);
  request.once("end", resolve).once("close", resolve).resume();
  return promise.finally(() => clearTimeout(timer));
}

/** The same for a connection whose request could not even be parsed. Ends it. */
export function writeRawAnswer(socket: Socket, { status, headers, body }: ProxyAnswer, lingerMs: number): void {
  const lines = [
    `HTTP/1.1 ${status} ${STATUS_CODES[status] ?? "Unknown"}`,
    ...Object.entries(headers).map(([name, value]) => `${name}: ${value}`),
    `content-length: ${Buffer.byteLength(body)}`,
    `Date: ${new Date().toUTCString()}`,
    "Connection: close",
  ];
  if (lines.some((line) => /[^\t\x20-\x7e]/.test(line))) return void socket.destroy();
  socket.end(`${lines.join("\r\n")}\r\n\r\n${body}`);
  const timer = setTimeout(() => socket.destroy(), lingerMs);
  socket.once("close", () => clearTimeout(timer));
}
