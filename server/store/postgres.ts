import pg from "pg";
import { StartupError } from "../startup-error.ts";
import { attribute } from "../telemetry-attributes.ts";
import { count, metric } from "../telemetry-metrics.ts";
import { columnValues } from "./column-values.ts";
import {
  classifyDatabaseError,
  DatabaseOutcomeUnknownError,
  DatabaseUnavailableError,
  endsConnection,
  sqlStateOf,
} from "./database-errors.ts";

export interface PoolOptions {
  /** Where the database is: `{ connectionString }`, or what the embedded Postgres gives. */
  readonly connection: pg.ClientConfig;
  readonly max?: number;
  /**
   * False for PgBouncer in transaction mode. Statements then travel without their names, and no session settings
   * are sent: PgBouncer refuses these startup parameters, and a `set` would stick to whichever server connection
   * ran it. `inTransaction` sets the same limits with `set local` instead; a lone statement is bounded by
   * `answerTimeoutMs` and by the settings that its function declares.
   */
  readonly preparedStatements?: boolean;
  readonly connectTimeoutMs?: number;
  readonly statementTimeoutMs?: number;
  readonly lockTimeoutMs?: number;
  readonly idleInTransactionTimeoutMs?: number;
  /** How long to wait for an answer before the connection is destroyed; 0 waits for ever. */
  readonly answerTimeoutMs?: number;
  readonly applicationName?: string;
  /** Told of connections that broke; the pool replaces them by itself. */
  readonly onConnectionError?: (error: Error) => void;
  /** Looks at every new connection after the pool has; what it throws refuses the connection. */
  readonly onSession?: (client: pg.ClientBase) => Promise<void>;
}

type PoolSettings = Required<Omit<PoolOptions, "connection">>;

const defaults: PoolSettings = {
  max: 10,
  preparedStatements: true,
  connectTimeoutMs: 2000,
  statementTimeoutMs: 5000,
  lockTimeoutMs: 1000,
  idleInTransactionTimeoutMs: 5000,
  answerTimeoutMs: 10_000,
  applicationName: "holdfast",
  onConnectionError: () => {},
  onSession: () => Promise.resolve(),
};

/** What is known about one connection besides what pg itself knows. */
interface ConnectionState {
  broken: boolean;
  /** A wait for a synchronous standby was cut short: committed here, but not where it was promised. */
  unconfirmed: boolean;
  inFlight: number;
}

const begins = new WeakMap<pg.Pool, string>();

/**
 * A pool whose errors `classifyDatabaseError` understands, and which never ends the process.
 *
 * Differences from a plain `pg.Pool`: `connect` throws DatabaseUnavailableError; a statement whose connection broke,
 * or whose answer did not come in time, throws DatabaseOutcomeUnknownError and its connection is destroyed; a
 * connection that is released with an open transaction or an unanswered statement is destroyed; an error that the
 * database reports for one statement does not cost its connection. Only the promise forms exist. A new connection
 * is refused when it leads to a replica or to a session with unsafe settings.
 */
export function createPool(options: PoolOptions): pg.Pool {
  const given = Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined));
  const settings: PoolSettings = { ...defaults, ...given };
  const states = new WeakMap<pg.ClientBase, ConnectionState>();
  const pool = new pg.Pool({
    ...options.connection,
    max: settings.max,
    types: columnValues,
    keepAlive: true,
    keepAliveInitialDelayMillis: 10_000,
    connectionTimeoutMillis: settings.connectTimeoutMs,
    application_name: settings.applicationName,
    ...(settings.preparedStatements ? sessionLimits(settings) : {}),
    verify: (client, done) => {
      refuseUnsafeSession(client)
        .then(() => settings.onSession(client))
        .then(() => done(), done);
    },
  });
  begins.set(pool, settings.preparedStatements ? "begin" : `begin; ${localLimits(settings)}`);
  pool.on("error", settings.onConnectionError);
  pool.on("connect", (client) => {
    const state: ConnectionState = { broken: false, unconfirmed: false, inFlight: 0 };
    states.set(client, state);
    guardClient(client, state, settings);
  });
  guardPool(pool, states);
  return pool;
}

function sessionLimits(settings: PoolSettings): pg.ClientConfig {
  return {
    statement_timeout: settings.statementTimeoutMs,
    lock_timeout: settings.lockTimeoutMs,
    idle_in_transaction_session_timeout: settings.idleInTransactionTimeoutMs,
  };
}

function localLimits(settings: PoolSettings): string {
  return (
    `set local statement_timeout = ${settings.statementTimeoutMs}; set local lock_timeout = ${settings.lockTimeoutMs}; ` +
    `set local idle_in_transaction_session_timeout = ${settings.idleInTransactionTimeoutMs}`
  );
}

function guardPool(pool: pg.Pool, states: WeakMap<pg.ClientBase, ConnectionState>): void {
  const connect = pool.connect.bind(pool) as () => Promise<pg.PoolClient>;
  const guardedConnect = async (): Promise<pg.PoolClient> => {
    let client: pg.PoolClient;
    try {
      client = await connect();
    } catch (cause) {
      throw new DatabaseUnavailableError("No database connection could be had in time.", { cause });
    }
    const release = client.release.bind(client);
    client.release = (error) => {
      const state = states.get(client);
      const mistake = state?.broken === false ? mistakeOf(client, state) : undefined;
      if (mistake !== undefined) countMistake(mistake);
      release(error ?? (state?.broken !== false || mistake !== undefined));
    };
    return client;
  };
  const guardedQuery = async (text: string, values?: unknown[]): Promise<pg.QueryResult> => {
    const client = await pool.connect();
    try {
      return await client.query(text, values);
    } finally {
      client.release();
    }
  };
  pool.connect = guardedConnect as typeof pool.connect;
  pool.query = guardedQuery as typeof pool.query;
}

type Mistake = "unanswered_statement" | "open_transaction";

/** What the user of a connection left behind, which would reach its next user. */
function mistakeOf(client: pg.ClientBase, { inFlight }: ConnectionState): Mistake | undefined {
  if (inFlight > 0) return "unanswered_statement";
  return client.getTransactionStatus() === "I" ? undefined : "open_transaction";
}

function countMistake(mistake: Mistake): void {
  count(metric.poolDestroyed, 1, { [attribute.poolMistake]: mistake });
}

function guardClient(client: pg.ClientBase, state: ConnectionState, settings: PoolSettings): void {
  // Without a listener of its own, the error of a connection that breaks while it is checked out ends the process.
  client.on("error", (error) => {
    state.broken = true;
    settings.onConnectionError(error);
  });
  client.on("end", () => {
    state.broken = true;
  });
  client.on("notice", (notice) => {
    const { severity, routine } = notice as { readonly severity?: string; readonly routine?: string };
    if (severity === "WARNING" && routine === "SyncRepWaitForLSN") state.unconfirmed = true;
  });
  const send = client.query.bind(client) as (config: pg.QueryConfig) => Promise<pg.QueryResult>;
  const guarded = async (query: string | pg.QueryConfig, values?: unknown[]): Promise<pg.QueryResult> => {
    const config = typeof query === "string" ? { text: query } : { ...query };
    if (values !== undefined) config.values = values;
    if (!settings.preparedStatements) delete config.name;
    state.inFlight += 1;
    try {
      return await answered(client, state, send(config), settings.answerTimeoutMs);
    } finally {
      state.inFlight -= 1;
    }
  };
  client.query = guarded as typeof client.query;
}

async function answered(
  client: pg.ClientBase,
  state: ConnectionState,
  result: Promise<pg.QueryResult>,
  timeoutMs: number,
): Promise<pg.QueryResult> {
  let late = false;
  const timer = timeoutMs === 0 ? undefined : setTimeout(giveUp, timeoutMs);
  function giveUp(): void {
    late = true;
    // pg would keep the connection, and a later statement would read this one's answer.
    (client as unknown as { readonly connection: pg.Connection }).connection.stream.destroy();
  }
  try {
    const value = await result;
    if (state.unconfirmed) {
      state.broken = true;
      throw new DatabaseOutcomeUnknownError("The commit was not confirmed by the synchronous standby.");
    }
    return value;
  } catch (cause) {
    if (endsConnection(cause)) state.broken = true;
    if (sqlStateOf(cause) !== undefined || cause instanceof DatabaseOutcomeUnknownError || !state.broken) throw cause;
    const what = late ? `gave no answer within ${timeoutMs} ms` : "closed the connection";
    throw new DatabaseOutcomeUnknownError(`The database ${what}; the statement may have been executed.`, { cause });
  } finally {
    clearTimeout(timer);
  }
}

/** The settings of a session under which a grant could be lost or never become visible. */
async function refuseUnsafeSession(client: pg.ClientBase): Promise<void> {
  const { rows } = await client.query<Record<"replica" | "read_only" | "synchronous_commit" | "isolation", string>>(
    `/* refuse_unsafe_session */ select pg_is_in_recovery()::text as replica,
      current_setting('transaction_read_only') as read_only,
      current_setting('synchronous_commit') as synchronous_commit,
      current_setting('default_transaction_isolation') as isolation`,
  );
  const [row] = rows;
  if (row === undefined) throw new Error("The settings of a session could not be read.");
  if (row.replica === "true") {
    throw new StartupError("replica", "The database is a replica; point DATABASE_URL at the primary.");
  }
  if (row.read_only === "on") {
    throw new StartupError("replica", "The database is read-only; set default_transaction_read_only to off.");
  }
  if (row.synchronous_commit === "off") {
    throw new StartupError("config", "synchronous_commit is off, so a crash loses grants; set it to on.");
  }
  if (row.isolation !== "read committed") {
    throw new StartupError(
      "config",
      `default_transaction_isolation is "${row.isolation}"; set it to "read committed", which every statement here assumes.`,
    );
  }
}

/**
 * Runs `work` in one transaction on one connection, and returns its value once COMMIT has been acknowledged.
 *
 * @throws what `work` threw, after a rollback. DatabaseUnavailableError when the connection was lost before COMMIT was
 * sent (nothing changed), DatabaseOutcomeUnknownError when it was lost afterwards. A plain Error when the database
 * answered COMMIT with ROLLBACK: `work` has swallowed the error of a statement.
 */
export async function inTransaction<T>(pool: pg.Pool, work: (client: pg.PoolClient) => Promise<T>): Promise<T> {
  const client = await pool.connect();
  let committing = false;
  try {
    await client.query(begins.get(pool) ?? "begin");
    const value = await work(client);
    committing = true;
    const { command } = await client.query("commit");
    if (command !== "COMMIT") {
      throw new Error(`COMMIT was answered with ${command}: a failed statement inside the transaction was ignored.`);
    }
    return value;
  } catch (error) {
    // A connection that cannot roll back is not idle, so that the release below destroys it.
    if (client.getTransactionStatus() !== "I") await client.query("rollback").catch(() => {});
    if (!committing && classifyDatabaseError(error) === "outcome_unknown") {
      throw new DatabaseUnavailableError("The transaction was lost before its commit; nothing changed.", {
        cause: error,
      });
    }
    throw error;
  } finally {
    client.release();
  }
}

export { classifyDatabaseError, type DatabaseErrorClass } from "./database-errors.ts";
