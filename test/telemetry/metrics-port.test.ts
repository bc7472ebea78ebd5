import { once } from "node:events";
import { Agent, get } from "node:https";
import { afterEach, expect, test } from "vitest";
import { type MetricsListener, startMetricsListener } from "../../server/metrics-listener.ts";
import type { Certificates } from "../../server/rpc/certificates.ts";
import { StartupError } from "../../server/startup-error.ts";
import { type Authority, createAuthority } from "../support/certificates.ts";

const closers: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const closer of closers.splice(0).toReversed()) await closer();
});

async function start(options: Partial<Parameters<typeof startMetricsListener>[0]> = {}): Promise<MetricsListener> {
  const listener = await startMetricsListener({
    host: "127.0.0.1",
    port: 0,
    scrape: () => Promise.resolve("m 1\n"),
    tls: undefined,
    log: { warn: () => {} },
    ...options,
  });
  closers.push(() => listener.close());
  return listener;
}

const certificatesOf = (authority: Authority, clientCa?: string): Certificates => ({
  ...authority.issue("localhost", "127.0.0.1"),
  clientCa,
  expiresAt: Number.POSITIVE_INFINITY,
});

async function secured(url: string, options: { ca: string; cert?: string; key?: string }): Promise<string> {
  const request = get(url, { ...options, agent: new Agent() });
  const [response] = (await once(request, "response")) as [AsyncIterable<Buffer>];
  let text = "";
  for await (const chunk of response) text += chunk.toString();
  return text;
}

test("scrapes that come at once are one, and the next one is another", async () => {
  let scrapes = 0;
  const gate = Promise.withResolvers<void>();
  const { url } = await start({
    scrape: async () => {
      scrapes += 1;
      await gate.promise;
      return `m ${scrapes}\n`;
    },
  });
  const first = fetch(url);
  await expect.poll(() => scrapes).toBe(1);
  const others = [fetch(url), fetch(url)];
  // Each is answered on a connection of its own, so what is answered here has come after them.
  await fetch(new URL("/nothing", url));
  gate.resolve();
  for (const answer of await Promise.all([first, ...others])) expect(answer.status).toBe(200);
  expect(scrapes).toBeLessThanOrEqual(2);
  const before = scrapes;
  await (await fetch(url)).text();
  expect(scrapes).toBe(before + 1);
});

test("a collection that fails is an answer without its reason", async () => {
  const told: object[] = [];
  const { url } = await start({
    scrape: () => Promise.reject(new Error("secret")),
    log: { warn: (details) => void told.push(details) },
  });
  const answer = await fetch(url);
  expect(answer.status).toBe(500);
  expect(await answer.text()).toBe("");
  expect(told).toHaveLength(1);
});

test("an address that is taken is a refusal to start that names the settings", async () => {
  const { url } = await start();
  const refusal = start({ port: Number(new URL(url).port) });
  await expect(refusal).rejects.toThrow(StartupError);
  await expect(refusal).rejects.toThrow(/HOLDFAST_METRICS_HOST and HOLDFAST_METRICS_PORT/);
});

test("a secured port speaks TLS only, takes new certificates, and asks for one where an authority is set", async () => {
  const [first, second] = [createAuthority(), createAuthority()];
  let exchange: (certificates: Certificates) => void = () => {};
  const tls = (clientCa?: string) => ({
    certificates: certificatesOf(first, clientCa),
    minVersion: "TLSv1.2" as const,
    onOpen: (take: typeof exchange) => void (exchange = take),
  });
  const { url } = await start({ tls: tls() });
  expect(url).toMatch(/^https:/);
  expect(await secured(url, { ca: first.cert })).toBe("m 1\n");
  await expect(secured(url, { ca: second.cert })).rejects.toThrow();
  await expect(fetch(url.replace("https", "http"))).rejects.toThrow();
  exchange(certificatesOf(second));
  expect(await secured(url, { ca: second.cert })).toBe("m 1\n");

  const mutual = await start({ tls: tls(second.cert) });
  await expect(secured(mutual.url, { ca: first.cert })).rejects.toThrow();
  expect(await secured(mutual.url, { ca: first.cert, ...second.issue("prometheus") })).toBe("m 1\n");
});
