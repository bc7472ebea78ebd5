import { type ClientHttp2Session, connect, type IncomingHttpHeaders, type OutgoingHttpHeaders } from "node:http2";
import { gzipSync } from "node:zlib";

export interface RawCall {
  readonly headers: OutgoingHttpHeaders;
  readonly chunks: readonly Uint8Array[];
  /** False keeps the client's side open. */
  readonly end: boolean;
}

/** All that a client can see of an answer, but for what differs from call to call. */
export interface RawAnswer {
  readonly headers: IncomingHttpHeaders | undefined;
  readonly body: string;
  readonly trailers: IncomingHttpHeaders | undefined;
  readonly rstCode: number | undefined;
}

export interface RawClient {
  readonly session: ClientHttp2Session;
  call(call: RawCall): Promise<RawAnswer>;
}

/** Sends HTTP/2 requests as they are, right or wrong. */
export function openRaw(url: string): RawClient {
  const session = connect(url);
  session.on("error", () => {});
  return { session, call: (call) => send(session, call) };
}

async function send(session: ClientHttp2Session, { headers, chunks, end }: RawCall): Promise<RawAnswer> {
  const stream = session.request(headers, { endStream: end && chunks.length === 0 });
  const closed = new Promise<void>((resolve) => stream.once("close", resolve));
  let first: IncomingHttpHeaders | undefined;
  let last: IncomingHttpHeaders | undefined;
  const body: Buffer[] = [];
  stream.on("response", (received) => (first = received));
  stream.on("trailers", (received) => (last = received));
  stream.on("data", (chunk: Buffer) => body.push(chunk));
  stream.on("error", () => {});
  for (const chunk of chunks) {
    if (stream.destroyed || stream.closed) break;
    // Each goes out on its own.
    await new Promise<void>((resolve) => stream.write(chunk, () => setImmediate(resolve)));
  }
  if (end && !stream.destroyed) stream.end();
  await closed;
  return {
    headers: first && seen(first),
    body: Buffer.concat(body).toString("base64"),
    trailers: last && seen(last),
    rstCode: stream.rstCode,
  };
}

function seen({ date: _date, ...headers }: IncomingHttpHeaders): IncomingHttpHeaders {
  const details = headers["grpc-status-details-bin"];
  if (details === undefined) return { ...headers };
  const text = Buffer.from(details.toString(), "base64").toString("latin1");
  // Of a defect: the id under which it is logged.
  const stable = text.replaceAll(/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/g, "<request id>");
  return { ...headers, "grpc-status-details-bin": stable };
}

export function frame(message: Uint8Array, { flags = 0, length = message.length } = {}): Buffer {
  const prefix = Buffer.alloc(5);
  prefix.writeUInt8(flags, 0);
  prefix.writeUInt32BE(length, 1);
  return Buffer.concat([prefix, message]);
}

export function compressed(message: Uint8Array): Buffer {
  return frame(gzipSync(message), { flags: 1 });
}
