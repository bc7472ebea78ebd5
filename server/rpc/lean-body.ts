import type { ServerHttp2Stream } from "node:http2";
import { Code, ConnectError } from "@connectrpc/connect";
import {
  type compressionNegotiate,
  pipe,
  transformDecompressEnvelope,
  transformParseEnvelope,
  transformSplitEnvelope,
} from "@connectrpc/connect/protocol";

export interface BodyOptions<Message> {
  /** Largest message, after decompression. */
  readonly bytesMax: number;
  readonly compression: ReturnType<typeof compressionNegotiate>["request"];
  /** Throws on bytes that are not a message. */
  readonly parse: (bytes: Uint8Array) => Message;
}

/** A flag and four bytes of length come before every message. */
export const prefixBytes = 5;

/**
 * The one message of a unary call's body. A body that is one uncompressed message is read here; all others, right or
 * wrong, by what the adapter reads them with, so that both refuse the same with the same words. Resolves when the client
 * has ended its side; rejects as soon as something is wrong, and leaves the rest unread. Of a stream that is cut nothing
 * is heard.
 */
export function readMessage<Message>(stream: ServerHttp2Stream, options: BodyOptions<Message>): Promise<Message> {
  const { promise, resolve, reject } = Promise.withResolvers<Message>();
  const chunks: Buffer[] = [];
  let want = 0;
  let got = 0;
  let message: Message | undefined;

  const stop = (): void => {
    stream.off("data", onData);
    stream.off("end", onEnd);
    stream.pause();
  };
  const other = (rest: AsyncIterable<Uint8Array>): void => {
    stop();
    readAnyMessage(following(chunks, rest), options).then(resolve, reject);
  };
  const onData = (chunk: Buffer): void => {
    chunks.push(chunk);
    got += chunk.length;
    if (want === 0) want = lengthOf(chunk, options.bytesMax);
    if (got > want) return other(stream.iterator({ destroyOnReturn: false }));
    if (got < want) return;
    try {
      const whole = chunks.length === 1 ? chunk : Buffer.concat(chunks);
      message = options.parse(whole.subarray(prefixBytes));
    } catch (error) {
      stop();
      reject(error);
    }
  };
  const onEnd = (): void => {
    if (message === undefined) other(nothing());
    else resolve(message);
  };
  stream.on("data", onData);
  stream.on("end", onEnd);
  return promise;
}

/** Of a plain message with its prefix; 0 where the first bytes show no such message. */
function lengthOf(first: Buffer, bytesMax: number): number {
  if (first.length < prefixBytes || first[0] !== 0) return 0;
  const length = first.readUInt32BE(1);
  return length > bytesMax ? 0 : prefixBytes + length;
}

async function readAnyMessage<Message>(
  body: AsyncIterable<Uint8Array>,
  { bytesMax, compression, parse }: BodyOptions<Message>,
): Promise<Message> {
  const messages = pipe(
    body,
    transformSplitEnvelope(bytesMax),
    transformDecompressEnvelope(compression, bytesMax),
    transformParseEnvelope<Message>({ parse, serialize: unused }),
  );
  const iterator = messages[Symbol.asyncIterator]();
  const first = await iterator.next();
  if (first.done === true) throw protocolError("missing input message for unary method");
  const second = await iterator.next();
  if (second.done !== true) throw protocolError("received extra input message for unary method");
  return first.value;
}

async function* following(chunks: readonly Uint8Array[], rest: AsyncIterable<Uint8Array>): AsyncIterable<Uint8Array> {
  yield* chunks;
  yield* rest;
}

async function* nothing(): AsyncIterable<Uint8Array> {}

function protocolError(what: string): ConnectError {
  return new ConnectError(`protocol error: ${what}`, Code.Unimplemented);
}

function unused(): never {
  throw new Error("nothing is written to a request");
}
