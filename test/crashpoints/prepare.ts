import type { FaultMode } from "../support/stripe-simulator/fault-spec.ts";
import { another, desk, rowsOf, type Subject, vendorKey } from "./subject.ts";
import { reconcile } from "./meanwhile.ts";
import { type CrashWorld, hour, holdMs, minute } from "./world.ts";

/** What was there before the calls of a round begin. Time may pass for it, for all of them together. */
export async function prepare(world: CrashWorld, subjects: readonly Subject[]): Promise<void> {
  await Promise.all(subjects.map((subject) => prepareFirst(world, subject)));
  const waits = subjects.some(({ cell }) => cell.flow.subject === "canceled" || cell.flow.subject === "waiting");
  if (waits) {
    await world.advance(holdMs + minute);
    await world.sweep();
  }
  for (const subject of subjects.filter(({ cell }) => cell.flow.subject === "canceled")) {
    await desk(world, subject).plain.paymentIntents.cancel((await reference(world, subject)) ?? "");
  }
  const quarantined = subjects.filter(({ cell }) => cell.flow.subject === "lost for days");
  if (quarantined.length > 0) {
    // The key may have been sent for 23 h, and been under way for as long as the quarantine.
    await world.advance(50 * hour);
    await Promise.all(quarantined.map((subject) => reconcile(world, subject)));
    await world.advance(6 * minute);
  }
}

async function prepareFirst(world: CrashWorld, subject: Subject): Promise<void> {
  const { cell } = subject;
  if (cell.state === "own generation 2") await voidFirst(world, subject);
  switch (cell.flow.subject) {
    case "charged":
    case "lost":
    case "lost for days": {
      // It stays until the states are reached: what was given up may still be under way.
      const mode = cell.flow.subject === "charged" ? "html_502_after" : "html_502";
      fail(world, subject, mode, "create");
      await another(world, subject, { vendorDeadlineMs: 300 });
      return;
    }
    case "canceled":
      await another(world, subject, { until: "bound" });
      return;
    case "waiting":
      await another(world, subject, { until: "bound", card: "pm_card_authenticationRequired" });
      await desk(world, subject).plain.paymentIntents.confirm((await reference(world, subject)) ?? "");
      return;
    default:
      if (cell.flow.trouble !== undefined) fail(world, subject, cell.flow.trouble.mode, cell.flow.trouble.at);
  }
}

async function voidFirst(world: CrashWorld, subject: Subject): Promise<void> {
  const at = subject.call.kind === "two_step" ? "confirm" : "create";
  const fault = world.stage.simulator.fault({ mode: "declined_402", match: { key: vendorKey(subject, at) } });
  await another(world, { ...subject, call: withoutRetry(subject) }, { work: "charge" });
  fault.remove();
}

function withoutRetry({ call }: Subject): Subject["call"] {
  const { retryAfterGeneration: _retry, card: _card, ...rest } = call;
  return rest;
}

function fail(world: CrashWorld, subject: Subject, mode: FaultMode, at: "create" | "confirm"): void {
  const generation = subject.cell.state === "own generation 2" ? 2 : 1;
  const match = { key: vendorKey(subject, at, generation) };
  subject.faults.push(world.stage.simulator.fault({ mode, match, times: 100_000 }));
}

async function reference(world: CrashWorld, subject: Subject): Promise<string | undefined> {
  return (await rowsOf(world, subject)).at(-1)?.vendor_reference ?? undefined;
}
