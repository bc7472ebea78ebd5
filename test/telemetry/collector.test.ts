import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { trace } from "@opentelemetry/api";
import { Disposition } from "@holdfast/api/holdfast/v1/spend_pb";
import { afterEach, expect, test } from "vitest";
import { startTelemetry } from "../../server/telemetry.ts";
import { dollar } from "../injection/spend-call.ts";
import { startOtlpReceiver } from "../support/otlp-receiver.ts";
import { readScrape, scrape } from "../support/scrape.ts";
import { startTestServer } from "../support/server.ts";

const closers: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const closer of closers.splice(0).toReversed()) await closer();
});

/** A collector that answers like that, or not at all; counts what it is asked. */
async function startCollector(status: number | undefined): Promise<{ url: string; asked(): number }> {
  let asked = 0;
  const server = createServer((request, response) => {
    asked += 1;
    request.resume();
    if (status !== undefined) response.writeHead(status).end();
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  closers.push(async () => {
    server.closeAllConnections();
    server.close();
    await once(server, "close");
  });
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, asked: () => asked };
}

/** Where nobody listens. */
async function refusing(): Promise<{ url: string; asked(): number }> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, "close");
  return { url: `http://127.0.0.1:${port}`, asked: () => 1 };
}

test.each([
  ["never answers", () => startCollector(undefined)],
  ["answers 500", () => startCollector(500)],
  ["answers 400", () => startCollector(400)],
  ["refuses connections", refusing],
])(
  "a collector that %s: 200 grants come while it is asked, what it did not get is counted, and the server stops",
  async (_, start) => {
    const collector = await start();
    const server = await startTestServer({
      config: {
        otlpEndpoint: collector.url,
        metricIntervalMs: 1_000,
        metricsPort: { host: "127.0.0.1", port: 0, maxAgeMs: 0 },
      },
    });
    let closed = false;
    try {
      const token = await server.vaultKey("billing");
      await server.cap("all", "1000000");
      const spends = server.spend(token);
      await spends.authorizeSpend(dollar("first"));
      await expect.poll(() => collector.asked(), { timeout: 30_000 }).toBeGreaterThan(0);
      const answers = await Promise.all(Array.from({ length: 200 }, (__, n) => spends.authorizeSpend(dollar(`c${n}`))));
      expect(answers.filter(({ disposition }) => disposition === Disposition.GRANTED)).toHaveLength(200);
      const dropped = async () =>
        (await scrape(server.apps[0]?.metricsUrl)).value("holdfast_telemetry_dropped_total", {
          holdfast_signal: "traces",
          holdfast_reason: "export",
        });
      await expect.poll(dropped, { timeout: 60_000, interval: 500 }).toBeGreaterThan(0);
      await server.close();
      closed = true;
    } finally {
      if (!closed) await server.close();
    }
  },
  120_000,
);

test("the queue holds 4,096 spans while an export is stuck; the others are dropped, and counted", async () => {
  const handed: number[] = [];
  const stuck = Promise.withResolvers<void>();
  const telemetry = startTelemetry({
    serviceName: "test",
    instanceId: "one",
    scraped: true,
    exporter: {
      export(spans, done) {
        handed.push(spans.length);
        void stuck.promise.then(() => done({ code: 0 }));
      },
      shutdown: () => Promise.resolve(),
    },
  });
  closers.push(() => telemetry.shutdown());
  const end = (spans: number): void => {
    for (let n = 0; n < spans; n += 1) trace.getTracer("test").startSpan("s").end();
  };
  const dropped = async () =>
    readScrape((await telemetry.scrape?.()) ?? "").value("holdfast_telemetry_dropped_total") ?? 0;
  end(512);
  await expect.poll(() => handed).toEqual([512]);
  end(4_096);
  expect(await dropped()).toBe(0);
  end(10_000);
  expect(await dropped()).toBe(10_000);
  stuck.resolve();
  await telemetry.shutdown();
  expect(handed.reduce((sum, spans) => sum + spans, 0)).toBe(512 + 4_096);
});

test("a collector can tell the servers apart by what they send, metrics and traces, and one server from its next start", async () => {
  const receiver = await startOtlpReceiver();
  closers.push(() => receiver.close());
  const idsOf = async (): Promise<string[]> => {
    const before = receiver.bytes().length;
    const server = await startTestServer({ config: { otlpEndpoint: receiver.endpoint, metricIntervalMs: 200 } });
    try {
      const sent = (): string => receiver.bytes().subarray(before).toString("latin1");
      await expect.poll(sent, { timeout: 30_000 }).toContain("holdfast.authorize.decisions");
      await server.admin.listCaps({});
      await expect.poll(sent, { timeout: 30_000 }).toContain("AdminService/ListCaps");
      return [...sent().matchAll(/service\.instance\.id[^0-9a-f]*([0-9a-f]{32})/g)].map(([, id = ""]) => id);
    } finally {
      await server.close();
    }
  };
  const [first, second] = [await idsOf(), await idsOf()];
  expect(first.length).toBeGreaterThan(1);
  expect([new Set(first).size, new Set(second).size]).toEqual([1, 1]);
  expect(first[0]).not.toBe(second[0]);
}, 120_000);
