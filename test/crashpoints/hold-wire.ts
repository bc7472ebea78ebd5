import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { connect, createServer, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { EmbeddedConnection } from "../../server/store/embedded-postgres.ts";

/**
 * Between a server and its database: keeps statements, or the answers to what was carried out, until told. What waits
 * for a lock through it does so for as long as a test needs, whatever limits the server asks for.
 */
export interface HoldWire {
  /** Of the wire instead of the database. */
  readonly connection: EmbeddedConnection;
  /** From now on these statements about these spends are kept, on that way. Statements are told by their names. */
  hold(on: "way there" | "way back", statements: readonly string[], marks: readonly string[]): void;
  /** Which marks were seen in what is kept. */
  seen(): ReadonlySet<string>;
  /** Lets go what is kept of these spends, or everything; keeps nothing more. Says how often each statement went. */
  release(marks?: readonly string[]): ReadonlyMap<string, number>;
  /** Ends every connection on which something is kept, and loses it. */
  cut(): void;
  close(): Promise<void>;
}

interface Kept {
  readonly statement: string;
  readonly marks: readonly string[];
  readonly inner: Socket;
  readonly go: () => void;
}

// The end of every answer: ReadyForQuery, outside of a transaction. An autocommitted statement is durable by then.
const readyForQuery = Buffer.from("Z\0\0\0\u0005I", "latin1");

export async function startHoldWire(database: EmbeddedConnection): Promise<HoldWire> {
  const folder = await mkdtemp(join(tmpdir(), "holdfast-hold-"));
  const sockets = new Set<Socket>();
  const kept = new Set<Kept>();
  const marksSeen = new Set<string>();
  let trap: { on: "way there" | "way back"; statements: readonly string[]; marks: readonly string[] } | undefined;
  const caught = (data: Buffer): { readonly statement: string; readonly marks: readonly string[] } | undefined => {
    const statement = trap?.statements.find((name) => data.includes(name));
    const marks = trap?.marks.filter((mark) => data.includes(mark)) ?? [];
    return statement === undefined || marks.length === 0 ? undefined : { statement, marks };
  };
  const server = createServer((inner) => {
    const outer = connect(join(database.host, `.s.PGSQL.${database.port}`));
    let keepsAnswer: ReturnType<typeof caught>;
    let behind: Buffer[] | undefined;
    let isFirst = true;
    inner.on("data", (chunk) => {
      const data = isFirst ? withPatience(chunk) : chunk;
      isFirst = false;
      if (behind !== undefined) return void behind.push(data);
      const found = caught(data);
      if (found === undefined || trap === undefined) return void outer.write(data);
      if (trap.on === "way there") {
        for (const mark of found.marks) marksSeen.add(mark);
        // What the server sends on the same connection comes after it.
        behind = [data];
        const go = (): void => {
          outer.write(Buffer.concat(behind ?? []));
          behind = undefined;
        };
        kept.add({ ...found, inner, go });
        return;
      }
      keepsAnswer = found;
      outer.write(data);
    });
    let answer: Buffer[] = [];
    outer.on("data", (data) => {
      if (keepsAnswer === undefined) return void inner.write(data);
      answer.push(data);
      if (!data.subarray(-readyForQuery.length).equals(readyForQuery)) return;
      for (const mark of keepsAnswer.marks) marksSeen.add(mark);
      const whole = Buffer.concat(answer);
      kept.add({ ...keepsAnswer, inner, go: () => inner.write(whole) });
      keepsAnswer = undefined;
      answer = [];
    });
    for (const socket of [inner, outer]) {
      sockets.add(socket);
      socket.on("error", () => undefined);
      socket.once("close", () => {
        sockets.delete(socket);
        (socket === inner ? outer : inner).destroy();
      });
    }
  });
  server.listen(join(folder, ".s.PGSQL.5432"));
  await once(server, "listening");
  return {
    connection: { ...database, host: folder, port: 5432 },
    hold(on, statements, marks) {
      trap = { on, statements, marks };
    },
    seen: () => marksSeen,
    release(marks) {
      if (marks === undefined) trap = undefined;
      const gone = new Map<string, number>();
      for (const one of kept) {
        if (marks !== undefined && !marks.some((mark) => one.marks.includes(mark))) continue;
        kept.delete(one);
        gone.set(one.statement, (gone.get(one.statement) ?? 0) + 1);
        one.go();
      }
      return gone;
    },
    cut() {
      trap = undefined;
      for (const { inner } of kept) inner.destroy();
      kept.clear();
    },
    async close() {
      server.close();
      for (const socket of sockets) socket.destroy();
      await once(server, "close");
      await rm(folder, { recursive: true, force: true });
    },
  };
}

/** The first message of a session, with the limits that it sets for statements and locks raised to ten minutes. */
function withPatience(startup: Buffer): Buffer {
  const text = startup.toString("latin1", 4);
  const patient = text.replace(/(lock_timeout|statement_timeout)\0\d+\0/g, "$1\x00600000\0");
  const whole = Buffer.alloc(4 + patient.length);
  whole.writeInt32BE(whole.length);
  whole.write(patient, 4, "latin1");
  return whole;
}
