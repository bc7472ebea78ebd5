import type pg from "pg";

/** What spends draw on. `small` has room for ten only, and shows that a contender refuses what does not fit. */
export type Load = "hot" | "many" | "three" | "small";

/** How many caps there are of `many`. Every spend draws on one of them. */
export const manyCaps = 1_000;
/** How many caps every spend of `three` draws on. */
export const threeCaps = 3;
/** How many spends fit into the cap of `small`. */
export const smallRoom = 10;
/** What one spend takes, in millionths. */
export const amountMicros = 1_000_000;
/** The limit of every cap but that of `small`, in millionths. */
export const limitMicros = 1_000_000_000_000_000;

/** One way to permit spends durably under caps. */
export interface Contender {
  /**
   * Asks for one spend that was never asked for before. True if it was granted, for ever and before the answer. Only the
   * engine knows deadlines.
   */
  attempt(load: Load, patience?: Patience): Promise<boolean>;
  /** How many grants the figures of the caps show. Rejects if they do not agree with what else was written. */
  counted(load: Load): Promise<number>;
  /** Tries what it can be set to, `calls` each, and keeps the best. Returns what that was. */
  tune?(load: Load, callers: number, calls: number): Promise<Tuned>;
  /** Closes its connections and opens new ones, so that the database has counted all that they did. */
  reopen(): Promise<void>;
  /** Commands that were sent and answered since the start, where they are no statements of Postgres. */
  roundTrips?(): number;
  /** Of what it talks to, where that is not Postgres: milliseconds. */
  serverCpuMs?(): number | undefined;
  close(): Promise<void>;
}

/** Until when somebody waits. */
export interface Patience {
  readonly signal: AbortSignal;
  /** On the clock of `performance`. */
  readonly deadlineAt: number;
}

export interface Tuned {
  readonly text: string;
  /** How many of the tries were granted. */
  readonly granted: number;
}

/** What a contender is opened with. */
export interface Surroundings {
  /** An empty database of its own. */
  readonly connection: pg.ClientConfig;
  /** A folder on the same disk. */
  readonly folder: string;
  /** The checkout whose engine it is. */
  readonly root: string;
  /** False where another process has made the schema and the caps. */
  readonly isFirst: boolean;
}

let attempts = 0;

/** A number that no other spend of this process has. */
export function nextAttempt(): number {
  attempts += 1;
  return attempts;
}

/** One of a thousand customers. */
export function someCustomer(): string {
  return `cust${Math.floor(Math.random() * manyCaps)}`;
}
