import { type Config, readConfig } from "../config.ts";
import { StartupError } from "../startup-error.ts";
import { checkDatabase, checkServer } from "../store/check-database.ts";
import { readInstanceProblem } from "../store/instance.ts";
import { createPool } from "../store/postgres.ts";
import type { Finding } from "./doctor.ts";

type Environment = Readonly<Record<string, string | undefined>>;

/**
 * What is to be said of the database that the server's settings name, without changing it. Nothing where `DATABASE_URL`
 * is not set: the embedded database has one user at a time, which is its server.
 */
export async function* databaseFindings(env: Environment): AsyncGenerator<Finding> {
  if ((env["DATABASE_URL"] ?? "").trim() === "") return;
  let config: Config;
  try {
    // The token is the caller's here, and may be of another workspace than the server's first one.
    config = readConfig({ ...env, HOLDFAST_OPERATOR_TOKEN: undefined }, []);
  } catch (error) {
    yield refused("settings", error);
    return;
  }
  yield { verdict: "ok", subject: "settings", text: "a server would take those of this environment." };
  if (config.database.kind !== "url") return;
  const pool = createPool({
    connection: { connectionString: config.database.url },
    max: 1,
    preparedStatements: false,
    applicationName: "holdfast-doctor",
  });
  const { alteredClock } = config;
  try {
    yield await judged("database", "reached, and its settings are safe.", () => checkServer(pool));
    yield await judged("schema", "the one of this program.", () =>
      checkDatabase(pool, { alteredClock, fsyncOff: "allowed" }),
    );
    yield await recoveryFinding(() => readInstanceProblem(pool));
  } finally {
    await pool.end();
  }
}

async function judged(subject: string, text: string, check: () => Promise<void>): Promise<Finding> {
  try {
    await check();
    return { verdict: "ok", subject, text };
  } catch (error) {
    return refused(subject, error);
  }
}

async function recoveryFinding(read: () => ReturnType<typeof readInstanceProblem>): Promise<Finding> {
  const subject = "recovery";
  try {
    const problem = await read();
    if (problem === undefined) return { verdict: "ok", subject, text: "this is the database that was granted from." };
    if (problem === "MISSING") {
      const text =
        'it does not say which database it is: no server has started on it yet, or it needs "holdfast recover".';
      return { verdict: "look", subject, text };
    }
    const text = `nothing is granted: the database was restored, promoted or copied (${problem}); see "holdfast recover".`;
    return { verdict: "wrong", subject, text };
  } catch (error) {
    return refused(subject, error);
  }
}

function refused(subject: string, error: unknown): Finding {
  const known = error instanceof StartupError ? error : error instanceof Error ? error.cause : undefined;
  if (known instanceof StartupError) return { verdict: "wrong", subject, text: known.message };
  return { verdict: "wrong", subject, text: error instanceof Error ? error.message : String(error) };
}
