import { readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { StartupError } from "../startup-error.ts";

const sqliteBusy = 5;

/**
 * Takes the data folder for this process until the returned function is called or the process ends.
 *
 * The lock is the one that SQLite takes on a file: the kernel drops it with the process, kill -9 included, so nothing
 * has to guess whether a process number in a file still means the same process. Node has no other way to it.
 *
 * @throws StartupError with exit code 85 when another server has the folder.
 */
export function lockFolder(folder: string): () => void {
  const holderFile = join(folder, "server.pid");
  const database = new DatabaseSync(join(folder, "server.lock"), { timeout: 0 });
  try {
    database.exec("pragma journal_mode = memory; begin exclusive");
  } catch (cause) {
    database.close();
    if ((cause as { readonly errcode?: unknown }).errcode !== sqliteBusy) throw cause;
    throw new StartupError(
      "folderInUse",
      `Another server (process ${readHolder(holderFile)}) runs on ${folder}; stop it, or set HOLDFAST_DATA_FOLDER to another folder.`,
      cause,
    );
  }
  writeFileSync(holderFile, `${process.pid}\n`);
  return () => {
    rmSync(holderFile, { force: true });
    database.close();
  };
}

function readHolder(file: string): string {
  try {
    return readFileSync(file, "utf8").trim();
  } catch {
    return "unknown";
  }
}
