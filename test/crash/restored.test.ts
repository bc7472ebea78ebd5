import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdir, mkdtemp, rename, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { createClient } from "@connectrpc/connect";
import { Disposition, Settlement } from "@holdfast/api/holdfast/v1/spend_pb";
import { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { expect, test } from "vitest";
import { startApp } from "../../server/app.ts";
import { readConfig } from "../../server/config.ts";
import { createToken } from "../../server/rpc/auth.ts";
import { startEmbeddedPostgres } from "../../server/store/embedded-postgres.ts";
import { ask as query, copyCluster } from "../support/standby.ts";
import { createPolicy, transportOf } from "./policy.ts";

const operatorToken = createToken("op", "default", "root");
const config = { ...readConfig({}, []), port: 0, logLevel: "silent", operatorToken } as const;

async function recover(dataFolder: string, ...flags: string[]): Promise<{ code: number; output: string }> {
  const main = join(import.meta.dirname, "../../server/main.ts");
  const args = ["--conditions=holdfast-source", main, "recover", "--embedded", ...flags];
  const env = { PATH: process.env["PATH"], HOLDFAST_DATA_FOLDER: dataFolder, HOLDFAST_LOG_LEVEL: "silent" };
  const child = spawn(process.execPath, args, { env, stdio: ["ignore", "pipe", "inherit"] });
  const [output, [code]] = await Promise.all([text(child.stdout), once(child, "exit")]);
  return { code: code as number, output };
}

const restorations: Readonly<Record<string, (data: string) => Promise<void>>> = {
  "its files were put back as they were": () => Promise.resolve(),
  "a backup was restored from an archive": async (data) => {
    await writeFile(join(data, "postgresql.auto.conf"), "restore_command = 'false'\n");
    await writeFile(join(data, "recovery.signal"), "");
  },
};

test.each(Object.keys(restorations))(
  "under a running server %s: nothing is granted until the recovery",
  async (how) => {
    const root = await mkdtemp(join(tmpdir(), "holdfast-restored-"));
    const [dataFolder, backup] = [join(root, "data"), join(root, "backup")];
    await mkdir(backup);
    let postgres = await startEmbeddedPostgres({ dataFolder });
    const app = await startApp(config, { connection: postgres.connection });
    try {
      const policy = await createPolicy(app.url, operatorToken);
      const spend = createClient(SpendControlService, transportOf(app.url, policy.vaultKey));
      const ask = (customerId: string) =>
        spend.authorizeSpend({
          spend: { customerId, billingPeriod: "2026-11", purpose: "p", amount: { currency: "usd", amount: "10" } },
          vendor: "stripe",
          endpoint: "POST /v1/charges",
          settlement: Settlement.SEND_ONCE,
          attemptId: "a".repeat(32),
        });
      expect(await ask("before")).toMatchObject({ disposition: Disposition.GRANTED });
      await postgres.close();
      await copyCluster(dataFolder, backup);
      postgres = await startEmbeddedPostgres({ dataFolder });
      await expect.poll(() => ask("lost").catch(() => undefined)).toMatchObject({ disposition: Disposition.GRANTED });
      // A server knows how far the log was when it last looked, which it does at every new connection.
      await query(postgres.connection, "select pg_switch_wal()");
      await query(
        postgres.connection,
        "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'holdfast'",
      );
      await expect.poll(() => ask("lost").catch(() => undefined)).toMatchObject({ disposition: Disposition.GRANTED });
      await postgres.close();

      await rm(join(dataFolder, "postgres"), { recursive: true });
      await rename(join(backup, "postgres"), join(dataFolder, "postgres"));
      await restorations[how]?.(join(dataFolder, "postgres"));
      postgres = await startEmbeddedPostgres({ dataFolder });
      const refusal = async () => await ask("new").then(String, String);
      await expect.poll(refusal).toContain("holdfast recover");
      expect(await policy.usage()).toMatchObject({ held: "10" });
      await postgres.close();
      expect(await recover(dataFolder)).toMatchObject({ code: 0, output: expect.stringContaining("were held    1") });
      expect(await recover(dataFolder)).toMatchObject({ code: 0, output: expect.stringContaining("nothing to do") });
      // An operator who knows of a restoration that nobody has seen.
      expect(await recover(dataFolder, "--restored")).toMatchObject({
        code: 0,
        output: expect.stringContaining("asked for with --restored"),
      });

      postgres = await startEmbeddedPostgres({ dataFolder });
      await expect.poll(() => ask("new").catch(() => undefined)).toMatchObject({ disposition: Disposition.GRANTED });
      expect(await ask("before")).toMatchObject({ disposition: Disposition.IN_DOUBT });
    } finally {
      await app.close();
      await postgres.close();
      await rm(root, { recursive: true, force: true });
    }
  },
);
