import { chmod, chown, cp, mkdir, mkdtemp, readdir, rename, rm, stat, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import pg from "pg";
import { startEmbeddedPostgres, type EmbeddedConnection } from "../../server/store/embedded-postgres.ts";

/** A primary and its streaming standby in folders of their own, behind one address that leads to either. */
export interface Replication {
  /** Leads to the primary until `leadTo` says otherwise, as a name in DNS would. */
  readonly address: EmbeddedConnection;
  readonly primary: EmbeddedConnection;
  readonly standby: EmbeddedConnection;
  /** From now on new connections to the address reach that one. */
  leadTo(connection: EmbeddedConnection): Promise<void>;
  /** Resolves when the standby has replayed what the primary has written. */
  caughtUp(): Promise<void>;
  /** The standby gets nothing any more, and the primary does not wait for it. */
  cut(): Promise<void>;
  stopPrimary(): Promise<void>;
  /** Makes the standby a primary of a new timeline. */
  promote(): Promise<void>;
  close(): Promise<void>;
}

/** One statement on a connection of its own; the rows. */
export async function ask(connection: EmbeddedConnection, text: string): Promise<Record<string, unknown>[]> {
  const client = new pg.Client(connection);
  client.on("error", () => {});
  await client.connect();
  try {
    return (await client.query<Record<string, unknown>>(text)).rows;
  } finally {
    await client.end();
  }
}

/** Nothing tells when a standby has done what it was asked for. */
async function until(connection: EmbeddedConnection, condition: string): Promise<void> {
  const deadline = performance.now() + 240_000;
  while ((await ask(connection, `select ${condition} as done`))[0]?.["done"] !== true) {
    if (performance.now() > deadline) throw new Error(`never came true: ${condition}`);
    await delay(20);
  }
}

/** `prepare` fills the primary before the standby is made of its files. */
export async function startReplication(
  prepare: (connection: EmbeddedConnection) => Promise<void> = () => Promise.resolve(),
): Promise<Replication> {
  const root = await mkdtemp(join(tmpdir(), "holdfast-standby-"));
  const closers: (() => Promise<unknown>)[] = [() => rm(root, { recursive: true, force: true })];
  const close = async (): Promise<void> => {
    for (const closer of closers.splice(0).toReversed()) await closer();
  };
  try {
    // Postgres runs as another user than root, and the standby looks for the socket of the primary.
    await chmod(root, 0o711);
    const folders = { primary: join(root, "primary"), standby: join(root, "standby"), front: join(root, "front") };
    for (const folder of Object.values(folders)) {
      await mkdir(folder);
      await chmod(folder, 0o711);
    }
    const settings = { wal_receiver_status_interval: "1s", wal_retrieve_retry_interval: "100ms" };
    const seed = await startEmbeddedPostgres({ dataFolder: folders.primary, settings });
    await prepare(seed.connection);
    await seed.close();
    await copyCluster(folders.primary, folders.standby);
    await writeFile(
      join(folders.standby, "postgres/postgresql.auto.conf"),
      `primary_conninfo = 'host=${join(folders.primary, "socket")} port=5432 user=holdfast application_name=standby'\n`,
    );
    await writeFile(join(folders.standby, "postgres/standby.signal"), "");
    const primary = await startEmbeddedPostgres({ dataFolder: folders.primary, settings });
    let primaryRuns = true;
    const stopPrimary = async (): Promise<void> => {
      if (primaryRuns) await primary.close();
      primaryRuns = false;
    };
    closers.push(stopPrimary);
    const standby = await startEmbeddedPostgres({ dataFolder: folders.standby, settings });
    closers.push(() => standby.close());
    const leadTo = async (connection: EmbeddedConnection): Promise<void> => {
      const name = join(folders.front, ".s.PGSQL.5432");
      await symlink(join(connection.host, ".s.PGSQL.5432"), `${name}.new`);
      await rename(`${name}.new`, name);
    };
    await leadTo(primary.connection);
    return {
      address: { ...primary.connection, host: folders.front },
      primary: primary.connection,
      standby: standby.connection,
      leadTo,
      async caughtUp() {
        const [written] = await ask(primary.connection, "select pg_current_wal_flush_lsn()::text as lsn");
        await until(standby.connection, `pg_last_wal_replay_lsn() >= '${String(written?.["lsn"])}'`);
      },
      async cut() {
        await ask(standby.connection, "alter system set primary_conninfo = ''");
        await ask(standby.connection, "select pg_reload_conf()");
        await until(standby.connection, "not exists (select from pg_stat_wal_receiver)");
        await until(primary.connection, "not exists (select from pg_stat_replication)");
      },
      stopPrimary,
      async promote() {
        await ask(standby.connection, "select pg_promote()");
        await until(standby.connection, "not pg_is_in_recovery()");
      },
      close,
    };
  } catch (error) {
    await close();
    throw error;
  }
}

/** The files of a stopped cluster, with their owner. */
export async function copyCluster(from: string, to: string): Promise<void> {
  await cp(join(from, "postgres"), join(to, "postgres"), { recursive: true, preserveTimestamps: true });
  await ownLike(join(from, "postgres"), join(to, "postgres"));
}

async function ownLike(model: string, folder: string): Promise<void> {
  const { uid, gid, mode } = await stat(model);
  await chmod(folder, mode & 0o777);
  await chown(folder, uid, gid);
  for (const entry of await readdir(folder, { recursive: true })) await chown(join(folder, entry), uid, gid);
}
