import { type DescMethod, fromBinary } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import { ErrorInfoSchema } from "@holdfast/api/google/rpc/error_details_pb";

export interface Answer {
  readonly status: number;
  readonly code: string;
  readonly message: string;
  readonly reason: string;
  readonly field: string | undefined;
  readonly metadata: Readonly<Record<string, string>>;
}

interface ErrorBody {
  readonly code?: string;
  readonly message?: string;
  readonly details?: readonly { readonly type: string; readonly value: string }[];
}

/** Sends a text as it is, so that no client repairs its numbers. */
export async function send(
  url: string,
  method: DescMethod,
  {
    token,
    body,
    contentType = "application/json",
  }: { token: string; body: string | Uint8Array<ArrayBuffer>; contentType?: string },
): Promise<Answer> {
  if (method.methodKind !== "unary") return await sendStreaming(url, method, { token, body });
  const response = await fetch(`${url}/${method.parent.typeName}/${method.name}`, {
    method: "POST",
    headers: { authorization: `Bearer ${token}`, "content-type": contentType },
    body,
  });
  const text = await response.text();
  if (response.ok) return ofFirstResult(text) ?? accepted(text);
  return refused(response.status, JSON.parse(text) as ErrorBody);
}

function refused(status: number, error: ErrorBody): Answer {
  const info = error.details?.find(({ type }) => type === "google.rpc.ErrorInfo");
  const { reason = "", metadata = {} } =
    info === undefined ? {} : fromBinary(ErrorInfoSchema, Buffer.from(info.value, "base64"));
  const { code = "", message = "" } = error;
  return { status, code, message, reason, field: metadata["field"], metadata };
}

/** The first message of a stream, or why there is none: each is behind a byte of flags and its length. */
async function sendStreaming(
  url: string,
  method: DescMethod,
  { token, body }: { token: string; body: string | Uint8Array<ArrayBuffer> },
): Promise<Answer> {
  const message = Buffer.from(body as string);
  const head = Buffer.alloc(5);
  head.writeUInt32BE(message.length, 1);
  const response = await fetch(`${url}/${method.parent.typeName}/${method.name}`, {
    method: "POST",
    headers: { authorization: `Bearer ${token}`, "content-type": "application/connect+json" },
    body: Buffer.concat([head, message]),
  });
  let read = Buffer.alloc(0);
  for await (const chunk of response.body ?? []) {
    read = Buffer.concat([read, chunk as Uint8Array]);
    if (read.length >= 5 && read.length >= 5 + read.readUInt32BE(1)) break;
  }
  const text = read.subarray(5, 5 + read.readUInt32BE(1)).toString("utf8");
  const isLast = (read[0] ?? 0) === 2;
  const { error } = isLast ? (JSON.parse(text) as { error?: ErrorBody }) : {};
  return error === undefined ? accepted(text) : refused(response.status, error);
}

function accepted(text: string): Answer {
  return { status: 200, code: "ok", message: text.slice(0, 200), reason: "", field: "", metadata: {} };
}

/** A batch answers each of its requests; the path of a refused field begins at the request. */
function ofFirstResult(text: string): Answer | undefined {
  if (!text.startsWith('{"results":[{"error"')) return undefined;
  const { results } = JSON.parse(text) as { results: readonly { error: Refused }[] };
  const error = results[0]?.error;
  if (error === undefined) return undefined;
  const { reason, message, metadata = {} } = error;
  const code = (Code[error.code] ?? "").replace(/(?<=[a-z])(?=[A-Z])/g, "_").toLowerCase();
  return { status: 200, code, reason, message, field: metadata["field"], metadata };
}

interface Refused {
  readonly code: number;
  readonly reason: string;
  readonly message: string;
  readonly metadata?: Readonly<Record<string, string>>;
}

const leaks =
  /select |insert |update .* set|relation|constraint|syntax|postgres|pg_|holdfast\.v1|protobuf|cannot decode|unexpected token|node_modules|\.[jt]s:\d|\bat .*\(|\/(?:home|usr|work|tmp|root)\b|bigint|SQLSTATE/i;

/** What is wrong with a refusal as such, whatever it refuses; undefined if nothing is. */
export function problemOf(answer: Answer, raw: string): string | undefined {
  if (answer.code === "ok") return "was accepted";
  if (["internal", "unknown", "unimplemented", "unavailable"].includes(answer.code)) return "is no refusal";
  if (answer.reason === "" && answer.code !== "resource_exhausted") return "has no reason";
  if (leaks.test(answer.message)) return "shows what is inside";
  if (!/[.:;] ?.*\.$/.test(answer.message) && answer.reason !== "") return "has no remedy";
  if (/[\p{Cc}\p{Cf}\p{Cs}]/u.test(answer.message)) return "repeats characters that nobody sees";
  if (answer.message.length > 1500) return "is long";
  // A plain word that is malformed in no way may be named: it is what there is none of.
  if (raw.length >= 9 && !/^[\w./-]{1,64}$/.test(raw) && answer.message.includes(raw)) return "repeats the value";
  return undefined;
}
