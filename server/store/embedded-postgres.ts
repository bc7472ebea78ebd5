import { createHash } from "node:crypto";
import { closeSync, constants, existsSync, openSync, readFileSync, statSync } from "node:fs";
import { chown, mkdir, mkdtemp, readdir, rename, rm, symlink } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import pg from "pg";
import { StartupError } from "../startup-error.ts";
import { prepareBinaries, type RunAs } from "./embedded-binaries.ts";
import { stopCluster } from "./embedded-processes.ts";
import {
  type ClusterFolders,
  initCluster,
  type Postmaster,
  readPostmasterPid,
  superviseCluster,
} from "./embedded-postmaster.ts";
import { lockFolder } from "./folder-lock.ts";

export interface EmbeddedPostgresOptions {
  /** Made when missing. Holds `postgres/` (the cluster), `socket/`, `postgres.log` and the lock of the server. */
  readonly dataFolder: string;
  readonly log?: (message: string) => void;
  /** More settings of Postgres, for example `{ max_connections: "50" }`. */
  readonly settings?: Readonly<Record<string, string>>;
  /** False only for tests: a power failure then loses the cluster. */
  readonly fsync?: boolean;
  /** Where to keep the executables; by default a cache of this machine. */
  readonly cacheFolder?: string;
}

export interface EmbeddedConnection {
  /** The folder of the Unix socket. Postgres does not listen on any network address. */
  readonly host: string;
  readonly port: number;
  readonly user: string;
  readonly database: string;
  readonly ssl: false;
}

export interface EmbeddedPostgres {
  readonly connection: EmbeddedConnection;
  /** Of the postmaster; changes when it had to be started again. */
  readonly pid: number;
  /** Stops Postgres with a checkpoint and gives the folder free. Connections should be closed before. */
  close(): Promise<void>;
}

const socketName = ".s.PGSQL.5432";
const longestSocketPath = 107;
const nobody: RunAs = { uid: 65_534, gid: 65_534 };

/**
 * Runs a real Postgres on a local folder, and starts it again when it dies.
 *
 * As root it runs as the owner of an existing cluster, else as nobody. Everything stays in the given folder also
 * when that lies below a folder that this user may not enter, such as the home of root: the folders are opened here
 * and handed down, and Postgres reaches them as `/proc/self/fd/<n>`. Other processes of nobody cannot.
 *
 * A Postgres that an earlier, killed server left behind is stopped rather than adopted: it may run with other
 * settings or from another version, and stopping it also ends the statements of the server that is gone.
 *
 * @throws StartupError: 85 another server has the folder, 73 the folder cannot be used, 71 Postgres cannot run here.
 */
export async function startEmbeddedPostgres(options: EmbeddedPostgresOptions): Promise<EmbeddedPostgres> {
  const { dataFolder } = options;
  refuseUnsupportedPlatform();
  await useFolder(dataFolder, () => mkdir(dataFolder, { recursive: true, mode: 0o700 }));
  const undo: (() => unknown)[] = [];
  try {
    undo.push(await useFolder(dataFolder, () => lockFolder(dataFolder)));
    const folders = await openFolders(options, undo);
    const postmaster = await startCluster(folders, options);
    undo.push(() => postmaster.stop());
    const connection: EmbeddedConnection = {
      host: await reachableSocketFolder(join(dataFolder, "socket"), undo),
      port: 5432,
      user: "holdfast",
      database: "holdfast",
      ssl: false,
    };
    await createDatabase(connection);
    return {
      connection,
      get pid() {
        return postmaster.pid;
      },
      close: () => undoAll(undo),
    };
  } catch (error) {
    await undoAll(undo);
    throw error;
  }
}

async function undoAll(undo: (() => unknown)[]): Promise<void> {
  // The latest first: the lock is given free only after Postgres has stopped.
  for (let step = undo.pop(); step !== undefined; step = undo.pop()) await step();
}

function refuseUnsupportedPlatform(): void {
  if (process.platform === "linux" && existsSync("/proc/self/fd")) return;
  throw new StartupError("embeddedPostgres", "The embedded Postgres needs Linux with /proc; set DATABASE_URL instead.");
}

async function useFolder<T>(folder: string, use: () => T | Promise<T>): Promise<T> {
  try {
    return await use();
  } catch (cause) {
    if (cause instanceof StartupError) throw cause;
    const reason = cause instanceof Error ? cause.message : String(cause);
    throw new StartupError(
      "dataFolder",
      `The data folder ${folder} cannot be used (${reason}); make it writable, or set HOLDFAST_DATA_FOLDER.`,
      cause,
    );
  }
}

async function openFolders(options: EmbeddedPostgresOptions, undo: (() => unknown)[]): Promise<ClusterFolders> {
  const { dataFolder } = options;
  const data = join(dataFolder, "postgres");
  const runAs = chooseUser(data);
  const binaries = await prepareBinaries(runAs, options.cacheFolder);
  return await useFolder(dataFolder, async () => {
    const open = (folder: string): number => {
      const fd = openSync(folder, constants.O_RDONLY | constants.O_DIRECTORY);
      undo.push(() => {
        closeSync(fd);
      });
      return fd;
    };
    const logFile = join(dataFolder, "postgres.log");
    const socket = join(dataFolder, "socket");
    await rm(socket, { recursive: true, force: true });
    await makeFolder(socket, runAs);
    for (const name of await readdir(dataFolder)) {
      if (name.startsWith("postgres.init")) await rm(join(dataFolder, name), { recursive: true, force: true });
    }
    if (!existsSync(data)) {
      options.log?.(`Creating a database in ${dataFolder}.`);
      const side = join(dataFolder, "postgres.init");
      await makeFolder(side, runAs);
      const dataFd = open(side);
      await initCluster(
        { binaries, runAs, data: side, dataFd, socketFd: open(socket), logFile },
        options.fsync !== false,
      );
      // A half-made cluster never gets the real name.
      await rename(side, data);
    }
    refuseOtherVersion(data, binaries.version);
    return { binaries, runAs, data, dataFd: open(data), socketFd: open(socket), logFile };
  });
}

/** The files of a cluster can be read by one major version only. */
function refuseOtherVersion(data: string, version: string): void {
  const found = readFileSync(join(data, "PG_VERSION"), "utf8").trim();
  const [major] = version.split(".");
  if (found === major) return;
  throw new StartupError(
    "dataFolder",
    `${data} was written by Postgres ${found}, and this is Postgres ${major}; dump and restore it, or set HOLDFAST_DATA_FOLDER.`,
  );
}

function chooseUser(data: string): RunAs {
  const uid = process.getuid?.() ?? nobody.uid;
  if (uid !== 0) return { uid, gid: process.getgid?.() ?? uid };
  const owner = statSync(data, { throwIfNoEntry: false });
  return owner === undefined || owner.uid === 0 ? nobody : { uid: owner.uid, gid: owner.gid };
}

async function makeFolder(folder: string, owner: RunAs): Promise<void> {
  await mkdir(folder, { mode: 0o700 });
  if (owner.uid !== process.getuid?.()) await chown(folder, owner.uid, owner.gid);
}

async function startCluster(folders: ClusterFolders, options: EmbeddedPostgresOptions): Promise<Postmaster> {
  const { dev, ino } = statSync(folders.data);
  const clusterName = `holdfast-${createHash("sha256").update(`${dev}:${ino}`).digest("hex").slice(0, 16)}`;
  const stopped = await stopCluster(clusterName, folders.runAs.uid, readPostmasterPid(folders.data)?.pid);
  if (stopped > 0) options.log?.("Stopped the Postgres of an earlier server.");
  return await superviseCluster({
    folders,
    clusterName,
    settings: {
      listen_addresses: "",
      unix_socket_permissions: "0600",
      timezone: "UTC",
      log_timezone: "UTC",
      ...options.settings,
      ...(options.fsync === false ? { fsync: "off", full_page_writes: "off" } : { fsync: "on" }),
    },
    log: options.log ?? (() => {}),
  });
}

/** The socket folder under a name that leaves room for the socket: the kernel takes 107 bytes at most. */
async function reachableSocketFolder(socket: string, undo: (() => unknown)[]): Promise<string> {
  const fits = (folder: string) => Buffer.byteLength(join(folder, socketName)) <= longestSocketPath;
  if (fits(socket)) return socket;
  // mkdtemp makes a name that nobody else can have taken before.
  const parent = fits(join(tmpdir(), "holdfast-000000", "s")) ? tmpdir() : "/tmp";
  const short = await mkdtemp(join(parent, "holdfast-"));
  undo.push(() => rm(short, { recursive: true, force: true }));
  await symlink(socket, join(short, "s"));
  return join(short, "s");
}

async function createDatabase(connection: EmbeddedConnection): Promise<void> {
  const client = new pg.Client({ ...connection, database: "postgres" });
  client.on("error", () => {});
  await client.connect();
  try {
    const { rowCount } = await client.query("/* database_find */ select 1 from pg_database where datname = 'holdfast'");
    if (rowCount === 0) await client.query("create database holdfast");
  } finally {
    await client.end();
  }
}
