import { execFile } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { promisify } from "node:util";
import { expect, test } from "vitest";
import { percentile } from "../../bench/statistics.ts";

const root = join(import.meta.dirname, "../..");
const run = promisify(execFile);

function bench(...args: string[]) {
  return run(process.execPath, ["--conditions=holdfast-source", join(root, "bench/main.ts"), ...args], { cwd: root });
}

const ratios = ["read", "pass", "charge", "intent", "replay"].flatMap((operation) =>
  ["latency", "latency_p99", "throughput"].map((figure) => `proxy_${operation}_${figure}`),
);

test("a quick run of the proxy's bench prints every ratio, and the page says what each means", async () => {
  const { stdout } = await bench("proxy", "--quick");
  const printed = [...stdout.matchAll(/^ratio (\S+) (\d+\.\d\d)$/gm)];
  expect(printed.map(([, name]) => name)).toEqual(ratios);
  expect(stdout).toMatch(/^\d+ × .*, Node v\d+.*, fdatasync of 8 KiB p50 \d/);
  const page = readFileSync(join(root, "docs/performance.md"), "utf8");
  for (const operation of ["read", "pass", "charge", "intent", "replay"]) expect(page).toContain(`| \`${operation}\``);
});

test("a bench that does not exist is refused with the list of those that do", async () => {
  await expect(bench("teleport")).rejects.toMatchObject({ code: 2, stdout: expect.stringContaining("  proxy ") });
});

test("a percentile is a sample, by nearest rank", () => {
  const samples = [4, 1, 3, 2];
  expect([0, 0.25, 0.5, 0.51, 0.99, 1].map((share) => percentile(samples, share))).toEqual([1, 1, 2, 3, 4, 4]);
  expect(() => percentile([], 0.5)).toThrow(RangeError);
});
