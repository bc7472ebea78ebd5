import type { BillingOutcome } from "../crash/billing-call.ts";
import type { Line, LineProcess } from "../crash/line-process.ts";
import { reconcile } from "./meanwhile.ts";
import { within } from "./reach.ts";
import { hasOwnKey, rowsOf, type Subject } from "./subject.ts";
import { type CrashWorld, hour, holdMs, minute } from "./world.ts";

export async function closed(subjects: readonly Subject[], victim: LineProcess): Promise<void> {
  const isOf = (subject: Subject) => (line: Line) => line["id"] === subject.call.id;
  await Promise.all(
    subjects.map(async (subject) => {
      const ends = (line: Line) => isOf(subject)(line) && line["closed"] === true;
      if ((await within(victim.said(ends))) === undefined) {
        subject.violations.push("the call that was stopped does not end");
      }
      const outcome = victim.lines.find((line) => isOf(subject)(line) && "outcome" in line)?.["outcome"];
      if (outcome !== undefined) subject.outcomes.push(outcome as BillingOutcome);
    }),
  );
}

// What says that another attempt may still be at it.
const passing = new Set(["SpendInProgressError", "HoldfastUnavailableError", "VendorUnreachableError"]);

/** The same calls from a process that knows nothing, until each has come to an end. */
export async function runAgain(
  world: CrashWorld,
  subjects: readonly Subject[],
  process: LineProcess,
  round: number,
): Promise<void> {
  await process.said((line) => line["ready"] === true);
  process.signal("SIGUSR2");
  let open = subjects;
  for (let tries = 1; open.length > 0 && tries <= 3; tries += 1) {
    if (tries > 1) await world.advance(holdMs + minute);
    const outcomes = await Promise.all(
      open.map(async ({ call, cell }) => {
        const { pauseAt: _at, ...rest } = call;
        const id = `${call.id} again ${round} ${tries}`;
        // What a reconciler was about is asked for by its own caller.
        const work = cell.flow.work === "reconcile" ? "charge" : (cell.flow.work ?? "charge");
        process.tell({
          call: { ...rest, baseUrl: world.stage.url, id, work, timeoutMs: minute / 2, vendorDeadlineMs: minute },
        });
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

export async function letCustomersPass(world: CrashWorld, subjects: readonly Subject[]): Promise<void> {
  for (const subject of subjects) {
    const row = (await rowsOf(world, subject)).at(-1);
    if (row?.vendor_state !== "requires_action" || row.vendor_reference === null) continue;
    world.stage.simulator.confirmFromBrowser(row.vendor_reference);
  }
}

/** Asks the vendor about everything, at last twice after every quarantine. */
export async function settle(world: CrashWorld, subjects: readonly Subject[]): Promise<void> {
  const own = subjects.filter(({ cell }) => hasOwnKey(cell));
  const shared = subjects.find(({ cell }) => !hasOwnKey(cell));
  const askers = shared === undefined ? own : [shared, ...own];
  for (const waitMs of [holdMs + minute, 26 * hour, 26 * hour, 6 * minute]) {
    await world.advance(waitMs);
    await world.sweep();
    await Promise.all(askers.map((subject) => reconcile(world, subject)));
  }
}

export function noteDefects(subjects: readonly Subject[], processes: readonly LineProcess[]): void {
  const defects = processes.flatMap(({ lines }) => lines.filter((line) => "defect" in line));
  for (const defect of defects) subjects[0]?.violations.push(`in the process of this round: ${JSON.stringify(defect)}`);
}

/** Makes every call, and resolves when each is at its point. */
export async function comeToPoints(subjects: readonly Subject[], process: LineProcess): Promise<void> {
  await process.said((line) => line["ready"] === true);
  for (const { call } of subjects) process.tell({ call });
  await Promise.all(
    subjects.map(async (subject) => {
      const { id } = subject.call;
      const line = await within(process.said((said) => said["id"] === id && ("at" in said || "outcome" in said)));
      if (line !== undefined && "at" in line) return;
      subject.missed.push(`never came to its point: ${JSON.stringify(line ?? "silence")}`);
    }),
  );
}
