import pg from "pg";

const oid = { int8: 20, int8Array: 1016, numeric: 1700, timestamptz: 1184 } as const;

function readInt8Array(text: string): (bigint | null)[] {
  if (!text.startsWith("{") || text.startsWith("{{")) throw new Error("Only one-dimensional int8[] is read.");
  if (text === "{}") return [];
  return text
    .slice(1, -1)
    .split(",")
    .map((item) => (item === "NULL" ? null : BigInt(item)));
}

/** Every numeric of the schema is a whole number of micros: a sum that 64 bits cannot carry. */
function readNumeric(text: string): bigint {
  return BigInt(text);
}

const timestampPattern = /^(\d{4,6}-\d\d-\d\d) (\d\d:\d\d:\d\d)(\.\d{1,6})?([+-])(\d\d)(?::(\d\d))?(?::(\d\d))?$/;

/**
 * A timestamptz as `2026-11-30T23:59:59.123456Z`: always UTC and six decimals, whatever the session's time zone,
 * so that texts of equal instants are equal. A JavaScript Date would lose the microseconds. `infinity` and years
 * before Christ stay as Postgres prints them.
 */
export function readTimestamp(text: string): string {
  const parts = timestampPattern.exec(text);
  if (parts === null) return text;
  const [, date, time, fraction = "", sign, hours = "0", minutes = "0", seconds = "0"] = parts;
  const offset = (Number(hours) * 3600 + Number(minutes) * 60 + Number(seconds)) * (sign === "-" ? -1 : 1);
  const utc = new Date(Date.parse(`${date}T${time}Z`) - offset * 1000);
  return `${utc.toISOString().slice(0, -5)}.${fraction.slice(1).padEnd(6, "0")}Z`;
}

/** int8, int8[] and numeric as bigint, timestamptz as text. Belongs to one pool: the parsers of `pg.types` are global. */
export const columnValues: pg.CustomTypesConfig = {
  // The declared type is a set of overloads by format and oid; the parsers here are for the text format only.
  getTypeParser: ((id: number, format?: "text" | "binary") => {
    if (format !== "binary") {
      if (id === oid.int8) return BigInt;
      if (id === oid.int8Array) return readInt8Array;
      if (id === oid.numeric) return readNumeric;
      if (id === oid.timestamptz) return readTimestamp;
    }
    return pg.types.getTypeParser(id, format ?? "text");
  }) as typeof pg.types.getTypeParser,
};
