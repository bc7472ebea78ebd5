import {
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
import { create } from "@bufbuild/protobuf";
import { createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { Client, credentials, Metadata, type ServiceError, status } from "@grpc/grpc-js";
import { Health, HealthCheckResponse_ServingStatus as ServingStatus } from "@holdfast/api/grpc/health/v1/health_pb";
import {
  ServerReflectionRequestSchema,
  ServerReflectionResponseSchema,
} from "@holdfast/api/grpc/reflection/v1/reflection_pb";
import { ServerReflection } from "@holdfast/api/grpc/reflection/v1/reflection_pb";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type StubServer, startStubServer } from "./stub-server.ts";

let server: StubServer;
let foreign: Client;
beforeAll(async () => {
  server = await startStubServer();
  foreign = new Client(`127.0.0.1:${server.port}`, credentials.createInsecure());
});
afterAll(async () => {
  foreign.close();
  await server.close(1_000);
});

/** One reflection stream of grpc-js. Resolves with the answers in the order of the queries. */
async function reflect(version: "v1" | "v1alpha", queries: readonly object[]) {
  const stream = foreign.makeBidiStreamRequest(
    `/grpc.reflection.${version}.ServerReflection/ServerReflectionInfo`,
    (query: object) =>
      Buffer.from(toBinary(ServerReflectionRequestSchema, create(ServerReflectionRequestSchema, query))),
    (bytes) => fromBinary(ServerReflectionResponseSchema, bytes),
  );
  for (const query of queries) stream.write(query);
  stream.end();
  const answers = [];
  for await (const answer of stream)
    answers.push(answer as ReturnType<typeof create<typeof ServerReflectionResponseSchema>>);
  return answers.map((answer) => answer.messageResponse);
}

/** Everything that a client can learn about a service, by reflection alone. */
async function discover(version: "v1" | "v1alpha", symbol: string): Promise<DescService> {
  const files = new Map<string, FileDescriptorProto>();
  let wanted: object[] = [{ messageRequest: { case: "fileContainingSymbol", value: symbol } }];
  while (wanted.length > 0) {
    const missing = new Set<string>();
    for (const answer of await reflect(version, wanted)) {
      if (answer.case !== "fileDescriptorResponse") throw new Error(JSON.stringify(answer.value));
      for (const bytes of answer.value.fileDescriptorProto) {
        const file = fromBinary(FileDescriptorProtoSchema, bytes);
        files.set(file.name, file);
        for (const name of file.dependency) missing.add(name);
      }
    }
    wanted = [...missing]
      .filter((name) => !files.has(name))
      .map((name) => ({ messageRequest: { case: "fileByFilename", value: name } }));
  }
  const sorted: FileDescriptorProto[] = [];
  const visit = (file: FileDescriptorProto): void => {
    if (sorted.includes(file)) return;
    for (const name of file.dependency) visit(files.get(name)!);
    sorted.push(file);
  };
  for (const file of files.values()) visit(file);
  const service = createFileRegistry(create(FileDescriptorSetSchema, { file: sorted })).getService(symbol);
  if (service === undefined) throw new Error(`${symbol} was not described`);
  return service;
}

function callForeign(method: DescMethod, request: JsonValue, token?: string): Promise<JsonValue> {
  const metadata = new Metadata();
  if (token !== undefined) metadata.set("authorization", `Bearer ${token}`);
  return new Promise((resolve, reject) => {
    foreign.makeUnaryRequest(
      `/${method.parent.typeName}/${method.name}`,
      (json: JsonValue) => Buffer.from(toBinary(method.input, fromJson(method.input, json))),
      (bytes) => toJson(method.output, fromBinary(method.output, bytes)),
      request,
      metadata,
      (error: ServiceError | null, answer?: JsonValue) => (error === null ? resolve(answer ?? null) : reject(error)),
    );
  });
}

describe("reflection", () => {
  test.each(["v1", "v1alpha"] as const)("%s lets a foreign client build its client and call", async (version) => {
    const service = await discover(version, "holdfast.v1.SpendControlService");
    const method = service.method["authorizeSpend"]!;
    const request = {
      spend: {
        customerId: "cust_123",
        billingPeriod: "2026-11",
        purpose: "subscription",
        amount: { currency: "usd", amount: "49.90" },
      },
      vendor: "stripe",
      endpoint: "POST /v1/charges",
      attemptId: "0123456789abcdef0123456789abcdef",
    };
    expect(await callForeign(method, request, server.vaultKeyToken)).toMatchObject({
      disposition: "DISPOSITION_GRANTED",
      authorization: { spend: { amount: { amount: "49.90" } } },
    });
    await expect(callForeign(method, request)).rejects.toMatchObject({ code: status.UNAUTHENTICATED });
    await expect(callForeign(method, {}, server.vaultKeyToken)).rejects.toMatchObject({
      code: status.INVALID_ARGUMENT,
    });
  });

  test("describes every service that it lists, with all imports", async () => {
    const [answer] = await reflect("v1", [{ messageRequest: { case: "listServices", value: "" } }]);
    const names = answer?.case === "listServicesResponse" ? answer.value.service.map((service) => service.name) : [];
    expect(names).toEqual([
      "grpc.health.v1.Health",
      "grpc.reflection.v1.ServerReflection",
      "grpc.reflection.v1alpha.ServerReflection",
      "holdfast.v1.AdminService",
      "holdfast.v1.SpendControlService",
    ]);
    for (const name of names) expect((await discover("v1", name)).typeName).toBe(name);
  });

  test("finds files by message, method, field and extension, and says what it does not have", async () => {
    const found = await reflect("v1", [
      { messageRequest: { case: "fileContainingSymbol", value: "holdfast.v1.Money" } },
      { messageRequest: { case: "fileContainingSymbol", value: "holdfast.v1.SpendControlService.VoidSpend" } },
      { messageRequest: { case: "fileContainingSymbol", value: "holdfast.v1.Spend.purpose" } },
      { messageRequest: { case: "fileByFilename", value: "google/protobuf/descriptor.proto" } },
      { messageRequest: { case: "fileByFilename", value: "buf/validate/validate.proto" } },
      {
        messageRequest: {
          case: "fileContainingExtension",
          value: { containingType: "google.protobuf.MethodOptions", extensionNumber: 50700 },
        },
      },
    ]);
    const files = found.map((answer) =>
      answer.case === "fileDescriptorResponse"
        ? fromBinary(FileDescriptorProtoSchema, answer.value.fileDescriptorProto[0]!).name
        : answer.case,
    );
    expect(files).toEqual([
      "holdfast/v1/money.proto",
      "holdfast/v1/spend_control_service.proto",
      "holdfast/v1/spend.proto",
      "google/protobuf/descriptor.proto",
      "buf/validate/validate.proto",
      "holdfast/v1/roles.proto",
    ]);
    const [numbers, ...absent] = await reflect("v1", [
      { messageRequest: { case: "allExtensionNumbersOfType", value: "google.protobuf.MethodOptions" } },
      { messageRequest: { case: "fileContainingSymbol", value: "holdfast.v1.Nothing" } },
      { messageRequest: { case: "fileByFilename", value: "../../etc/passwd" } },
      { messageRequest: { case: "allExtensionNumbersOfType", value: "nothing" } },
      {},
    ]);
    expect(numbers).toMatchObject({ value: { extensionNumber: [50700] } });
    expect(absent.map((answer) => (answer.case === "errorResponse" ? answer.value.errorCode : answer.case))).toEqual([
      5, 5, 5, 3,
    ]);
  });

  test("serves fetch-like clients of connect as well", async () => {
    const client = createClient(ServerReflection, createGrpcTransport({ baseUrl: server.url }));
    async function* queries() {
      yield { host: "h", messageRequest: { case: "listServices" as const, value: "" } };
    }
    for await (const answer of client.serverReflectionInfo(queries())) {
      expect(answer.validHost).toBe("h");
      expect(answer.originalRequest?.messageRequest.case).toBe("listServices");
    }
  });
});

describe("health", () => {
  const check = (service: string) => {
    const method = Health.method.check;
    return callForeign(method, { service });
  };

  test("answers for the server and each service, to a foreign client without a token", async () => {
    for (const service of ["", "holdfast.v1.SpendControlService", "holdfast.v1.AdminService"]) {
      expect(await check(service)).toEqual({ status: "SERVING" });
    }
    await expect(check("unknown.Service")).rejects.toMatchObject({ code: status.NOT_FOUND });
    expect(await callForeign(Health.method.list, {})).toMatchObject({ statuses: { "": { status: "SERVING" } } });
  });

  test("tells watchers every change, and ends them when the server closes", async () => {
    const other = await startStubServer();
    const client = createClient(Health, createGrpcTransport({ baseUrl: other.url }));
    const seen: ServingStatus[] = [];
    for await (const { status: now } of client.watch({ service: "" })) {
      seen.push(now);
      if (seen.length === 1) other.health.setServing(false);
      else if (seen.length === 2) other.health.setServing(true);
      else other.health.close();
    }
    expect(seen).toEqual([
      ServingStatus.SERVING,
      ServingStatus.NOT_SERVING,
      ServingStatus.SERVING,
      ServingStatus.NOT_SERVING,
    ]);
    const start = performance.now();
    await other.close(600_000);
    expect(performance.now() - start).toBeLessThan(60_000);
  });

  test("does not serve before it is told so", async () => {
    const { createHealth } = await import("@holdfast/server/rpc/standard");
    const { createRouterTransport } = await import("@connectrpc/connect");
    const health = createHealth([]);
    const client = createClient(Health, createRouterTransport(health.routes));
    expect((await client.check({})).status).toBe(ServingStatus.NOT_SERVING);
    health.close();
    health.setServing(true);
    expect((await client.check({})).status).toBe(ServingStatus.NOT_SERVING);
  });

  test("a watcher that leaves is forgotten", async () => {
    const client = createClient(Health, createGrpcTransport({ baseUrl: server.url }));
    for await (const { status: now } of client.watch({ service: "unknown" })) {
      expect(now).toBe(ServingStatus.SERVICE_UNKNOWN);
      break;
    }
    expect(server.defects).toEqual([]);
  });
});
