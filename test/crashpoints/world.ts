import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Http2SessionManager } from "@connectrpc/connect-node";
import { CapWindow } from "@holdfast/api/holdfast/v1/cap_pb";
import { raisedBy } from "../crash/billing-client.ts";
import { type LineProcess, startLineProcess } from "../crash/line-process.ts";
import { startStage, type Stage } from "../crash/stage.ts";
import { type Plant, plantInDatabase } from "./plant.ts";

export const amount = 490;
export const minute = 60_000;
export const hour = 60 * minute;
export const holdMs = 5 * minute;

/** Everything that cells share: one server, one database, one vendor, one time. */
export interface CrashWorld {
  readonly stage: Stage;
  /** The key of all calls but those of reconcilers, which have one each. */
  readonly vaultKey: string;
  readonly sessions: Http2SessionManager;
  /** Holds what all clocks were moved by. */
  readonly clockFile: string;
  /** A billing process that has done nothing yet, and is patient until SIGUSR2. Some are always kept ready. */
  nextProcess(): LineProcess;
  readonly plant: Plant | undefined;
  newVaultKey(): Promise<string>;
  /** Moves every clock, those of billing processes included. */
  advance(ms: number): Promise<void>;
  /** What the server does from a timer, now. */
  sweep(): Promise<void>;
  close(): Promise<void>;
}

const readyMin = 2;

/** Of a process that may have to stand at a point for long. */
export const patientFlags = ["--import", join(import.meta.dirname, "patient.ts")];
const allowedEndpoints = [
  "POST /v1/charges",
  "POST /v1/payment_intents",
  "POST /v1/payment_intents/:id/capture",
  "POST /v1/payment_intents/:id/increment_authorization",
];

export async function startCrashWorld(plant?: Plant): Promise<CrashWorld> {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-crashpoints-"));
  const clockFile = join(folder, "moved");
  const write = (ms: number): void => writeFileSync(clockFile, `${ms}`.padStart(16, "0"));
  write(0);
  const stage = await startStage();
  const { admin } = stage.policy;
  await stage.policy.setLimit("1000000");
  // Room for one hold of each customer: another one would be denied.
  await admin.createCap({
    capId: "each",
    cap: {
      limit: { currency: "usd", amount: ((amount + raisedBy) / 100).toFixed(2) },
      window: CapWindow.LIFETIME,
      perCustomer: true,
    },
  });
  let keys = 0;
  let last: Promise<unknown> = Promise.resolve();
  // One after the other: each takes the row of the workspace.
  const newVaultKey = (): Promise<string> => {
    keys += 1;
    const request = { vaultKeyId: `cell${keys}`, vaultKey: { vendor: "stripe", allowedEndpoints } };
    const made = last.then(() => admin.createVaultKey(request));
    last = made.catch(() => undefined);
    return made.then(({ token }) => token);
  };
  if (plant !== undefined) await plantInDatabase(stage.pool, plant);
  const sessions = new Http2SessionManager(stage.url);
  const ready: LineProcess[] = [];
  const start = () =>
    startLineProcess(join(import.meta.dirname, "../crash/billing-process.ts"), {
      nodeFlags: patientFlags,
      env: {
        NODE_COMPILE_CACHE: join(folder, "compiled"),
        ...(plant === undefined ? {} : { HOLDFAST_TEST_PLANT: plant }),
      },
    });
  let movedMs = 0;
  return {
    stage,
    vaultKey: await newVaultKey(),
    sessions,
    clockFile,
    nextProcess() {
      while (ready.length <= readyMin) ready.push(start());
      return ready.shift() as LineProcess;
    },
    plant,
    newVaultKey,
    async advance(ms) {
      movedMs += ms;
      write(movedMs);
      await stage.advance(ms);
    },
    async sweep() {
      await stage.pool.query("select holdfast.sweep_expired('default', 10000)");
    },
    async close() {
      sessions.abort();
      await Promise.all(ready.map((process) => process.kill()));
      await stage.close();
      rmSync(folder, { recursive: true, force: true });
    },
  };
}
