import type { IncomingMessage, ServerResponse } from "node:http";
import { readBody } from "./body.ts";
import type { Connection } from "./connections.ts";
import { readFraming } from "./framing.ts";
import { type Ending, writeAnswer } from "./listener-answer.ts";
import type { ProxyLimits } from "./listener-limits.ts";
import type { ProxyRefusal } from "./refusal.ts";
import type { ProxyAnswer, ProxyHandler, WantedBody } from "./vendor.ts";

export interface ExchangeOptions {
  readonly handler: ProxyHandler;
  readonly limits: ProxyLimits;
  readonly names?: ReadonlySet<string>;
  /** The port is shut down: every answer is the last one of its connection. */
  readonly draining: () => boolean;
  readonly onError: (error: unknown) => void;
}

export interface Exchange {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  /** The client waits for a go-ahead before it sends the body. */
  readonly expectsContinue: boolean;
}

/**
 * Queues a request behind those that came before it on its connection. Nothing of it is judged, let alone carried out,
 * until they are answered: an answer that closes the connection would leave the client without the next one.
 */
export function enqueue(connection: Connection, exchange: Exchange, options: ExchangeOptions): Promise<void> {
  const broken = new AbortController();
  connection.latest = { request: exchange.request, broken };
  if (connection.waiting > options.limits.pipelinedMax) {
    connection.closing = true;
    return Promise.resolve();
  }
  connection.waiting += 1;
  connection.turn = connection.turn
    .then(() => run(connection, exchange, { ...options, broken: broken.signal }))
    .catch((error: unknown) => {
      options.onError(error);
      connection.socket.destroy();
    })
    .finally(() => {
      connection.waiting -= 1;
      connection.bytesSeen = connection.socket.bytesRead;
    });
  return connection.turn;
}

interface RunOptions extends ExchangeOptions {
  readonly broken: AbortSignal;
}

async function run(connection: Connection, exchange: Exchange, options: RunOptions): Promise<void> {
  const { socket } = connection;
  if (connection.ended || socket.destroyed || socket.writableEnded) return;
  const gone = new AbortController();
  const onClose = (): void => gone.abort();
  socket.once("close", onClose);
  try {
    const answer = await judged(connection, exchange, gone.signal, options).catch((error: unknown) => {
      options.onError(error);
      connection.closing = true;
      return options.handler.unreadable(internalError);
    });
    await deliver(connection, exchange, answer, gone.signal, options);
  } finally {
    socket.off("close", onClose);
  }
}

async function judged(
  connection: Connection,
  { request, response, expectsContinue }: Exchange,
  gone: AbortSignal,
  { handler, limits, names, broken }: RunOptions,
): Promise<ProxyAnswer> {
  const head = { method: request.method ?? "", target: request.url ?? "", rawHeaders: request.rawHeaders };
  const rules = { ...limits, ...(names === undefined ? {} : { names }) };
  const length = readFraming(head, request.httpVersion, rules);
  if (typeof length === "object") {
    connection.closing = true;
    return handler.refuse(head, length);
  }
  const begun = await handler.begin(head);
  if (!isWanted(begun)) return begun;
  connection.known = true;
  const body = await readBody(request, {
    length,
    bytesMax: begun.bytesMax,
    bodyMs: limits.bodyMs,
    broken,
    goAhead: () => {
      if (expectsContinue && !response.destroyed) response.writeContinue();
    },
  });
  if (body instanceof Uint8Array) return begun.answer(body, gone);
  connection.closing = true;
  return begun.refused(body);
}

function isWanted(begun: ProxyAnswer | WantedBody): begun is WantedBody {
  return "bytesMax" in begun;
}

async function deliver(
  connection: Connection,
  { request, response }: Exchange,
  answer: ProxyAnswer,
  gone: AbortSignal,
  { handler, limits, draining, onError }: RunOptions,
): Promise<void> {
  const { socket } = connection;
  if (gone.aborted) return;
  connection.served += 1;
  // A body that was not read to its end would be read as the next request.
  const unfit = !request.complete || !response.shouldKeepAlive;
  connection.closing ||= unfit || draining() || connection.served >= limits.requestsPerConnectionMax;
  connection.ended = connection.closing;
  const ending: Ending = {
    close: connection.closing,
    idleToldMs: connection.known ? limits.idleToldMs : limits.strangerIdleToldMs,
    lingerMs: limits.lingerMs,
  };
  const finished = new Promise<void>((resolve) => {
    response.once("finish", resolve);
    gone.addEventListener("abort", () => resolve());
  });
  const slow = setTimeout(() => socket.destroy(), limits.answerMs + limits.lingerMs);
  try {
    await writeAnswer(request, response, answer, ending).catch(async (error: unknown) => {
      onError(error);
      connection.closing = true;
      connection.ended = true;
      await writeAnswer(request, response, handler.unreadable(internalError), { ...ending, close: true });
    });
    await finished;
  } finally {
    clearTimeout(slow);
  }
  // Node has set the time of those that were let in.
  if (!connection.known && !connection.closing) socket.setTimeout(limits.strangerIdleMs);
}

const internalError: ProxyRefusal = {
  status: 500,
  code: "internal_error",
  message: "Holdfast failed to answer the request. Whether it was carried out is not known; ask before repeating it.",
};
