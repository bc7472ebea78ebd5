import type pg from "pg";
import type { Config } from "./config.ts";
import { createToken, tokenHash } from "./rpc/auth.ts";
import { StartupError } from "./startup-error.ts";
import { checkDatabase, checkServer } from "./store/check-database.ts";
import { startEmbeddedPostgres } from "./store/embedded-postgres.ts";
import { insertOperator } from "./store/operator.ts";
import { createPool, inTransaction } from "./store/postgres.ts";
import { appendAudit, ensureWorkspace } from "./store/workspace.ts";

const firstOperator = "root";

export interface WorkspaceOptions {
  /** Instead of the database of the configuration. */
  readonly connection?: pg.ClientConfig;
  /** Only for tests. */
  readonly fsyncOff?: "allowed";
  /** Returns that many random bytes. */
  readonly random?: (size: number) => Uint8Array;
}

/**
 * Makes a workspace with its first operator, directly in the database, and returns that operator's token: it is stored
 * nowhere and never shown again. Throws a StartupError for an id that is none and for a workspace that exists.
 */
export async function createWorkspace(
  config: Config,
  workspace: string | undefined,
  options: WorkspaceOptions = {},
): Promise<string> {
  if (workspace === undefined || !/^[a-z0-9]{1,32}$/.test(workspace)) {
    throw new StartupError("usage", "workspace create needs an id of 1 to 32 lower-case letters and digits.");
  }
  const { database } = config;
  const embedded =
    options.connection === undefined && database.kind === "embedded"
      ? await startEmbeddedPostgres(database)
      : undefined;
  try {
    const connection =
      options.connection ?? (database.kind === "url" ? { connectionString: database.url } : embedded?.connection);
    const pool = createPool({ connection: connection ?? {}, max: 2, preparedStatements: config.preparedStatements });
    try {
      const fsyncOff = options.fsyncOff ?? "refused";
      await checkServer(pool, { fsyncOff });
      await checkDatabase(pool, { alteredClock: config.alteredClock, fsyncOff });
      return await insert(pool, workspace, options.random);
    } finally {
      await pool.end();
    }
  } finally {
    await embedded?.close();
  }
}

async function insert(pool: pg.Pool, workspace: string, random?: (size: number) => Uint8Array): Promise<string> {
  const token = createToken("op", workspace, firstOperator, random);
  await inTransaction(pool, async (transaction) => {
    if (!(await ensureWorkspace(transaction, workspace))) {
      throw new StartupError("usage", `The workspace ${workspace} exists; nothing was changed. Choose another id.`);
    }
    const operator = { operatorId: firstOperator, role: "OPERATOR", secretSha256: tokenHash(token) } as const;
    await insertOperator(transaction, workspace, operator);
    await appendAudit(transaction, workspace, {
      kind: "workspace.created",
      actor: { kind: "operator", id: firstOperator },
      traceId: "",
      detail: { workspace },
    });
  });
  return token;
}

/** What is shown of a new workspace. */
export function workspaceReport(workspace: string, token: string): string {
  return `The workspace ${workspace} was created. The token of its first operator, operators/${firstOperator}, is shown only here:

  ${token}

Any server on this database serves the workspace: the token says which one is meant.
`;
}
