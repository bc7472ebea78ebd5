import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { BinaryReader, WireType } from "@bufbuild/protobuf/wire";

/** One received span. Ids are lower-case hex; a root span's `parentSpanId` is empty. */
export interface ReceivedSpan {
  readonly traceId: string;
  readonly spanId: string;
  readonly parentSpanId: string;
  readonly name: string;
  /** OTLP numbers: 1 internal, 2 server, 3 client. */
  readonly kind: number;
  readonly attributes: Readonly<Record<string, string | number | boolean>>;
  readonly links: readonly { readonly traceId: string; readonly spanId: string }[];
  /** 0 unset, 1 ok, 2 error. */
  readonly statusCode: number;
}

export interface OtlpReceiver {
  /** For the exporter: without "/v1/traces". */
  readonly endpoint: string;
  readonly spans: readonly ReceivedSpan[];
  /** Everything that was received, to search for what must not be there. */
  readonly bytes: () => Buffer;
  /** Resolves with the first span that fits, now or later. */
  waitFor(fits: (span: ReceivedSpan) => boolean): Promise<ReceivedSpan>;
  close(): Promise<void>;
}

/** A collector for tests: takes OTLP over HTTP with protobuf. One that is not `answering` is a collector that hangs. */
export async function startOtlpReceiver({ answering = true } = {}): Promise<OtlpReceiver> {
  const spans: ReceivedSpan[] = [];
  const bodies: Buffer[] = [];
  const waiting = new Set<() => void>();
  const server = createServer((request, response) => {
    const chunks: Buffer[] = [];
    request.on("data", (chunk: Buffer) => chunks.push(chunk));
    request.on("end", () => {
      const body = Buffer.concat(chunks);
      bodies.push(body);
      if (request.url !== "/v1/traces" || request.headers["content-type"] !== "application/x-protobuf") {
        return response.writeHead(404).end();
      }
      spans.push(...decodeRequest(body));
      for (const look of waiting) look();
      if (answering) response.writeHead(200, { "content-type": "application/x-protobuf" }).end();
    });
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;

  return {
    endpoint: `http://127.0.0.1:${port}`,
    spans,
    bytes: () => Buffer.concat(bodies),
    waitFor(fits) {
      return new Promise((resolve) => {
        const look = () => {
          const found = spans.find(fits);
          if (found === undefined) return;
          waiting.delete(look);
          resolve(found);
        };
        waiting.add(look);
        look();
      });
    },
    async close() {
      server.closeAllConnections();
      server.close();
      await once(server, "close");
    },
  };
}

type Fields = ReadonlyMap<number, readonly (Uint8Array | bigint)[]>;

/** All fields of one message by number: bytes as they are, numbers as unsigned integers. */
function decode(bytes: Uint8Array): Fields {
  const fields = new Map<number, (Uint8Array | bigint)[]>();
  const reader = new BinaryReader(bytes);
  while (reader.pos < reader.len) {
    const [no, wireType] = reader.tag();
    const value =
      wireType === WireType.LengthDelimited
        ? reader.bytes()
        : wireType === WireType.Bit64
          ? BigInt(reader.fixed64())
          : wireType === WireType.Bit32
            ? BigInt(reader.fixed32())
            : BigInt(reader.uint64());
    fields.set(no, [...(fields.get(no) ?? []), value]);
  }
  return fields;
}

function messages(fields: Fields, no: number): Fields[] {
  return (fields.get(no) ?? []).map((value) => decode(value as Uint8Array));
}

function bytesOf(fields: Fields, no: number): Buffer {
  return Buffer.from((fields.get(no)?.at(-1) as Uint8Array | undefined) ?? []);
}

function numberOf(fields: Fields, no: number): number {
  return Number(fields.get(no)?.at(-1) ?? 0n);
}

// The numbers below are those of opentelemetry/proto/trace/v1/trace.proto.
function decodeRequest(body: Uint8Array): ReceivedSpan[] {
  return messages(decode(body), 1)
    .flatMap((resourceSpans) => messages(resourceSpans, 2))
    .flatMap((scopeSpans) => messages(scopeSpans, 2))
    .map((span) => ({
      traceId: bytesOf(span, 1).toString("hex"),
      spanId: bytesOf(span, 2).toString("hex"),
      parentSpanId: bytesOf(span, 4).toString("hex"),
      name: bytesOf(span, 5).toString(),
      kind: numberOf(span, 6),
      attributes: Object.fromEntries(messages(span, 9).map((one) => [bytesOf(one, 1).toString(), decodeValue(one)])),
      links: messages(span, 13).map((link) => ({
        traceId: bytesOf(link, 1).toString("hex"),
        spanId: bytesOf(link, 2).toString("hex"),
      })),
      statusCode: messages(span, 15).map((status) => numberOf(status, 3))[0] ?? 0,
    }));
}

function decodeValue(keyValue: Fields): string | number | boolean {
  const [value] = messages(keyValue, 2);
  if (value === undefined) return "";
  if (value.has(1)) return bytesOf(value, 1).toString();
  if (value.has(2)) return numberOf(value, 2) === 1;
  return numberOf(value, 3);
}
