import { startApp } from "../../server/app.ts";
import { readConfig } from "../../server/config.ts";

// A later version of the server, as far as a rollout is concerned: this one, with the migrations of the folder that
// NEXT_MIGRATIONS names.

const { NEXT_MIGRATIONS: migrationsFolder = "", ...env } = process.env;
const app = await startApp(readConfig(env, []), { migrationsFolder });
process.once("SIGTERM", () => void app.close().then(() => process.exit(0)));
