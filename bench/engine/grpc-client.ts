import { type ClientHttp2Session, connect } from "node:http2";

/** Unary gRPC calls over a few HTTP/2 sessions, with as little work as Node allows: what is timed is the server. */
export interface GrpcClient {
  /** The answer's message. Rejects on any status but OK. */
  call(path: string, message: Uint8Array): Promise<Uint8Array>;
  close(): void;
}

// A server of Holdfast takes 128 calls at a time on one session.
const sessionsDefault = 4;

/** Connects with the first call: a server waits only some seconds for it. */
export function openGrpc(url: string, token: string, sessions = sessionsDefault): GrpcClient {
  const open: ClientHttp2Session[] = [];
  let calls = 0;
  const turn = (): ClientHttp2Session => {
    calls += 1;
    const at = calls % sessions;
    const known = open[at];
    if (known !== undefined && !known.closed && !known.destroyed) return known;
    const session = connect(url);
    // Its calls are told as well.
    session.on("error", () => {});
    open[at] = session;
    return session;
  };
  return {
    call: async (path, message) => callOn(turn(), path, token, message),
    close() {
      for (const session of open) session?.destroy();
    },
  };
}

function callOn(session: ClientHttp2Session, path: string, token: string, message: Uint8Array): Promise<Uint8Array> {
  const stream = session.request({
    ":method": "POST",
    ":path": path,
    "content-type": "application/grpc+proto",
    te: "trailers",
    authorization: `Bearer ${token}`,
  });
  const { promise, resolve, reject } = Promise.withResolvers<Uint8Array>();
  const chunks: Buffer[] = [];
  let status: unknown;
  let text: unknown;
  const read = (headers: Readonly<Record<string, unknown>>): void => {
    status = headers["grpc-status"] ?? status;
    text = headers["grpc-message"] ?? text;
  };
  stream.on("response", read);
  stream.on("trailers", read);
  stream.on("data", (chunk: Buffer) => chunks.push(chunk));
  stream.on("error", reject);
  // A stream that the server has cut may end without an error. After the answer this changes nothing.
  stream.on("close", () => reject(new Error(`${path}: closed without an answer, code ${stream.rstCode}`)));
  stream.on("end", () => {
    const body = chunks.length === 1 ? (chunks[0] as Buffer) : Buffer.concat(chunks);
    if (status === "0") resolve(body.subarray(5));
    else reject(new Error(`${path}: status ${String(status)} ${String(text)}`));
  });
  const frame = Buffer.allocUnsafe(5 + message.length);
  frame.writeUInt8(0, 0);
  frame.writeUInt32BE(message.length, 1);
  frame.set(message, 5);
  stream.end(frame);
  return promise;
}
