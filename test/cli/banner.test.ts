import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { afterEach, expect, test } from "vitest";

const root = join(import.meta.dirname, "../..");
let folder: string | undefined;
afterEach(async () => {
  if (folder !== undefined) await rm(folder, { recursive: true, force: true });
});

test("a start with its own database says where it listens: for calls, for Stripe's clients and for Prometheus", async () => {
  folder = await mkdtemp(join(tmpdir(), "holdfast-banner-"));
  const child = spawn(process.execPath, ["--conditions=holdfast-source", "server/main.ts", "serve", "--embedded"], {
    cwd: root,
    env: {
      PATH: process.env["PATH"],
      HOLDFAST_DATA_FOLDER: folder,
      HOLDFAST_PORT: "0",
      HOLDFAST_STRIPE_PROXY_PORT: "0",
      HOLDFAST_METRICS_PORT: "0",
      HOLDFAST_CREDENTIAL_KEY: Buffer.alloc(32, 1).toString("base64"),
    },
    stdio: ["ignore", "pipe", "ignore"],
  });
  const ended = once(child, "exit");
  try {
    const addresses: Record<string, string> = {};
    for await (const line of createInterface(child.stdout)) {
      const [, name = "", url = ""] = /^(Stripe proxy|metrics): (http\S+)$/.exec(line) ?? [];
      if (url !== "") addresses[name] = url;
      // The last line.
      if (name === "metrics") break;
    }
    const scraped = await fetch(addresses["metrics"] ?? "");
    expect(await scraped.text()).toContain("holdfast_authorize_decisions");
    expect((await fetch(`${addresses["Stripe proxy"]}/v1/charges`)).status).toBe(401);
  } finally {
    child.kill("SIGTERM");
    await ended;
  }
}, 120_000);
