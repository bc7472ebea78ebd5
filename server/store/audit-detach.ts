import { setTimeout as delay } from "node:timers/promises";
import type pg from "pg";
import { StartupError } from "../startup-error.ts";
import { type AuditPartition, listAuditPartitions, measureAudit } from "./audit-partitions.ts";
import { run, statement } from "./database.ts";
import { sqlStateOf } from "./database-errors.ts";
import { refusalOf } from "./migrate.ts";
import { createPool } from "./postgres.ts";

const detachStatement = statement(
  "detach_audit",
  `select f.from_xid::text as from_xid, f.problem
   from holdfast.detach_audit($1::timestamptz, $2::integer * interval '1 day', $3::text) as f`,
);

/** Why the oldest partition stays: `holdfast.detach_audit` has the meaning of each. */
export type KeptBecause = "OPEN" | "UNMEASURED" | "NOT_BEFORE" | "KEPT" | "FOLDED";

export interface DetachOptions {
  /** Only what has no event at or after this instant, as ISO 8601 text with its zone. */
  readonly before: string;
  /** What is younger stays in any case. */
  readonly keepDays: number;
  /** Who asks for it, for the audit. 1–200 characters. */
  readonly by: string;
}

export interface Detached {
  readonly tables: readonly string[];
  /** Why the next one was not. */
  readonly keptBecause: KeptBecause;
}

/** How long one try to detach waits for transactions that may still read the partition, and how many there are. */
export interface Patience {
  readonly lockTimeoutMs: number;
  readonly tries: number;
  readonly pause: (ms: number) => Promise<unknown>;
}

const patience: Patience = { lockTimeoutMs: 2000, tries: 30, pause: (ms) => delay(ms) };

const measuredAtOnce = 65_536;

/** What an owner of the audit does with its partitions. */
export interface AuditKeeper {
  /** With exact figures of everything that is over. */
  list(): Promise<readonly AuditPartition[]>;
  /**
   * Detaches, the oldest first, what is over, old enough and before an instant, and tells every workspace of each. Writers
   * and readers never wait for it longer than one try takes; it waits for them. What was begun before is finished first.
   *
   * @throws StartupError 75 when a transaction stayed open for longer than all tries: the next call finishes what was begun.
   */
  detach(options: DetachOptions): Promise<Detached>;
  /** For an operator's own shell and session: how to keep what is detached, how to have it back, how to be rid of it. */
  afterwards(part: AuditPartition): readonly string[];
  close(): Promise<void>;
}

/** As the owner of the audit, on a connection of its own: detaching is no part of a transaction, nor for a pooler of them. */
export function openAuditKeeper(connection: pg.ClientConfig, options: Partial<Patience> = {}): AuditKeeper {
  const settings = { ...patience, ...options };
  const pool = createPool({
    connection,
    max: 1,
    statementTimeoutMs: 0,
    lockTimeoutMs: settings.lockTimeoutMs,
    answerTimeoutMs: 0,
    applicationName: "holdfast-audit",
  });
  const list = async (): Promise<readonly AuditPartition[]> => {
    while (await measureAudit(pool, measuredAtOnce));
    return await listAuditPartitions(pool);
  };
  return {
    list: () => translated(list),
    detach: (asked) =>
      translated(async () => {
        await list();
        const tables: string[] = [...(await finish(pool, settings))];
        for (;;) {
          const values = [asked.before, asked.keepDays, asked.by];
          const [row] = await run<{ from_xid: string; problem: KeptBecause | null }>(pool, detachStatement, values);
          if (row === undefined) throw new Error("detach_audit returned no row");
          if (row.problem !== null) return { tables, keptBecause: row.problem };
          tables.push(...(await finish(pool, settings)));
        }
      }),
    afterwards: ({ table, fromXid, toXid = "" }) => [
      `pg_dump --table=${table} "$DATABASE_URL" > ${table.replace("holdfast_audit.", "")}.sql`,
      `alter table holdfast.audit_events attach partition ${table} for values from ('${fromXid}') to ('${toXid}');`,
      `update holdfast.audit_partitions set detach_time = null, detached_by = null where from_xid = '${fromXid}';`,
      `drop table ${table};`,
    ],
    close: () => pool.end(),
  };
}

async function translated<T>(work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    if (sqlStateOf(error) !== "55P03") throw refusalOf(error);
    throw new StartupError(
      "tryAgain",
      "A transaction has read the audit for too long; end it, then repeat this: it goes on where it was.",
      error,
    );
  }
}

/** Not in time, or done or begun by somebody else at the same moment: a look at what is left to do says which. */
const passing: ReadonlySet<string | undefined> = new Set(["55P03", "40P01", "42P01", "55000"]);

/** Carries out what was said to be detached, and returns the tables. */
async function finish(pool: pg.Pool, { tries, pause }: Patience): Promise<readonly string[]> {
  const tables: string[] = [];
  for (let failures = 0; ; ) {
    const open = (await listAuditPartitions(pool)).find((one) => one.detachTime !== undefined && one.isAttached);
    if (open === undefined) return tables;
    try {
      // Begun and interrupted, it is out of sight already; only its end is missing.
      const how = open.isPending ? "finalize" : "concurrently";
      await pool.query(
        `/* detach_partition */ alter table holdfast.audit_events detach partition ${open.table} ${how}`,
      );
      tables.push(open.table);
    } catch (error) {
      failures += 1;
      if (!passing.has(sqlStateOf(error)) || failures >= tries) throw error;
      await pause(Math.min(100 * 2 ** failures, 2000));
    }
  }
}
