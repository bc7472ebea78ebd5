import { setTimeout as delay } from "node:timers/promises";
import type { LineProcess } from "../crash/line-process.ts";
import type { Cell } from "./cell.ts";
import { closed, comeToPoints, letCustomersPass, noteDefects, runAgain, settle } from "./heal.ts";
import { judge, judgeCounters } from "./judge.ts";
import { prepare } from "./prepare.ts";
import { reachStates } from "./reach.ts";
import { createSubject, dropFaults, type Subject } from "./subject.ts";
import { type CrashWorld, hour, holdMs, minute } from "./world.ts";

/** How one cell went. */
export interface Played {
  readonly cell: Cell;
  readonly violations: readonly string[];
  /** Why it was not struck where and when it says; a cell that was has nothing here. */
  readonly missed: readonly string[];
  /** What the authorization and the vendor came to, in one line. */
  readonly ending: string;
}

const day = 25 * hour;

/**
 * Plays cells of one action together, each with a spend of its own: brings every call to its point and
 * every row to its state, strikes their process, heals everything, runs every call again from a fresh process, lets a
 * day pass, releases what was stopped, runs every call again, reconciles, and judges.
 */
export async function playRound(world: CrashWorld, cells: readonly Cell[]): Promise<Played[]> {
  const subjects = await Promise.all(cells.map((cell) => createSubject(world, cell)));
  const [victim, healthy] = [world.nextProcess(), world.nextProcess()];
  try {
    await prepare(world, subjects);
    await comeToPoints(subjects, victim);
    await reachStates(world, subjects);
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

async function strike(subjects: readonly Subject[], victim: LineProcess): Promise<void> {
  const action = (subjects[0] as Subject).cell.action;
  // From now on it waits for as long as it would.
  victim.signal("SIGUSR2");
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

/** The cells of each round: of one action, and one kind of time that runs out. More cells hardly take it longer. */
export function roundsOf(cells: readonly Cell[]): Cell[][] {
  const rounds = new Map<string, Cell[]>();
  for (const cell of cells) {
    if ("impossible" in cell.route) continue;
    const days = cell.flow.subject === "lost for days" ? ", days later" : "";
    const name = `${cell.action}, ${cell.route.runsOut ?? "no time"}${days}`;
    const round = rounds.get(name);
    if (round === undefined) rounds.set(name, [cell]);
    else round.push(cell);
  }
  return [...rounds.values()];
}
