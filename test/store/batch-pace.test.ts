import { describe, expect, it } from "vitest";
import { createBatchPace } from "../../server/store/batch-pace.ts";

describe("the pace of batches", () => {
  it("refuses nobody before it has seen a few", () => {
    const pace = createBatchPace(10);
    for (const ms of [100, 100, 100, 100]) pace.took(ms);
    expect(pace.waitMs(1_000)).toBe(0);
    pace.took(100);
    expect(pace.waitMs(1_000)).toBeGreaterThan(10_000);
  });

  it("counts the batch under way, those that wait, and its own, with a reserve", () => {
    const pace = createBatchPace(10);
    for (let batch = 0; batch < 5; batch += 1) pace.took(100);
    expect(pace.waitMs(0)).toBe(1.5 * 200);
    expect(pace.waitMs(9)).toBe(1.5 * 200);
    expect(pace.waitMs(10)).toBe(1.5 * 300);
    expect(pace.waitMs(95)).toBe(1.5 * 1_100);
  });

  it("does not go by two that met a lock, but by three", () => {
    const pace = createBatchPace(10);
    for (const ms of [10, 5_000, 10, 10, 5_000]) pace.took(ms);
    expect(pace.waitMs(0)).toBe(1.5 * 20);
    pace.took(5_000);
    pace.took(5_000);
    expect(pace.waitMs(0)).toBe(1.5 * 10_000);
    for (const ms of [10, 10, 10]) pace.took(ms);
    expect(pace.waitMs(0)).toBe(1.5 * 20);
  });
});
