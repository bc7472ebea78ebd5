import { join } from "node:path";
import { startApp } from "../server/app.ts";
import { readConfig } from "../server/config.ts";
import { openQuickstart, quickstartConfig } from "../server/quickstart.ts";
import { startStripeSimulator, type StripeSimulator } from "../test/support/stripe-simulator/index.ts";

/** A server with its own Postgres and a vendor, in this process, for programs that stand for a user's. */
export interface ConsumerWorld {
  readonly url: string;
  readonly vaultKey: string;
  readonly simulator: StripeSimulator;
  close(): Promise<void>;
}

/** Starts as `npm start` does, with its data in `folder`. */
export async function startConsumerWorld(folder: string): Promise<ConsumerWorld> {
  const environment = { HOLDFAST_DATA_FOLDER: join(folder, "data"), HOLDFAST_PORT: "0", HOLDFAST_LOG_LEVEL: "error" };
  const read = readConfig(environment, ["--embedded"]);
  const dataFolder = environment.HOLDFAST_DATA_FOLDER;
  const config = quickstartConfig(read, dataFolder);
  const app = await startApp(config);
  const simulator = await startStripeSimulator();
  const quickstart = await openQuickstart(app.url, config, dataFolder);
  if (quickstart === undefined) throw new Error("the server refused the token that it had just made");
  return {
    url: app.url,
    vaultKey: quickstart.vaultKey,
    simulator,
    async close() {
      await simulator.close();
      await app.close();
    },
  };
}
