import { type Database, run, statement } from "./database.ts";

const passedStatement = statement(
  "has_passed",
  `select holdfast.clock() >= timestamptz 'epoch' + $1::bigint * interval '1 microsecond' as passed`,
);

/** Whether an instant, in microseconds since 1970, has been reached on the database clock. */
export async function hasPassed(database: Database, instant: bigint): Promise<boolean> {
  const [row] = await run<{ passed: boolean }>(database, passedStatement, [instant]);
  return row?.passed ?? false;
}
