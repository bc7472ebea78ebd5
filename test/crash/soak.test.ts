import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { afterAll, beforeAll, expect, test } from "vitest";
import { type Front, startFront } from "../support/front.ts";
import { type LineProcess, startLineProcess } from "./line-process.ts";
import type { SoakStart } from "./soak-process.ts";
import { startStage, type Stage } from "./stage.ts";

// 20 s in the suite; SOAK_SECONDS=3600 for a long one.
const seconds = Number(process.env["SOAK_SECONDS"] ?? "20");
const timeoutMs = 4_000;
// A guard against hanging only: the waits for the grant, for the vendor and for two settlements, and a busy machine.
const CALL_MAX_MS = 60_000;

let stage: Stage;
let front: Front;
const children: LineProcess[] = [];
beforeAll(async () => {
  stage = await startStage();
  // Neither the test's own cap nor that of the first start may end a long run.
  await stage.policy.setLimit("1000000");
  await stage.policy.admin.updateCap({
    cap: { name: "caps/quickstart-daily", limit: { currency: "usd", amount: "1000000" } },
    updateMask: { paths: ["limit"] },
  });
  front = await startFront(() => Number(new URL(stage.url).port));
});
afterAll(async () => {
  for (const child of children) {
    child.signal("SIGCONT");
    await child.kill();
  }
  await front?.close();
  await stage?.close();
});

function startBilling(options: Partial<SoakStart> = {}): LineProcess {
  const child = startLineProcess(join(import.meta.dirname, "soak-process.ts"));
  children.push(child);
  const baseUrl = `http://127.0.0.1:${front.port}`;
  const { vaultKey } = stage.policy;
  const start: SoakStart = { baseUrl, vaultKey, stripePort: stage.simulator.port, callers: 0, timeoutMs, ...options };
  child.tell({ start });
  return child;
}

function chargesOf(customer: string): number {
  return stage.simulator.movements().filter((one) => one.kind === "charge" && one.customer === customer).length;
}

test("a process that was stopped, while its connection died, is answered at once when it goes on", async () => {
  const child = startBilling({ timeoutMs: 30_000 });
  child.tell({ once: "awake" });
  expect(await child.said((line) => "charged" in line || "failed" in line)).toMatchObject({ charged: "awake" });
  child.signal("SIGSTOP");
  front.freeze();
  child.tell({ once: "thawed" });
  child.signal("SIGCONT");
  const answered = (line: Readonly<Record<string, unknown>>) =>
    line["charged"] === "thawed" || line["failed"] === "thawed";
  expect(await child.said(answered)).toMatchObject({ charged: "thawed" });
  expect(chargesOf("thawed")).toBe(1);
  expect(child.lines.filter((line) => "defect" in line)).toEqual([]);
  await child.kill();
});

test("whatever becomes of the server and the connection: every call ends typed, nothing escapes, nobody is charged twice", {
  timeout: (seconds + 180) * 1_000,
}, async () => {
  const child = startBilling({ callers: 8 });
  const disturbances: (() => unknown)[] = [
    () => stage.killServer().then(() => stage.startServer()),
    () => front.freeze(),
    () => front.reset(),
    () => stage.stopServer().then(() => stage.startServer()),
    () => front.inject(Buffer.from("HTTP/1.1 502 Bad Gateway\r\n\r\n")),
    () => {
      child.signal("SIGSTOP");
      return delay(500).then(() => child.signal("SIGCONT"));
    },
    () => front.inject(Buffer.alloc(70_000, 0xff)),
  ];
  const end = performance.now() + seconds * 1_000;
  for (let n = 0; performance.now() < end; n += 1) {
    await delay(1_000);
    await disturbances[n % disturbances.length]?.();
  }
  child.tell({ stop: true });
  await child.said((line) => "closed" in line);
  const ended = child.lines.filter((line) => "charged" in line || "failed" in line);
  const charged = ended.filter((line) => "charged" in line).map((line) => line["charged"] as string);
  const unexpected = ended.filter((line) => "failed" in line && line["code"] !== "holdfast_unavailable");
  expect(child.lines.filter((line) => "defect" in line)).toEqual([]);
  expect(child.errors()).toBe("");
  expect(unexpected).toEqual([]);
  expect(charged.length).toBeGreaterThan(10);
  expect(Math.max(...ended.map((line) => line["ms"] as number))).toBeLessThan(CALL_MAX_MS);
  for (const customer of charged) expect([customer, chargesOf(customer)]).toEqual([customer, 1]);
  const all = stage.simulator.movements().flatMap(({ kind, customer }) => (kind === "charge" ? [customer] : []));
  expect(new Set(all).size).toBe(all.length);
  console.log(`soak: ${ended.length} calls, ${charged.length} charged, in ${seconds} s`);
});
