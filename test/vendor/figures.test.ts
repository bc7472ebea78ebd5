import { AuthorizationState } from "@holdfast/api/holdfast/v1/spend_pb";
import { afterEach, expect, test } from "vitest";
import { scrape } from "../support/scrape.ts";
import { charge, startVendorWorld, type VendorWorld } from "./world.ts";

let world: VendorWorld | undefined;
afterEach(() => world?.close());

test("what is in doubt, contradicts or waits is shown per workspace and vendor, and what was done is counted", async () => {
  world = await startVendorWorld({ config: { metricsPort: { host: "127.0.0.1", port: 0, maxAgeMs: 0 } } });
  const waiting = world;
  await waiting.doubted();
  const lost = await waiting.doubted({ charged: 990_000 });
  const value = async (name: string, labels: Record<string, string> = {}) =>
    (await scrape(waiting.server.apps[0]?.metricsUrl)).value(name, labels);
  await waiting.server.clock.advance(60_000);
  const where = { holdfast_workspace: "default", holdfast_vendor: "stripe" };
  expect(await value("holdfast_in_doubt_count", where)).toBe(2);
  expect(await value("holdfast_in_doubt_oldest_age", where)).toBeGreaterThanOrEqual(60);
  expect(await value("holdfast_reconcile_lag", where)).toBeGreaterThanOrEqual(60);
  await waiting.store();
  await waiting.becomes(lost.name, AuthorizationState.COMMITTED);
  await expect
    .poll(() => value("holdfast_reconciler_settlements_total", { holdfast_outcome: "committed", ...where }))
    .toBe(1);
  expect(await value("holdfast_reconciler_reads_total", { holdfast_outcome: "2xx", ...where })).toBeGreaterThan(0);
  expect(await value("holdfast_over_commits_total")).toBe(1);
  expect(await value("holdfast_in_doubt_count", where)).toBe(1);
  const second = await charge({ plain: waiting.plain, authorization: lost, amount: 100, key: "second" });
  await waiting.server
    .spend(waiting.token)
    .commitSpend({ authorization: lost.name, amount: { currency: "usd", amount: "1" }, vendorReference: second.id })
    .catch(() => undefined);
  expect(await value("holdfast_contradictions_open", where)).toBe(1);
});
