import { setTimeout as delay } from "node:timers/promises";
import type pg from "pg";
import type { AuditFilter } from "../../server/domain/audit.ts";
import { inTransaction } from "../../server/store/postgres.ts";

/** A filter that every event passes. */
export const everything: AuditFilter = {
  startTime: undefined,
  endTime: undefined,
  kind: undefined,
  actor: undefined,
  authorization: undefined,
  customerId: undefined,
  billingPeriod: undefined,
  purpose: undefined,
  vaultKeyId: undefined,
  disposition: undefined,
  traceId: undefined,
};

/**
 * Puts every event into one partition, which begins with the first transaction, and one without an end behind it: a copy of
 * an old template has others too.
 */
export async function startAudit(pool: pg.Pool): Promise<void> {
  await inTransaction(pool, async (client) => {
    await client.query("lock table holdfast.audit_events in access exclusive mode");
    await client.query("create temp table kept on commit drop as select * from holdfast.audit_events");
    const { rows } = await client.query<{ table: string }>(
      "select i.inhrelid::regclass::text as table from pg_inherits i where i.inhparent = 'holdfast.audit_events'::regclass",
    );
    for (const { table } of rows) await client.query(`drop table ${table}`);
    await client.query("delete from holdfast.audit_partitions");
    await client.query(
      `select holdfast.create_audit_partition('0', x.far, 1000000), holdfast.create_audit_partition(x.far, null, 1000000)
       from (select (pg_current_xact_id()::text::bigint + 1000000)::text::xid8 as far) x`,
    );
    await client.query("insert into holdfast.audit_events select * from kept");
  });
}

/**
 * Lets the partition that events go into end after so many more transactions of the cluster, which other tests share. The
 * one without an end follows it.
 */
export async function endAudit(pool: pg.Pool, transactions: number): Promise<void> {
  await inTransaction(pool, async (client) => {
    await client.query("lock table holdfast.audit_events in access exclusive mode");
    const { rows } = await client.query<{ from: string; table: string; width: bigint; later: boolean }>(
      `select p.from_xid::text as from, 'holdfast_audit.' || holdfast.audit_partition_name(p.from_xid) as table,
         p.width, p.from_xid > pg_current_xact_id() as later
       from holdfast.audit_partitions p where p.detach_time is null order by p.from_xid`,
    );
    const last = rows.at(-1);
    for (const { table, from } of rows.filter(({ later }) => later)) {
      await client.query(`drop table ${table}`);
      await client.query("delete from holdfast.audit_partitions where from_xid::text = $1", [from]);
    }
    const current = rows.findLast(({ later }) => !later);
    if (current === undefined || last === undefined) throw new Error("there is no partition for now");
    const { rows: ends } = await client.query<{ to: string }>(
      "select (pg_snapshot_xmax(pg_current_snapshot())::text::bigint + $1::bigint)::text as to",
      [transactions],
    );
    const to = ends[0]?.to ?? "";
    await client.query(`alter table holdfast.audit_events detach partition ${current.table}`);
    await client.query(
      `alter table holdfast.audit_events attach partition ${current.table} for values from ('${current.from}') to ('${to}')`,
    );
    await client.query("update holdfast.audit_partitions set to_xid = $1::text::xid8 where from_xid::text = $2", [
      to,
      current.from,
    ]);
    await client.query("select holdfast.create_audit_partition($1::text::xid8, null, $2)", [to, last.width]);
  });
}

/** Resolves once nothing can be added to what has ended: other tests hold transactions of the same cluster open. */
export async function whenOver(pool: pg.Pool): Promise<void> {
  for (;;) {
    const { rows } = await pool.query<{ over: boolean }>(
      `select not exists (
         select from holdfast.audit_partitions p
         where p.to_xid <= pg_snapshot_xmax(pg_current_snapshot()) and p.to_xid > pg_snapshot_xmin(pg_current_snapshot())
       ) as over`,
    );
    if (rows[0]?.over === true) return;
    await delay(20);
  }
}
