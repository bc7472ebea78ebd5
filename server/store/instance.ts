import type pg from "pg";
import { StartupError } from "../startup-error.ts";
import { type Database, run, statement } from "./database.ts";
import { sqlStateOf } from "./database-errors.ts";
import { refusalOf } from "./migrate.ts";
import { createPool, inTransaction } from "./postgres.ts";
import { announcePolicyChange, listWorkspaces } from "./workspace.ts";

/**
 * In what way a database is not the one that was granted from before.
 * - `MISSING`: it does not say which one it is, and it has been granted from.
 * - `TIMELINE`: a replica that was promoted, or a backup that was restored.
 * - `OTHER_CLUSTER`, `OTHER_DATABASE`: a copy, for example a dump that was loaded.
 * - `LOG_WENT_BACK`: an older state of the same files, which only a server that ran before can notice.
 */
export type InstanceProblem = "MISSING" | "TIMELINE" | "OTHER_CLUSTER" | "OTHER_DATABASE" | "LOG_WENT_BACK";

const registerStatement = statement("register_instance", "select holdfast.register_instance()");

const readStatement = statement(
  "read_instance",
  `select i.instance_id, i.recovery_count, f.problem, holdfast.current_timeline() as timeline,
     (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint as flushed
   from holdfast.instance_problem() as f (problem) left join holdfast.instance i on true`,
);

const suspectStatement = statement(
  "suspect_instance",
  "update holdfast.instance i set suspicion = $1::text where i.recovery_count <= $2::integer and i.suspicion is null",
);

const recoverStatement = statement(
  "recover",
  `select f.problem, f.recovered, f.workspaces, f.leases, f.held, f.open, f.in_doubt,
     f.oldest_grant_time, f.newest_grant_time
   from holdfast.recover($1::boolean) as f`,
);

interface InstanceRow {
  readonly instance_id: string | null;
  readonly recovery_count: number | null;
  readonly problem: InstanceProblem | null;
  readonly timeline: number;
  /** Bytes of log that will still be there after a crash. */
  readonly flushed: bigint;
}

/** A grant asks for the row and the timeline only; these are written into the row for it. */
const unseenByGrants: ReadonlySet<InstanceProblem> = new Set(["LOG_WENT_BACK", "OTHER_CLUSTER", "OTHER_DATABASE"]);

export interface InstanceWatch {
  /**
   * Writes down which database this is, if nothing was ever granted from it, and looks at it from now on.
   *
   * @throws StartupError 78 where the role may not ask Postgres which cluster it is.
   */
  start(pool: pg.Pool): Promise<void>;
  /**
   * Looks at a connection before anything is granted on it, says what is wrong, and writes down what the statement of a
   * grant does not see by itself.
   *
   * @throws StartupError 78 if it leads to another database of Holdfast than the one that the server was started on.
   */
  look(database: Database): Promise<void>;
}

/** `onProblem` is told of each problem once, until it is over: then of undefined. */
export function createInstanceWatch(onProblem: (problem: InstanceProblem | undefined) => void): InstanceWatch {
  let known: InstanceRow | undefined;
  let told: InstanceProblem | undefined;
  const tell = (problem: InstanceProblem | undefined): void => {
    if (problem !== told) onProblem(problem);
    told = problem;
  };
  const look = async (database: Database): Promise<void> => {
    const before = known;
    if (before === undefined) return;
    const [found] = await run<InstanceRow>(database, readStatement, []);
    if (found === undefined) throw new Error("read_instance returned no row");
    if (before.instance_id !== null && found.instance_id !== null && found.instance_id !== before.instance_id) {
      throw new StartupError(
        "config",
        "The database is not the one that this server was started on; point DATABASE_URL at that one, or start again.",
      );
    }
    // Compared with what was known when the question was sent: answers may arrive in another order.
    const back = found.problem === null && wentBack(before, found);
    if (back || known === undefined || !wentBack(known, found)) known = found;
    const problem = back ? "LOG_WENT_BACK" : (found.problem ?? undefined);
    if (problem !== undefined && unseenByGrants.has(problem)) {
      await run(database, suspectStatement, [problem, found.recovery_count]);
    }
    tell(problem);
  };
  return {
    async start(pool) {
      try {
        await run(pool, registerStatement, []);
        [known] = await run<InstanceRow>(pool, readStatement, []);
        await look(pool);
      } catch (error) {
        throw sqlStateOf(error) === "42501" ? notAllowed(error) : refusalOf(error);
      }
    },
    look,
  };
}

/**
 * Flushed log survives every crash, so less of it on one timeline is an older copy of the files. What was lost since the
 * last look does not show.
 */
function wentBack(before: InstanceRow, found: InstanceRow): boolean {
  if (before.recovery_count === null || found.recovery_count === null) return false;
  if (found.recovery_count !== before.recovery_count) return found.recovery_count < before.recovery_count;
  return found.timeline === before.timeline && found.flushed < before.flushed;
}

function notAllowed(cause: unknown): StartupError {
  return new StartupError(
    "config",
    "The role may not ask which database this is; grant it execute on pg_control_system, pg_current_wal_lsn, " +
      "pg_current_wal_flush_lsn and pg_walfile_name.",
    cause,
  );
}

/** What is wrong with the database as it stands, without changing it; undefined where nothing is. */
export async function readInstanceProblem(database: Database): Promise<InstanceProblem | undefined> {
  const [found] = await run<InstanceRow>(database, readStatement, []).catch((error: unknown) => {
    throw sqlStateOf(error) === "42501" ? notAllowed(error) : refusalOf(error);
  });
  return found?.problem ?? undefined;
}

export interface Recovery {
  /** Undefined where nothing was wrong. */
  readonly problem: InstanceProblem | undefined;
  /** False where nothing was wrong and it was not forced: nothing was changed. */
  readonly recovered: boolean;
  readonly workspaces: bigint;
  /** How many billing leases were running. */
  readonly leases: bigint;
  /** How many authorizations were held, how many were open in all, and how many of those are changed. */
  readonly held: bigint;
  readonly open: bigint;
  readonly inDoubt: bigint;
  /** ISO 8601, of the open ones; undefined without any. */
  readonly oldestGrantTime: string | undefined;
  /** ISO 8601: what was granted after it is not in this database. */
  readonly newestGrantTime: string | undefined;
}

interface RecoveryRow extends Omit<Recovery, "problem" | "inDoubt" | "oldestGrantTime" | "newestGrantTime"> {
  readonly problem: InstanceProblem | null;
  readonly in_doubt: bigint;
  readonly oldest_grant_time: string | null;
  readonly newest_grant_time: string | null;
}

/**
 * Takes a restored, promoted or copied database into use, in one transaction: what `holdfast.recover` says. Idempotent.
 * `force` is for what the database cannot show by itself, such as a snapshot of its files that was put back.
 *
 * @throws StartupError: 80 on a replica, 69 unreachable, 81 not migrated, 86 where the audit log could not go on,
 *   88 where the counters of its caps were loaded in part or twice.
 */
export async function recover(connection: pg.ClientConfig, options: { readonly force: boolean }): Promise<Recovery> {
  const pool = createPool({
    connection,
    max: 1,
    preparedStatements: false,
    statementTimeoutMs: 0,
    lockTimeoutMs: 60_000,
    idleInTransactionTimeoutMs: 0,
    answerTimeoutMs: 0,
    applicationName: "holdfast-recover",
  });
  try {
    // Where grants still run they make room for it.
    for (const workspace of options.force ? await listWorkspaces(pool) : [])
      await announcePolicyChange(pool, workspace);
    const [row] = await inTransaction(pool, (client) => run<RecoveryRow>(client, recoverStatement, [options.force]));
    if (row === undefined) throw new Error("recover returned no row");
    const { problem, in_doubt, oldest_grant_time, newest_grant_time, ...counts } = row;
    return {
      ...counts,
      problem: problem ?? undefined,
      inDoubt: in_doubt,
      oldestGrantTime: oldest_grant_time ?? undefined,
      newestGrantTime: newest_grant_time ?? undefined,
    };
  } catch (error) {
    const state = sqlStateOf(error);
    if (state === "HF002") throw auditAhead(error);
    if (state === "HF004") throw damagedCounters(error);
    if (state === "42P01" || state === "42883" || state === "3F000") {
      throw new StartupError(
        "unknownSchema",
        'The database lacks the schema of this program; run "holdfast migrate" first.',
      );
    }
    throw refusalOf(error);
  } finally {
    await pool.end();
  }
}

/** Audit positions are transaction numbers. Below the old ones new events would be overlooked, and could collide. */
function auditAhead(cause: unknown): StartupError {
  return new StartupError(
    "auditAhead",
    "The audit log was written by a cluster with higher transaction numbers than this one has; restore the files of the " +
      "old cluster instead of a dump, or stop Postgres and raise them with pg_resetwal --epoch and --next-transaction-id.",
    cause,
  );
}

/** What is missing or there twice would let a cap be exceeded, and nothing tells which row is right. */
function damagedCounters(cause: unknown): StartupError {
  return new StartupError(
    "damagedCounters",
    `The figures of a cap are not there exactly once: ${(cause as Error).message}. A dump was loaded in part or twice, or ` +
      "rows were changed by hand; restore the whole database again.",
    cause,
  );
}
