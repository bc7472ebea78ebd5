import { setTimeout as delay } from "node:timers/promises";
import type { State } from "./cell.ts";
import { perform } from "./meanwhile.ts";
import { dropFaults, rowsOf, type Row, type Subject } from "./subject.ts";
import { type CrashWorld, hour, holdMs, minute } from "./world.ts";

// Guards against hanging; nothing is judged by it.
const patienceMs = 300_000;

/** Lets everybody else do what brings each row to the state of its cell. */
export async function reachStates(world: CrashWorld, subjects: readonly Subject[]): Promise<void> {
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
      if (done !== true) subject.missed.push(`${act} did not end`);
    } catch (error) {
      subject.missed.push(`${act} failed: ${String(error)}`);
    }
  }
}

async function checkState(world: CrashWorld, subject: Subject): Promise<void> {
  const row = (await rowsOf(world, subject)).at(-1);
  const { state } = subject.cell;
  if (!isIn(state, row)) subject.missed.push(`not in the state ${state}, but ${JSON.stringify(row ?? "no row")}`);
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

export async function within<Value>(work: Promise<Value>): Promise<Value | undefined> {
  const guard = new AbortController();
  const over = delay(patienceMs, undefined, { signal: guard.signal }).catch(() => undefined);
  try {
    return await Promise.race([work, over]);
  } finally {
    guard.abort();
  }
}
