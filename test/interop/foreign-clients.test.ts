import { execFile } from "node:child_process";
import { join } from "node:path";
import { promisify } from "node:util";
import {
  create,
  createFileRegistry,
  type DescMethod,
  type DescService,
  fromBinary,
  fromJson,
  type JsonValue,
  toBinary,
  toJson,
} from "@bufbuild/protobuf";
import { type FileDescriptorProto, FileDescriptorProtoSchema, FileDescriptorSetSchema } from "@bufbuild/protobuf/wkt";
import { Client, credentials, Metadata, type ServiceError } from "@grpc/grpc-js";
import {
  ServerReflectionRequestSchema,
  type ServerReflectionResponse,
  ServerReflectionResponseSchema,
} from "@holdfast/api/grpc/reflection/v1/reflection_pb";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { startTestServer, type TestServer } from "../support/server.ts";

const serviceName = "holdfast.v1.SpendControlService";
let server: TestServer;
let url: string;
let vaultKey: string;
let grpc: Client;
let service: DescService;
beforeAll(async () => {
  server = await startTestServer();
  url = server.apps[0]?.url ?? "";
  vaultKey = await server.vaultKey("billing");
  await server.cap("everything", "1000");
  grpc = new Client(url.replace("http://", ""), credentials.createInsecure());
  service = await discover(serviceName);
});
afterAll(async () => {
  grpc.close();
  await server.close();
});

/** Calls a method with JSON and gets JSON, over some protocol. Rejects with an error that names the code. */
type Call = (method: string, request: JsonValue) => Promise<Record<string, JsonValue>>;

async function reflect(query: object): Promise<ServerReflectionResponse> {
  const stream = grpc.makeBidiStreamRequest(
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    (one: object) => Buffer.from(toBinary(ServerReflectionRequestSchema, create(ServerReflectionRequestSchema, one))),
    (bytes) => fromBinary(ServerReflectionResponseSchema, bytes),
  );
  stream.write(query);
  stream.end();
  for await (const answer of stream) return answer as ServerReflectionResponse;
  throw new Error("no answer");
}

/** What the server says about itself: no proto file and no generated code of ours. */
async function discover(symbol: string): Promise<DescService> {
  const files = new Map<string, FileDescriptorProto>();
  const sorted: FileDescriptorProto[] = [];
  const fetchFile = async (query: object): Promise<void> => {
    const { messageResponse } = await reflect({ messageRequest: query });
    if (messageResponse.case !== "fileDescriptorResponse") throw new Error(JSON.stringify(messageResponse));
    for (const bytes of messageResponse.value.fileDescriptorProto) {
      const file = fromBinary(FileDescriptorProtoSchema, bytes);
      if (files.has(file.name)) continue;
      files.set(file.name, file);
      for (const name of file.dependency)
        if (!files.has(name)) await fetchFile({ case: "fileByFilename", value: name });
      sorted.push(file);
    }
  };
  await fetchFile({ case: "fileContainingSymbol", value: symbol });
  const found = createFileRegistry(create(FileDescriptorSetSchema, { file: sorted })).getService(symbol);
  if (found === undefined) throw new Error(`${symbol} is not described`);
  return found;
}

function methodOf(name: string): DescMethod {
  const found = service.methods.find((method) => method.name === name);
  if (found === undefined) throw new Error(`${name} is not described`);
  return found;
}

const byGrpcJs: Call = (name, request) => {
  const method = methodOf(name);
  const metadata = new Metadata();
  metadata.set("authorization", `Bearer ${vaultKey}`);
  return new Promise((resolve, reject) => {
    grpc.makeUnaryRequest(
      `/${serviceName}/${name}`,
      (json: JsonValue) => Buffer.from(toBinary(method.input, fromJson(method.input, json))),
      (bytes) => toJson(method.output, fromBinary(method.output, bytes)) as Record<string, JsonValue>,
      request,
      metadata,
      (error: ServiceError | null, answer?: Record<string, JsonValue>) =>
        error === null && answer !== undefined ? resolve(answer) : reject(error ?? new Error("no answer")),
    );
  });
};

const buf = join(import.meta.dirname, "../../node_modules/.bin/buf");

function byBufCurl(...flags: string[]): Call {
  return async (name, request) => {
    const { stdout } = await promisify(execFile)(buf, [
      "curl",
      ...flags,
      "--header",
      `Authorization: Bearer ${vaultKey}`,
      "--data",
      JSON.stringify(request),
      `${url}/${serviceName}/${name}`,
    ]);
    return JSON.parse(stdout) as Record<string, JsonValue>;
  };
}

const byFetch: Call = async (name, request) => {
  const response = await fetch(`${url}/${serviceName}/${name}`, {
    method: "POST",
    headers: { "content-type": "application/json", authorization: `Bearer ${vaultKey}` },
    body: JSON.stringify(request),
  });
  const answer = await response.text();
  if (!response.ok) throw new Error(`${response.status} ${answer}`);
  return JSON.parse(answer) as Record<string, JsonValue>;
};

/** gRPC-Web by hand, as a browser would: one framed message there, one framed message and the trailers back. */
const byGrpcWeb: Call = async (name, request) => {
  const method = methodOf(name);
  const message = toBinary(method.input, fromJson(method.input, request));
  const head = Buffer.alloc(5);
  head.writeUInt32BE(message.length, 1);
  const response = await fetch(`${url}/${serviceName}/${name}`, {
    method: "POST",
    headers: { "content-type": "application/grpc-web+proto", "x-grpc-web": "1", authorization: `Bearer ${vaultKey}` },
    body: Buffer.concat([head, message]),
  });
  const body = Buffer.from(await response.arrayBuffer());
  let answer: Record<string, JsonValue> | undefined;
  let trailers = [...response.headers].map(([key, value]) => `${key}:${value}`).join("\r\n");
  for (let at = 0; at < body.length; ) {
    const end = at + 5 + body.readUInt32BE(at + 1);
    const frame = body.subarray(at + 5, end);
    if ((body.readUInt8(at) & 0x80) !== 0) trailers = frame.toString();
    else answer = toJson(method.output, fromBinary(method.output, frame)) as Record<string, JsonValue>;
    at = end;
  }
  if (answer === undefined || !/grpc-status: ?0/.test(trailers)) throw new Error(`gRPC-Web failed: ${trailers}`);
  return answer;
};

const clients: Record<string, Call> = {
  "grpc-js, from reflection alone": byGrpcJs,
  "buf curl over gRPC": byBufCurl("--protocol", "grpc", "--http2-prior-knowledge"),
  "buf curl over Connect and HTTP/2": byBufCurl("--protocol", "connect", "--http2-prior-knowledge"),
  "fetch, with JSON over HTTP/1.1": byFetch,
  "gRPC-Web over HTTP/1.1": byGrpcWeb,
};

function authorizeRequest(customerId: string, attemptId: string) {
  return {
    spend: {
      customerId,
      billingPeriod: "2026-11",
      purpose: "subscription",
      amount: { currency: "usd", amount: "49.90" },
    },
    vendor: "stripe",
    endpoint: "POST /v1/payment_intents",
    attemptId,
  };
}

describe.each(Object.keys(clients))("%s", (who) => {
  const call: Call = (...args) => (clients[who] as Call)(...args);

  test("authorizes, commits and gets one authorization, which every other client sees alike", async () => {
    const customerId = who.replaceAll(" ", "-");
    const attemptId = Buffer.from(who.padEnd(16)).toString("hex").slice(0, 32);
    const granted = await call("AuthorizeSpend", authorizeRequest(customerId, attemptId));
    expect(granted).toMatchObject({ disposition: "DISPOSITION_GRANTED", authorization: { state: expect.anything() } });
    const { name } = granted["authorization"] as { name: string };
    // The same attempt through any other client is the same grant.
    for (const other of Object.values(clients)) {
      expect(await other("AuthorizeSpend", authorizeRequest(customerId, attemptId))).toMatchObject({
        disposition: "DISPOSITION_GRANTED",
        authorization: { name },
      });
    }
    const committed = await call("CommitSpend", {
      authorization: name,
      amount: { currency: "usd", amount: "49.90" },
      vendorReference: `pi_${customerId}`,
      attemptId,
    });
    expect(committed["authorization"]).toMatchObject({ name, vendorReference: `pi_${customerId}` });
    const got = await call("GetAuthorization", { name });
    expect(got["authorization"]).toEqual(committed["authorization"]);
    for (const other of Object.values(clients)) expect(await other("GetAuthorization", { name })).toEqual(got);
  }, 30_000);
});

test("a field that nobody knows is refused, not ignored", async () => {
  const request = { ...authorizeRequest("unknown-field", "0".repeat(32)), idempotency_key: "mine" };
  await expect(byFetch("AuthorizeSpend", request)).rejects.toThrow(/400 .*invalid_argument.*idempotency_key/);
  await expect(byBufCurl("--http2-prior-knowledge")("AuthorizeSpend", request)).rejects.toThrow(/idempotency_key/);
  const { rowCount } = await server.database.pool.query(
    "select from holdfast.audit_events where customer_id = 'unknown-field'",
  );
  expect(rowCount).toBe(0);
});
