/**
 * Exit codes of the server. Those below 79 follow sysexits.h; from 80 on each names one state of the database
 * that an operator has to settle before the server may grant anything.
 *
 * | code | name | meaning |
 * |---|---|---|
 * | 0 | ok | stopped as asked |
 * | 1 | bug | an unexpected error; the log has its cause |
 * | 64 | usage | an unknown command or flag |
 * | 68 | address | HOLDFAST_HOST and HOLDFAST_PORT cannot be listened on |
 * | 69 | databaseUnreachable | the database did not accept a connection; `health`: the server does not serve |
 * | 71 | embeddedPostgres | the embedded Postgres cannot run here |
 * | 73 | dataFolder | the data folder cannot be created or used |
 * | 75 | tryAgain | another session blocked a migration for too long; start again |
 * | 78 | config | a setting of the server or of the database is missing, malformed or unsafe |
 * | 80 | replica | the database is a replica or read-only |
 * | 81 | unknownSchema | the schema is newer than this program, incomplete or not ours |
 * | 82 | changedMigration | an applied migration differs from the file of the same number |
 * | 83 | alteredClock | holdfast.clock() was replaced |
 * | 84 | oldPostgres | Postgres is older than version 15 |
 * | 85 | folderInUse | another server runs on the same data folder |
 * | 86 | auditAhead | the audit log is ahead of the transaction counter of a cluster that it was loaded into |
 * | 87 | credentialKey | the server's key does not open a stored vendor credential |
 * | 88 | damagedCounters | the counters of caps were loaded in part or twice |
 */
export const exitCodes = {
  ok: 0,
  bug: 1,
  usage: 64,
  address: 68,
  databaseUnreachable: 69,
  embeddedPostgres: 71,
  dataFolder: 73,
  tryAgain: 75,
  config: 78,
  replica: 80,
  unknownSchema: 81,
  changedMigration: 82,
  alteredClock: 83,
  oldPostgres: 84,
  folderInUse: 85,
  auditAhead: 86,
  credentialKey: 87,
  damagedCounters: 88,
} as const;

export type StartupErrorCode = Exclude<keyof typeof exitCodes, "ok" | "bug">;

/** The server refuses to start. The message is for the operator: what is wrong, and what to do. */
export class StartupError extends Error {
  override readonly name = "StartupError";
  readonly code: StartupErrorCode;
  readonly exitCode: number;

  constructor(code: StartupErrorCode, message: string, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause });
    this.code = code;
    this.exitCode = exitCodes[code];
  }
}
