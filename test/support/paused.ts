import type pg from "pg";

/** A connection whose transaction stays open between what it read and its COMMIT. */
export interface Paused {
  readonly client: pg.PoolClient;
  /** Waits until a promise is blocked by this transaction, and fails if it settles instead. */
  expectBlocking(waiting: Promise<unknown>): Promise<void>;
  /** Commits, and begins the next transaction. */
  commit(): Promise<void>;
  /** Rolls back what is open. A second time it does nothing. */
  release(): void;
}

export async function openPaused(pool: pg.Pool): Promise<Paused> {
  const client = await pool.connect();
  const { rows } = await client.query<{ pid: number }>("select pg_backend_pid() as pid");
  await client.query("begin");
  let released = false;
  return {
    client,
    expectBlocking: async (waiting) => {
      let settled = false;
      waiting.then(
        () => (settled = true),
        () => (settled = true),
      );
      for (;;) {
        const { rowCount } = await pool.query(
          "select from pg_stat_activity a where a.datname = current_database() and $1::integer = any (pg_blocking_pids(a.pid))",
          [rows[0]?.pid ?? 0],
        );
        if (settled) throw new Error("the other transaction did not wait for the paused one");
        if (rowCount !== 0) return;
      }
    },
    commit: async () => {
      await client.query("commit");
      await client.query("begin");
    },
    release: () => {
      if (released) return;
      released = true;
      // A connection that is released with an open transaction is destroyed.
      client.release();
    },
  };
}
