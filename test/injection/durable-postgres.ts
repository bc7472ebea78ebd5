import { rm } from "node:fs/promises";
import {
  type EmbeddedPostgres,
  type EmbeddedPostgresOptions,
  startEmbeddedPostgres,
} from "../../server/store/embedded-postgres.ts";
import { makeFolder } from "./wire.ts";

export interface DurablePostgres extends EmbeddedPostgres {
  readonly dataFolder: string;
}

/** A Postgres of its own that survives a crash, for servers that refuse any other. */
export async function startDurablePostgres(
  options: Omit<EmbeddedPostgresOptions, "dataFolder"> & { readonly dataFolder?: string } = {},
): Promise<DurablePostgres> {
  const dataFolder = options.dataFolder ?? (await makeFolder("injection"));
  const postgres = await startEmbeddedPostgres({ ...options, dataFolder });
  return {
    dataFolder,
    connection: postgres.connection,
    get pid() {
      return postgres.pid;
    },
    async close() {
      await postgres.close();
      if (options.dataFolder === undefined) await rm(dataFolder, { recursive: true, force: true });
    },
  };
}
