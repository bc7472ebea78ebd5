import { metrics } from "@opentelemetry/api";
import {
  AggregationTemporality,
  InMemoryMetricExporter,
  MeterProvider,
  PeriodicExportingMetricReader,
} from "@opentelemetry/sdk-metrics";
import { AuthorizationState } from "@holdfast/api/holdfast/v1/spend_pb";
import { afterEach, expect, test } from "vitest";
import { charge, startVendorWorld, type VendorWorld } from "./world.ts";

let world: VendorWorld | undefined;
afterEach(async () => {
  await world?.close();
  metrics.disable();
});

test("what is in doubt, contradicts or waits is shown per workspace and vendor, and what was done is counted", async () => {
  const exporter = new InMemoryMetricExporter(AggregationTemporality.CUMULATIVE);
  const reader = new PeriodicExportingMetricReader({
    exporter,
    exportIntervalMillis: 3_600_000,
    exportTimeoutMillis: 60_000,
  });
  const provider = new MeterProvider({ readers: [reader] });
  metrics.setGlobalMeterProvider(provider);
  world = await startVendorWorld();
  const waiting = world;
  await waiting.doubted();
  const lost = await waiting.doubted({ charged: 990_000 });
  const value = async (name: string, labels: Record<string, string> = {}) => {
    exporter.reset();
    await reader.forceFlush();
    const found = exporter
      .getMetrics()
      .flatMap(({ scopeMetrics }) => scopeMetrics)
      .flatMap((scope) => scope.metrics)
      .find(({ descriptor }) => descriptor.name === name);
    return (found?.dataPoints ?? [])
      .filter(({ attributes }) => Object.entries(labels).every(([key, wanted]) => attributes[key] === wanted))
      .reduce((sum, point) => sum + Number(point.value), 0);
  };
  await waiting.server.clock.advance(60_000);
  const where = { "holdfast.workspace": "default", "holdfast.vendor": "stripe" };
  expect(await value("holdfast.in_doubt.count", where)).toBe(2);
  expect(await value("holdfast.in_doubt.oldest_age", where)).toBeGreaterThanOrEqual(60);
  expect(await value("holdfast.reconcile.lag", where)).toBeGreaterThanOrEqual(60);
  await waiting.store();
  await waiting.becomes(lost.name, AuthorizationState.COMMITTED);
  await expect.poll(() => value("holdfast.reconciler.settlements", { "holdfast.outcome": "committed" })).toBe(1);
  expect(await value("holdfast.reconciler.reads", { "holdfast.outcome": "2xx" })).toBeGreaterThan(0);
  expect(await value("holdfast.over_commits")).toBe(1);
  expect(await value("holdfast.in_doubt.count", where)).toBe(1);
  const second = await charge({ plain: waiting.plain, authorization: lost, amount: 100, key: "second" });
  await waiting.server
    .spend(waiting.token)
    .commitSpend({ authorization: lost.name, amount: { currency: "usd", amount: "1" }, vendorReference: second.id })
    .catch(() => undefined);
  expect(await value("holdfast.contradictions.open", where)).toBe(1);
  await provider.shutdown();
});
