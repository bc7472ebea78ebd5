import type pg from "pg";
import { type Child, startChild } from "../child.ts";
import { median } from "../statistics.ts";
import type { Cluster, Spent } from "./cluster.ts";
import { type Load, smallRoom, type Tuned } from "./contender.ts";
import type { Drive, Driven } from "./drive.ts";

/** A contender in a process of its own, and how many grants it has given so far. */
export interface Place {
  readonly name: string;
  readonly child: Child;
  readonly connection: pg.ClientConfig;
  readonly granted: Map<Load, number>;
}

/** A load on some contenders, who take turns. */
export interface Course {
  readonly name: string;
  readonly load: Load;
  readonly callers: number;
  /** How many calls each contender makes per round. */
  readonly calls: Readonly<Record<string, number>>;
}

/** What the rounds of one contender in one course have given, a round each. */
export interface Figures {
  readonly rates: number[];
  /** Milliseconds of every call of all rounds. */
  readonly times: number[];
}

export type Measured = ReadonlyMap<string, ReadonlyMap<string, Figures>>;

export interface Started {
  readonly cluster: Cluster;
  readonly folder: string;
  readonly root: string;
  readonly profileFolder?: string | undefined;
}

let databases = 0;

/** Starts a contender on an empty database of its own. */
export async function startPlace(name: string, kind: string, started: Started): Promise<Place> {
  databases += 1;
  const connection = await started.cluster.createDatabase(`bench_${databases}`);
  return startOn(name, kind, { ...started, connection, isFirst: true });
}

/** Starts a contender on a database that exists. */
export async function startOn(
  name: string,
  kind: string,
  { folder, root, profileFolder, connection, isFirst }: Started & { connection: pg.ClientConfig; isFirst: boolean },
): Promise<Place> {
  const file = new URL("./contender-process.ts", import.meta.url);
  const given = { kind, connection: JSON.stringify(connection), folder, root, isFirst: String(isFirst) };
  const child = await startChild(file, given, profileFolder);
  return { name, child, connection, granted: new Map() };
}

/** Has a contender make calls, and writes down what it granted. */
export async function driveAt(place: Place, { load, callers, calls }: Drive): Promise<Driven> {
  const driven = await place.child.ask<Driven>("drive", { load, callers, calls });
  note(place, load, driven.granted);
  if (driven.granted !== calls && load !== "small") {
    throw new Error(`${place.name} has granted ${driven.granted} of ${calls} spends that all fit`);
  }
  return driven;
}

export async function tuneAt(place: Place, asked: Drive): Promise<string | undefined> {
  const tuned = await place.child.ask<Tuned | undefined>("tune", asked);
  note(place, asked.load, tuned?.granted ?? 0);
  return tuned?.text;
}

function note(place: Place, load: Load, granted: number): void {
  place.granted.set(load, (place.granted.get(load) ?? 0) + granted);
}

/** Rounds in which every contender of every course has its turn, nobody always the first one. */
export async function measure(
  places: readonly Place[],
  courses: readonly Course[],
  rounds: number,
  progress: (text: string) => void,
): Promise<Measured> {
  const measured = new Map(courses.map(({ name }) => [name, new Map<string, Figures>()]));
  for (let round = 0; round < rounds; round += 1) {
    progress(`round ${round + 1} of ${rounds}`);
    for (const course of courses) {
      const asked = places.filter(({ name }) => course.calls[name] !== undefined);
      const at = round % asked.length;
      for (const place of [...asked.slice(at), ...asked.slice(0, at)]) {
        const driven = await driveAt(place, { ...course, calls: course.calls[place.name] ?? 0 });
        const of = measured.get(course.name);
        const figures = of?.get(place.name) ?? { rates: [], times: [] };
        figures.rates.push(driven.rate);
        figures.times.push(...driven.times);
        of?.set(place.name, figures);
      }
    }
  }
  return measured;
}

export function figuresOf(measured: Measured, course: string, place: string): Figures {
  const figures = measured.get(course)?.get(place);
  if (figures === undefined) throw new Error(`${place} has not run ${course}`);
  return figures;
}

/** Grants per second, the median of the rounds. */
export function rateOf(measured: Measured, course: string, place: string): number {
  return median(figuresOf(measured, course, place).rates);
}

/**
 * Rejects if a contender cheats: the figures of its caps are not its grants, or a cap with room for ten has granted
 * another number to many callers at once.
 */
export async function verify(places: readonly Place[], loads: readonly Load[]): Promise<void> {
  for (const place of places) {
    for (const load of loads.filter((one) => place.granted.has(one))) {
      const counted = await place.child.ask<number>("counted", load);
      const granted = place.granted.get(load);
      if (counted !== granted) throw new Error(`${place.name} has granted ${granted} of ${load} and counts ${counted}`);
      if (load === "small" && granted !== smallRoom) throw new Error(`${place.name} has granted ${granted}, not ten`);
    }
  }
}

/** What one grant costs. Undefined is what this machine does not tell. */
export interface Cost {
  readonly walBytes: number;
  readonly walSyncs: number;
  readonly roundTrips: number;
  readonly nodeMs: number;
  readonly serverMs: number | undefined;
}

/** Counts, apart from the rounds, what a contender's calls cost; its sessions end before, so that all is counted. */
export async function costOf(place: Place, cluster: Cluster, asked: Drive): Promise<Cost> {
  await place.child.ask("reopen");
  const before = await cluster.spent(place.connection);
  const { cpuMs, serverCpuMs, roundTrips } = await driveAt(place, asked);
  await place.child.ask("reopen");
  const after = await cluster.spent(place.connection);
  const per = (name: keyof Spent): number => ((after[name] ?? 0) - (before[name] ?? 0)) / asked.calls;
  const postgresMs = before.cpuMs === undefined ? undefined : per("cpuMs");
  return {
    walBytes: per("walBytes"),
    walSyncs: per("walSyncs"),
    roundTrips: roundTrips / asked.calls,
    nodeMs: cpuMs / asked.calls,
    serverMs: serverCpuMs === undefined ? postgresMs : serverCpuMs / asked.calls,
  };
}
