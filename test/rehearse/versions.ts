import { cp, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { readMigrations } from "../../server/store/migrate.ts";
import { makeFolder } from "../injection/wire.ts";

/** A later version of the schema: all migrations of this program and more. */
export interface Version {
  readonly name: string;
  readonly folder: string;
  close(): Promise<void>;
}

const expand = `alter table holdfast.authorizations add column note text;
alter table holdfast.authorizations add constraint authorizations_note_check check (length(note) < 100) not valid;
create table holdfast.notes (workspace_id text not null, note text not null, primary key (workspace_id, note));`;

const contract = `alter table holdfast.authorizations drop column note;
drop table holdfast.notes;`;

/** What takes away something that the servers that still run need. */
export const contractTooEarly = "alter table holdfast.counters rename column held_micros to held;";

async function version(name: string, more: readonly string[]): Promise<Version> {
  const folder = await makeFolder("versions");
  await cp(join(import.meta.dirname, "../../server/store/migrations"), folder, { recursive: true });
  const known = (await readMigrations()).length;
  for (const [index, sql] of more.entries()) {
    await writeFile(join(folder, `${`${known + index + 1}`.padStart(4, "0")}_rehearsed.sql`), sql);
  }
  return { name, folder, close: () => rm(folder, { recursive: true, force: true }) };
}

/** The next version adds what is nullable; the one after it takes it away again, when no server needs it any more. */
export async function nextVersions(first: string = expand): Promise<readonly [Version, Version]> {
  return [await version("next", [first]), await version("after", [first, contract])];
}
