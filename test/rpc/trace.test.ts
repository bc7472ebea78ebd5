import { context, trace } from "@opentelemetry/api";
import { Code, createClient } from "@connectrpc/connect";
import { createConnectTransport, createGrpcTransport } from "@connectrpc/connect-node";
import { Disposition } from "@holdfast/api/holdfast/v1/spend_pb";
import { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { HoldfastError } from "@holdfast/server/domain/errors";
import { currentTraceId } from "@holdfast/server/rpc/trace";
import { startTelemetry, type Telemetry } from "@holdfast/server/telemetry";
import { attribute } from "@holdfast/server/telemetry-attributes";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { type OtlpReceiver, startOtlpReceiver } from "../support/otlp-receiver.ts";
import { type StubServer, startStubServer, validRequest } from "./stub-server.ts";

const method = "holdfast.v1.SpendControlService/AuthorizeSpend";
let lastTraceId: string | undefined;

async function startServer(): Promise<StubServer> {
  return await startStubServer({
    spend: {
      authorizeSpend: async (request) => {
        lastTraceId = currentTraceId();
        if (request.dryRun) throw new HoldfastError("QUEUE_FULL", "The queue is full.");
        if (request.vendor === "broken") throw new Error("sk_live_secret in a driver's message");
        const attributes = { [attribute.batchSize]: 3 };
        trace.getTracer("test").startActiveSpan("authorize batch", { attributes }, (span) => span.end());
        return { disposition: Disposition.GRANTED };
      },
    },
  });
}

/** A random caller: its ids and the header that carries them. */
function caller(): { readonly traceId: string; readonly spanId: string; readonly traceparent: string } {
  const hex = (length: number) =>
    Array.from({ length }, () => Math.floor(Math.random() * 15 + 1).toString(16)).join("");
  const traceId = hex(32);
  const spanId = hex(16);
  return { traceId, spanId, traceparent: `00-${traceId}-${spanId}-01` };
}

describe("with a collector", () => {
  let receiver: OtlpReceiver;
  let telemetry: Telemetry;
  let server: StubServer;
  beforeAll(async () => {
    receiver = await startOtlpReceiver();
    telemetry = startTelemetry({ serviceName: "holdfast", instanceId: "one", otlpEndpoint: `${receiver.endpoint}/` });
    server = await startServer();
  });
  afterAll(async () => {
    await server.close(1_000);
    await telemetry.shutdown();
    await receiver.close();
  });

  test("a call is a server span below the caller's, in every protocol, and work in it is below that", async () => {
    for (const [system, transport] of [
      ["grpc", createGrpcTransport({ baseUrl: server.url })],
      ["connectrpc", createConnectTransport({ baseUrl: server.url, httpVersion: "1.1" })],
    ] as const) {
      const { traceId, spanId, traceparent } = caller();
      const headers = { authorization: `Bearer ${server.vaultKeyToken}`, traceparent };
      await createClient(SpendControlService, transport).authorizeSpend(validRequest(), { headers });
      expect(lastTraceId).toBe(traceId);
      const call = await receiver.waitFor((span) => span.traceId === traceId && span.kind === 2);
      expect(call).toMatchObject({
        name: method,
        parentSpanId: spanId,
        statusCode: 0,
        attributes: {
          "rpc.system.name": system,
          "rpc.method": method,
          "rpc.status_code": "OK",
          "holdfast.workspace": "acme",
          "holdfast.vault_key": "billing",
        },
      });
      const work = await receiver.waitFor((span) => span.traceId === traceId && span.kind === 1);
      expect(work).toMatchObject({
        name: "authorize batch",
        parentSpanId: call.spanId,
        attributes: { "holdfast.batch.size": 3 },
      });
    }
  });

  test("a refusal has its code and reason, a defect is an error, and neither shows a secret", async () => {
    const client = createClient(SpendControlService, createGrpcTransport({ baseUrl: server.url }));
    const refused = caller();
    const broken = caller();
    const stranger = caller();
    const authorization = `Bearer ${server.vaultKeyToken}`;
    await expect(
      client.authorizeSpend(
        { ...validRequest(), dryRun: true },
        { headers: { authorization, traceparent: refused.traceparent } },
      ),
    ).rejects.toMatchObject({ code: Code.ResourceExhausted });
    await expect(
      client.authorizeSpend(
        { ...validRequest(), vendor: "broken" },
        { headers: { authorization, traceparent: broken.traceparent } },
      ),
    ).rejects.toMatchObject({ code: Code.Internal });
    await expect(
      client.authorizeSpend(validRequest(), {
        headers: { authorization: "Bearer nonsense", traceparent: stranger.traceparent },
      }),
    ).rejects.toMatchObject({ code: Code.Unauthenticated });

    expect(await receiver.waitFor((span) => span.parentSpanId === refused.spanId)).toMatchObject({
      statusCode: 0,
      attributes: { "rpc.status_code": "RESOURCE_EXHAUSTED", "holdfast.error_reason": "QUEUE_FULL" },
    });
    expect(await receiver.waitFor((span) => span.parentSpanId === broken.spanId)).toMatchObject({
      statusCode: 2,
      attributes: { "rpc.status_code": "INTERNAL", "error.type": "INTERNAL" },
    });
    expect(await receiver.waitFor((span) => span.parentSpanId === stranger.spanId)).toMatchObject({
      name: method,
      attributes: { "rpc.status_code": "UNAUTHENTICATED", "holdfast.error_reason": "INVALID_TOKEN" },
    });
    const secret = server.vaultKeyToken.slice(-43);
    for (const word of [secret, "nonsense", "sk_live_secret"])
      expect(receiver.bytes().includes(word), word).toBe(false);
  });
});

describe("without a collector", () => {
  let stop: (() => Promise<void>)[] = [];
  afterEach(async () => {
    for (const one of stop) await one();
    stop = [];
  });

  test("the caller's trace id is still known, and there is none outside of a call", async () => {
    const telemetry = startTelemetry({ serviceName: "holdfast", instanceId: "one" });
    const server = await startServer();
    stop.push(
      () => server.close(1_000),
      () => telemetry.shutdown(),
    );
    const { traceId, traceparent } = caller();
    const headers = { authorization: `Bearer ${server.vaultKeyToken}`, traceparent };
    await createClient(SpendControlService, createGrpcTransport({ baseUrl: server.url })).authorizeSpend(
      validRequest(),
      { headers },
    );
    expect(lastTraceId).toBe(traceId);
    expect(currentTraceId()).toBeUndefined();
    expect(trace.getSpan(context.active())).toBeUndefined();
  });

  test("a collector that hangs slows no call, and a shutdown gives up on it", async () => {
    const hanging = await startOtlpReceiver({ answering: false });
    const telemetry = startTelemetry({ serviceName: "holdfast", instanceId: "one", otlpEndpoint: hanging.endpoint });
    const server = await startServer();
    stop.push(
      () => server.close(1_000),
      () => hanging.close(),
    );
    const client = createClient(SpendControlService, createGrpcTransport({ baseUrl: server.url }));
    const headers = { authorization: `Bearer ${server.vaultKeyToken}` };
    for (let round = 0; round < 20; round += 1) {
      await Promise.all(Array.from({ length: 100 }, () => client.authorizeSpend(validRequest(), { headers })));
    }
    await hanging.waitFor(() => true);
    const start = performance.now();
    await client.authorizeSpend(validRequest(), { headers });
    // An export is given up after 5 s, and the shutdown as well; all that is queued takes longer.
    expect(performance.now() - start).toBeLessThan(4_500);
    const stopping = performance.now();
    await telemetry.shutdown();
    expect(performance.now() - stopping).toBeLessThan(20_000);
  });
});
