import { rm } from "node:fs/promises";
import { setTimeout as delay } from "node:timers/promises";
import { startDurablePostgres } from "../injection/durable-postgres.ts";
import { freePort } from "../support/free-port.ts";
import { buildImage, type Ended, type Install, run, start } from "./container.ts";
import { databaseUrl, operatorToken } from "../injection/server-process.ts";
import { makeFolder } from "../injection/wire.ts";

/** What became of the image: its migration, its server while it serves, and its end. */
export interface ImageRun {
  readonly refused: Ended;
  readonly migrated: Ended;
  readonly healthBefore: Ended;
  readonly health: Ended;
  readonly served: Ended;
}

/** Builds the image in plain folders, and has it refuse, migrate, serve, answer its health check and stop. */
export async function runImage(install: Install, tell: (line: string) => void = () => {}): Promise<ImageRun> {
  const folder = await makeFolder("image");
  const postgres = await startDurablePostgres();
  try {
    tell(`build (${install})`);
    const image = await buildImage(folder, install);
    const port = await freePort();
    const env = { DATABASE_URL: databaseUrl(postgres.connection), HOLDFAST_PORT: `${port}` };
    const settings = { ...env, HOLDFAST_ALLOW_PLAINTEXT: "true", HOLDFAST_OPERATOR_TOKEN: operatorToken };
    tell("serve without a certificate");
    const refused = await run(image, image.command, env);
    tell("migrate");
    const migrated = await run(image, ["migrate"], { ...env, HOLDFAST_HOST: "127.0.0.1" });
    const askHealth = () => start(image, image.healthcheck, settings).ended;
    const healthBefore = await askHealth();
    tell("serve");
    const server = start(image, [...image.entrypoint, ...image.command], settings);
    let health = healthBefore;
    try {
      // As a container's health check does: again and again, until it serves or is gone.
      while (health.code !== 0 && server.child.exitCode === null) {
        await delay(200);
        health = await askHealth();
      }
    } finally {
      server.child.kill("SIGTERM");
    }
    tell("stop");
    return { refused, migrated, healthBefore, health, served: await server.ended };
  } finally {
    await postgres.close();
    await rm(folder, { recursive: true, force: true });
  }
}
