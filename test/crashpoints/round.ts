import { setTimeout as delay } from "node:timers/promises";
import type { BillingOutcome } from "../crash/billing-call.ts";
import type { LineProcess } from "../crash/line-process.ts";
import type { Action, Cell, State } from "./cell.ts";
import { judge, judgeCounters } from "./judge.ts";
import { perform, reconcile } from "./meanwhile.ts";
import { prepare } from "./prepare.ts";
import { createSubject, dropFaults, rowsOf, type Row, type Subject } from "./subject.ts";
import { type CrashWorld, hour, holdMs, minute } from "./world.ts";

/** How one cell went. */
export interface Played {
  readonly cell: Cell;
  readonly violations: readonly string[];
  /** What the authorization and the vendor came to, in one line. */
  readonly ending: string;
}

const day = 25 * hour;
// Guards against hanging; nothing is judged by it.
const patienceMs = 120_000;

/**
 * Plays cells of one state and one action together, each with a spend of its own: brings every call to its point and
 * every row to its state, strikes their process, heals everything, runs every call again from a fresh process, lets a
 * day pass, releases what was stopped, runs every call again, reconciles, and judges.
 */
export async function playRound(world: CrashWorld, cells: readonly Cell[]): Promise<Played[]> {
  const subjects = await Promise.all(cells.map((cell) => createSubject(world, cell)));
  const [victim, healthy] = [world.nextProcess(), world.nextProcess()];
  try {
    await prepare(world, subjects);
    await bring(world, subjects, victim);
    await strike(subjects, victim);
    await judgeCounters(world, subjects, "after the strike");
    await world.advance(holdMs + minute);
    await runAgain(world, subjects, healthy, 1);
    await judgeCounters(world, subjects, "after everything was run again");
    const action = (cells[0] as Cell).action;
    if (action.startsWith("pause ") && !action.includes("a day")) await release(subjects, victim);
    await world.advance(day);
    await world.sweep();
    if (action.includes("a day")) await release(subjects, victim);
    await letCustomersPass(world, subjects);
    await runAgain(world, subjects, healthy, 2);
    await settle(world, subjects);
    if (action === "drop the reply") await closed(subjects, victim);
    noteDefects(subjects, [victim, healthy]);
    await judgeCounters(world, subjects, "in the end");
    return await Promise.all(subjects.map((subject) => judge(world, subject)));
  } finally {
    for (const subject of subjects) dropFaults(subject);
    await Promise.all([victim.kill(), healthy.kill()]);
  }
}

/** Every call to its point, and then every row to its state. */
async function bring(world: CrashWorld, subjects: readonly Subject[], victim: LineProcess): Promise<void> {
  await victim.said((line) => line["ready"] === true);
  for (const { call } of subjects) victim.tell({ call });
  for (const subject of subjects) {
    const { id } = subject.call;
    const line = await within(victim.said((said) => said["id"] === id && ("at" in said || "outcome" in said)));
    if (!("at" in (line ?? {})))
      subject.violations.push(`never came to its point: ${JSON.stringify(line ?? "silence")}`);
  }
  // The trouble has led here, and is over for everybody who comes later.
  for (const subject of subjects) dropFaults(subject);
  const routes = subjects.map((subject) => {
    const { route } = subject.cell;
    if ("impossible" in route) throw new Error(`${subject.cell.name} cannot be played`);
    return { subject, route };
  });
  await Promise.all(routes.map(({ subject, route }) => performAll(world, subject, route.acts)));
  if (routes.some(({ route }) => route.runsOut !== undefined)) {
    const long = routes.some(({ route }) => route.runsOut === "follow time");
    await world.advance(long ? 7 * 24 * hour + minute : holdMs + minute);
    await world.sweep();
  }
  await Promise.all(routes.map(({ subject, route }) => performAll(world, subject, route.afterwards)));
  for (const subject of subjects) await checkState(world, subject);
}

async function performAll(world: CrashWorld, subject: Subject, acts: readonly Parameters<typeof perform>[2][]) {
  for (const act of acts) {
    try {
      const done = await within(perform(world, subject, act).then(() => true));
      if (done !== true) subject.violations.push(`${act} did not end`);
    } catch (error) {
      subject.violations.push(`${act} failed: ${String(error)}`);
    }
  }
}

async function checkState(world: CrashWorld, subject: Subject): Promise<void> {
  const row = (await rowsOf(world, subject)).at(-1);
  const { state } = subject.cell;
  if (!isIn(state, row)) subject.violations.push(`not in the state ${state}, but ${JSON.stringify(row ?? "no row")}`);
}

function isIn(state: State, row: Row | undefined): boolean {
  switch (state) {
    case "no row":
      return row === undefined;
    case "HELD fresh":
      return row?.state === "HELD" && row.vendor_reference === null && row.generation === 1;
    case "HELD taken over":
      return row?.state === "HELD" && row.generation === 1 && row.vendor_state === "";
    case "bound":
      return row?.state === "HELD" && row.vendor_reference !== null && row.vendor_state === "";
    case "followed":
      return row?.state === "HELD" && row.vendor_state !== "";
    case "IN_DOUBT":
    case "COMMITTED":
    case "VOIDED":
      return row?.state === state;
    default:
      return row?.generation === 2;
  }
}

async function strike(subjects: readonly Subject[], victim: LineProcess): Promise<void> {
  const action = (subjects[0] as Subject).cell.action;
  if (action.startsWith("kill")) await victim.kill();
  else if (action.startsWith("pause")) victim.signal("SIGSTOP");
  else {
    for (const { call } of subjects) victim.tell({ drop: call.id });
    // Some end at once, and others wait until the hold of another attempt has run out.
    const over = Promise.all(
      subjects.map(({ call }) => victim.said((line) => line["id"] === call.id && "outcome" in line)),
    );
    over.catch(() => undefined);
    await Promise.race([over, delay(1_500)]);
  }
}

/** SIGCONT: whatever was stopped goes on, to its end. */
async function release(subjects: readonly Subject[], victim: LineProcess): Promise<void> {
  victim.signal("SIGCONT");
  for (const { call } of subjects) victim.tell({ go: call.id });
  await closed(subjects, victim);
}

async function closed(subjects: readonly Subject[], victim: LineProcess): Promise<void> {
  for (const subject of subjects) {
    const { id } = subject.call;
    const line = await within(victim.said((said) => said["id"] === id && said["closed"] === true));
    if (line === undefined) subject.violations.push("the call that was stopped does not end");
    const outcome = victim.lines.find((said) => said["id"] === id && "outcome" in said)?.["outcome"];
    if (outcome !== undefined) subject.outcomes.push(outcome as BillingOutcome);
  }
}

// What says that another attempt may still be at it.
const passing = new Set(["SpendInProgressError", "HoldfastUnavailableError", "VendorUnreachableError"]);

/** The same calls from a process that knows nothing, until each has come to an end. */
async function runAgain(
  world: CrashWorld,
  subjects: readonly Subject[],
  process: LineProcess,
  round: number,
): Promise<void> {
  await process.said((line) => line["ready"] === true);
  let open = subjects;
  for (let tries = 1; open.length > 0 && tries <= 3; tries += 1) {
    if (tries > 1) await world.advance(holdMs + minute);
    const outcomes = await Promise.all(
      open.map(async ({ call, cell }) => {
        const { pauseAt: _at, ...rest } = call;
        const id = `${call.id} again ${round} ${tries}`;
        // What a reconciler was about is asked for by its own caller.
        const work = cell.flow.work === "reconcile" ? "charge" : (cell.flow.work ?? "charge");
        process.tell({ call: { ...rest, id, work, vendorDeadlineMs: minute } });
        const line = await within(process.said((said) => said["id"] === id && "outcome" in said));
        return line?.["outcome"] as BillingOutcome | undefined;
      }),
    );
    open = open.filter((subject, index) => {
      const outcome = outcomes[index];
      if (outcome === undefined) {
        subject.violations.push("a call from a fresh process does not end");
        return false;
      }
      subject.outcomes.push(outcome);
      return "error" in outcome ? passing.has(outcome.error) : outcome.status === "held_by_other";
    });
  }
}

async function letCustomersPass(world: CrashWorld, subjects: readonly Subject[]): Promise<void> {
  for (const subject of subjects) {
    const row = (await rowsOf(world, subject)).at(-1);
    if (row?.vendor_state !== "requires_action" || row.vendor_reference === null) continue;
    world.stage.simulator.confirmFromBrowser(row.vendor_reference);
  }
}

/** Asks the vendor about everything, twice with a quarantine in between. */
async function settle(world: CrashWorld, subjects: readonly Subject[]): Promise<void> {
  const own = subjects.filter(({ cell }) => cell.flow.work === "reconcile");
  const shared = subjects.find(({ cell }) => cell.flow.work !== "reconcile");
  const askers = shared === undefined ? own : [shared, ...own];
  for (const waitMs of [holdMs + minute, 26 * hour, 26 * hour]) {
    await world.advance(waitMs);
    await world.sweep();
    await Promise.all(askers.map((subject) => reconcile(world, subject)));
  }
}

function noteDefects(subjects: readonly Subject[], processes: readonly LineProcess[]): void {
  const defects = processes.flatMap(({ lines }) => lines.filter((line) => "defect" in line));
  for (const defect of defects) subjects[0]?.violations.push(`in the process of this round: ${JSON.stringify(defect)}`);
}

async function within<Value>(work: Promise<Value>): Promise<Value | undefined> {
  const guard = new AbortController();
  const over = delay(patienceMs, undefined, { signal: guard.signal }).catch(() => undefined);
  try {
    return await Promise.race([work, over]);
  } finally {
    guard.abort();
  }
}

/** The cells of each round: of one action, one state and one kind of time that runs out. */
export function roundsOf(cells: readonly Cell[]): Cell[][] {
  const rounds = new Map<string, Cell[]>();
  for (const cell of cells) {
    if ("impossible" in cell.route) continue;
    const days = cell.flow.subject === "lost for days" ? ", days later" : "";
    const name = `${cell.action satisfies Action}, ${cell.state}, ${cell.route.runsOut ?? "no time"}${days}`;
    const round = rounds.get(name);
    if (round === undefined) rounds.set(name, [cell]);
    else round.push(cell);
  }
  return [...rounds.values()];
}
