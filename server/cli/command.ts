import type { Command } from "commander";
import type { Connection } from "./connection.ts";
import type { Output } from "./output.ts";

/** What a command has to work with. */
export interface CommandContext {
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly connection: () => Connection;
  readonly output: () => Output;
  /** Everything that is written to standard input, without the last line end. */
  readonly input: () => Promise<string>;
  /** Resolves after that many milliseconds, or at once where the command is to end. */
  readonly wait: (ms: number) => Promise<void>;
  readonly ended: () => boolean;
  /** Aborted when the command is to end; undefined where it ends by itself. */
  readonly signal: AbortSignal | undefined;
  /** Writes to standard output as it is, and waits until that is taken. */
  readonly write: (text: string) => Promise<void>;
  /** Says beside the answer what belongs to it, on standard error. */
  readonly note: (text: string) => void;
  /** Says on a terminal how far it is; nothing elsewhere. */
  readonly progress: (text: string) => void;
}

/** Adds a group of commands. */
export type CommandGroup = (program: Command, context: CommandContext) => void;

const pageSize = 200;

/** How many rows a list shows. */
export interface ListFlags {
  readonly limit: number;
}

/** Every page of a list, up to a number of rows. `nextPageToken` is empty where there are no further ones. */
export async function listPages<Row>(
  limit: number,
  page: (request: { pageSize: number; pageToken: string }) => Promise<{ rows: readonly Row[]; nextPageToken: string }>,
): Promise<{ readonly rows: readonly Row[]; readonly nextPageToken: string }> {
  const rows: Row[] = [];
  let pageToken = "";
  do {
    const answer = await page({ pageSize: Math.min(pageSize, limit - rows.length), pageToken });
    rows.push(...answer.rows);
    pageToken = answer.nextPageToken;
  } while (pageToken !== "" && rows.length < limit);
  return { rows, nextPageToken: pageToken };
}

/** Says below a table that there is more. */
export function printMore(output: Output, nextPageToken: string, limit: number): void {
  if (nextPageToken !== "" && !output.json) output.line(`… there are more than ${limit}; give --limit.`);
}
