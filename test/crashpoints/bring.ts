import { setTimeout as delay } from "node:timers/promises";
import { stableKey } from "@holdfast/sdk";
import type { PoolClient } from "pg";
import { billingPeriod, purpose } from "../crash/billing-call.ts";
import { createBillingClient } from "../crash/billing-client.ts";
import type { LineProcess } from "../crash/line-process.ts";
import { comeToPoints } from "./heal.ts";
import { within } from "./reach.ts";
import { batched, statements } from "./server-cell.ts";
import type { StruckServer } from "./struck-server.ts";
import { createSubject, type Subject } from "./subject.ts";
import { type CrashWorld, minute } from "./world.ts";

interface Bring {
  readonly world: CrashWorld;
  readonly subjects: readonly Subject[];
  readonly clients: LineProcess;
  readonly struck: StruckServer;
  /** A session of its own, for the locks. */
  readonly locker: PoolClient;
}

/** Every request to its point in the server. A cell whose request is not there has missed it. */
export async function bring({ world, subjects: all, clients, struck, locker }: Bring): Promise<void> {
  const { wire } = struck;
  await comeToPoints(all, clients);
  const subjects = all.filter(({ missed }) => missed.length === 0);
  const point = subjects[0]?.cell.server;
  if (point === undefined) return;
  const fillers = await fillLanes(world, subjects, struck);
  const names = [...new Set(subjects.map(({ cell }) => statements[cell.step.name] ?? ""))];
  wire.hold(point === "committed, before the answer" ? "way back" : "way there", names, subjects.flatMap(marksOf));
  const arrived = struck.arrived(subjects.flatMap(marksOf));
  for (const { call } of subjects) clients.tell({ go: call.id });
  // What travels in batches waits behind the one that is under way, and then leaves as one.
  const isInServer = (subject: Subject) => marksOf(subject).some((mark) => arrived.has(mark));
  await demand(subjects, isInServer, "never came to the server");
  await turns(struck);
  if (point === "behind a batch") return;
  wire.release(fillers);
  await demand(subjects, isKept(struck), "never came to the database");
  if (point === "the SQL waits") await waitInDatabase(world, subjects, struck, locker);
}

/** What is struck behind a batch has not left for the database until then. */
export function checkBehind(subjects: readonly Subject[], struck: StruckServer): void {
  for (const subject of subjects.filter(isKept(struck))) subject.missed.push("did not stay behind a batch");
}

function marksOf({ call }: Subject): string[] {
  return [call.customerId, stableKey(call.customerId, billingPeriod, purpose)];
}

function isKept({ wire }: StruckServer): (subject: Subject) => boolean {
  return (subject) => marksOf(subject).some((mark) => wire.seen().has(mark));
}

async function demand(
  subjects: readonly Subject[],
  isSo: (subject: Subject) => boolean,
  otherwise: string,
): Promise<void> {
  await within(until(() => subjects.every(isSo)));
  for (const subject of subjects.filter((one) => !isSo(one))) subject.missed.push(otherwise);
}

/** Lets the server take in what has come to it. */
async function turns({ server }: StruckServer): Promise<void> {
  for (let turn = 0; turn < 3; turn += 1) await (await fetch(`${server.url}/readyz`)).arrayBuffer();
}

/** One request in each lane, kept by the wire: what comes after it waits in the server. */
async function fillLanes(world: CrashWorld, subjects: readonly Subject[], struck: StruckServer): Promise<string[]> {
  const lanes = new Set(subjects.map(({ cell }) => cell.step.name).filter((name) => batched.has(name)));
  const marks: string[] = [];
  for (const lane of ["CommitSpend", "AuthorizeSpend"].filter((name) => lanes.has(name))) {
    marks.push(...(await fillLane(world, subjects[0] as Subject, struck, lane)));
  }
  return marks;
}

async function fillLane(
  world: CrashWorld,
  { cell, call: { customerId: like } }: Subject,
  { wire, baseUrl }: StruckServer,
  lane: string,
): Promise<string[]> {
  const customerId = `filler-${like}-${lane}`;
  const { call } = await createSubject(world, cell, baseUrl);
  const { pauseAt: _at, clockFile: _file, work: _work, card: _card, retryAfterGeneration: _retry, ...rest } = call;
  const marks = [customerId, stableKey(customerId, billingPeriod, purpose)];
  wire.hold("way there", [statements[lane] ?? ""], marks);
  const client = createBillingClient({ ...rest, kind: "one_call", customerId, vendorDeadlineMs: minute });
  void client.charge().then(() => client.holdfast.close());
  const isThere = await within(until(() => marks.some((mark) => wire.seen().has(mark))));
  if (isThere !== true) throw new Error(`${customerId} never came to the database`);
  return marks;
}

/** Lets the statements go on into locks. */
async function waitInDatabase(
  { stage }: CrashWorld,
  subjects: readonly Subject[],
  { wire }: StruckServer,
  locker: PoolClient,
): Promise<void> {
  const customers = subjects.map(({ call }) => call.customerId);
  await locker.query("begin");
  await locker.query("select from holdfast.workspaces for no key update");
  await locker.query("select from holdfast.authorizations where customer_id = any ($1) for update", [customers]);
  await locker.query("select from holdfast.billing_leases where lease = any ($1) for update", [customers]);
  const gone = wire.release();
  const waiting = new Map<string, number>();
  const isHere = ({ cell }: Subject): boolean => {
    const name = statements[cell.step.name] ?? "";
    return (waiting.get(name) ?? 0) >= (gone.get(name) ?? Infinity);
  };
  const look = async (): Promise<boolean> => {
    const { rows } = await stage.pool.query<{ name: string; count: number }>(waitingSql);
    for (const { name, count } of rows) waiting.set(name, count);
    return subjects.every(isHere);
  };
  await within(until(look));
  for (const subject of subjects.filter((one) => !isHere(one))) subject.missed.push("never waited for a lock");
}

const waitingSql = `select substring(query from '^/\\* (\\w+) \\*/') as name, count(*)::int as count from pg_stat_activity
  where wait_event_type = 'Lock' and query like '/* %' group by 1`;

export async function until(isSo: () => boolean | Promise<boolean>): Promise<true> {
  while (!(await isSo())) await delay(20);
  return true;
}
