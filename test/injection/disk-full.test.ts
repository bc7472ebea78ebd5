import { execFileSync } from "node:child_process";
import {
  chmodSync,
  chownSync,
  cpSync,
  mkdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { type Client, Code, createClient } from "@connectrpc/connect";
import { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { Disposition } from "@holdfast/api/holdfast/v1/spend_pb";
import { afterAll, afterEach, describe, expect, test } from "vitest";
import { type App, startApp } from "../../server/app.ts";
import { readConfig } from "../../server/config.ts";
import { createPolicy, type Policy, transportOf } from "../crash/policy.ts";
import { ask } from "../support/standby.ts";
import { type DurablePostgres, startDurablePostgres } from "./durable-postgres.ts";
import { operatorToken } from "./server-process.ts";
import { dollar, type Refusal, refusalOf, untilAnswered } from "./spend-call.ts";
import { makeFolder } from "./wire.ts";

/** Why small disks cannot be made here; undefined if they can. */
async function whyNoMount(): Promise<string | undefined> {
  if (process.getuid?.() !== 0) return "mounting a small disk needs root";
  const folder = await makeFolder("probe");
  try {
    execFileSync("mount", ["-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], { stdio: "pipe" });
    execFileSync("umount", [folder], { stdio: "pipe" });
    return undefined;
  } catch {
    return "this machine does not allow mounting a tmpfs";
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

const impossible = await whyNoMount();
const closers: (() => unknown)[] = [];
const close = async (): Promise<void> => {
  for (const closer of closers.splice(0).toReversed()) await closer();
};
afterEach(close);
afterAll(close);

interface Stage {
  readonly postgres: DurablePostgres;
  readonly policy: Policy;
  readonly spends: Client<typeof SpendControlService>;
}

/** A server whose database has its tables, its write-ahead log or both on disks of their own. */
async function startStage(disks: { readonly data?: string; readonly wal?: string }): Promise<Stage> {
  const root = await makeFolder("disk-full");
  closers.push(() => rmSync(root, { recursive: true, force: true }));
  const mount = (name: string, size: string): string => {
    const folder = join(root, name);
    mkdirSync(folder);
    execFileSync("mount", ["-t", "tmpfs", "-o", `size=${size}`, "tmpfs", folder]);
    // A process that is slow to end keeps it busy; lazily, it goes with that process.
    closers.push(() => execFileSync("umount", ["--lazy", folder]));
    chmodSync(folder, 0o711);
    return folder;
  };
  const dataFolder = disks.data === undefined ? join(root, "data") : mount("data", disks.data);
  const walFolder = disks.wal === undefined ? join(root, "wal") : mount("wal", disks.wal);
  // No checkpoint may recycle the log in time.
  const settings = { max_wal_size: "10GB", checkpoint_timeout: "1h", autovacuum: "off" };
  const seed = await startDurablePostgres({ dataFolder, settings });
  await seed.close();
  const cluster = join(dataFolder, "postgres");
  const { uid, gid } = statSync(cluster);
  cpSync(join(cluster, "pg_wal"), join(walFolder, "pg_wal"), { recursive: true });
  execFileSync("chown", ["-R", `${uid}:${gid}`, join(walFolder, "pg_wal")]);
  chmodSync(walFolder, 0o711);
  chownSync(walFolder, uid, gid);
  rmSync(join(cluster, "pg_wal"), { recursive: true });
  symlinkSync(join(walFolder, "pg_wal"), join(cluster, "pg_wal"));
  const postgres = await startDurablePostgres({ dataFolder, settings });
  closers.push(() => postgres.close());
  const config = { ...readConfig({}, []), port: 0, logLevel: "silent", operatorToken } as const;
  const app: App = await startApp(config, { connection: postgres.connection });
  closers.push(() => app.close());
  const policy = await createPolicy(app.url, operatorToken, "1000000");
  const spends = createClient(SpendControlService, transportOf(app.url, policy.vaultKey));
  return { postgres, policy, spends };
}

/** Fills what is free, to the last byte. */
function fill(folder: string): string {
  const filler = join(folder, "filler");
  try {
    execFileSync("dd", ["if=/dev/zero", `of=${filler}`, "bs=64k"], { stdio: "pipe" });
  } catch {
    // It ends when there is no space left.
  }
  writeFileSync(join(folder, "probe"), "", { flag: "w" });
  rmSync(join(folder, "probe"));
  return filler;
}

describe.skipIf(impossible !== undefined)(
  `a full disk${impossible === undefined ? "" : ` (skipped: ${impossible})`}`,
  () => {
    test("of the tables: STORAGE_FULL, no grant without its row, and it goes on by itself when there is room", async () => {
      const { postgres, policy, spends } = await startStage({ data: "200m" });
      const filler = fill(postgres.dataFolder);
      const granted: string[] = [];
      let refusal: Refusal | undefined;
      let request = dollar("none");
      // Pages have some room of their own.
      for (let n = 0; refusal === undefined && n < 20_000; n += 1) {
        request = dollar(`c${n}`);
        const { authorization, disposition } = await spends.authorizeSpend(request).catch((error: unknown) => {
          refusal = refusalOf(error);
          return { authorization: undefined, disposition: Disposition.UNSPECIFIED };
        });
        if (disposition === Disposition.GRANTED) granted.push(authorization?.spend?.customerId ?? "");
      }
      expect(refusal).toEqual({ code: Code.Unavailable, reason: "STORAGE_FULL", retryInfo: true });
      // Reads go on, and a refused grant counts nowhere.
      expect(Number((await policy.usage()).held)).toBe(granted.length);
      rmSync(filler);
      expect(await untilAnswered(() => spends.authorizeSpend(request))).toMatchObject({
        disposition: Disposition.GRANTED,
        mayHaveBeenSent: false,
      });
      const rows = await ask(postgres.connection, "select customer_id from holdfast.authorizations");
      expect(new Set(rows.map((row) => row["customer_id"]))).toEqual(new Set([...granted, request.spend.customerId]));
    });

    test("of the write-ahead log: unavailable while Postgres cannot run, no grant is lost, and it comes back by itself", async () => {
      const { postgres, policy, spends } = await startStage({ wal: "64m" });
      const walFolder = join(postgres.dataFolder, "..", "wal");
      const granted: string[] = [];
      for (let n = 0; n < 20; n += 1) {
        const { authorization } = await spends.authorizeSpend(dollar(`before-${n}`));
        granted.push(authorization?.name ?? "");
      }
      const filler = fill(walFolder);
      // Postgres starts again by itself as long as its last segment has room, and ends again when it has not.
      const writing = async (): Promise<void> => {
        const big = "create table public.big as select repeat('x', 1000) from generate_series(1, 60000)";
        await ask(postgres.connection, big).catch(() => {});
      };
      const panicked = () => readFileSync(join(postgres.dataFolder, "postgres.log"), "utf8").includes("PANIC");
      while (!panicked()) await writing();
      const refusals: Refusal[] = [];
      for (let n = 0; refusals.length < 5; n += 1) {
        const background = writing();
        const outcome = await spends.authorizeSpend(dollar(`during-${n}`)).catch(refusalOf);
        if ("code" in outcome) refusals.push(outcome);
        else granted.push(outcome.authorization?.name ?? "");
        await background;
      }
      for (const refusal of refusals) expect(refusal).toMatchObject({ code: Code.Unavailable, retryInfo: true });
      rmSync(filler);
      execFileSync("mount", ["-o", "remount,size=600m", walFolder]);
      expect(await untilAnswered(() => spends.authorizeSpend(dollar("after")))).toMatchObject({
        disposition: Disposition.GRANTED,
      });
      for (const name of granted) {
        const { authorization } = await spends.getAuthorization({ lookup: { case: "name", value: name } });
        expect(authorization?.name).toBe(name);
      }
      expect(Number((await policy.usage()).held)).toBeGreaterThanOrEqual(granted.length + 1);
    });
  },
);
