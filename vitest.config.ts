import { defineConfig } from "vitest/config";

export default defineConfig({
  resolve: { conditions: ["holdfast-source"] },
  ssr: { resolve: { conditions: ["holdfast-source"], externalConditions: ["holdfast-source"] } },
  test: {
    include: ["test/**/*.test.ts"],
    globalSetup: ["test/support/global-setup.ts"],
    // Guards against hanging and nothing else: a busy machine stalls a test for seconds.
    testTimeout: 300_000,
    hookTimeout: 300_000,
    teardownTimeout: 60_000,
    expect: { poll: { timeout: 60_000, interval: 20 } },
    maxWorkers: 2,
  },
});
