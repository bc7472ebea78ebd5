import type { Book } from "./book.ts";
import type { AuthorizationRow, Evidence } from "./evidence.ts";

const doubtful = new Set(["kill_server", "reset_connections", "freeze_connections", "garble_connections"]);

const dayMs = 24 * 60 * 60 * 1_000;

/** How far the clocks were moved since then. */
function movedSince({ disturbances }: Evidence, then: number): number {
  return disturbances.reduce((sum, { start, movedMs = 0 }) => (start >= then ? sum + movedMs : sum), 0);
}

/** What happened to the calls of an authorization that can have left it open. */
export function reasonsOf(evidence: Evidence, book: Book, row: AuthorizationRow): string[] {
  const spend = book.spendOf(row);
  if (spend === undefined) return [];
  const reasons = new Set<string>();
  for (const { key, method, path, fault } of evidence.faulted) {
    const isOurs = key?.startsWith(row.idempotency_key) === true;
    const isAbout = row.vendor_reference !== null && path.includes(row.vendor_reference);
    if (isOurs || isAbout) reasons.add(`${fault} met ${method} ${path.replaceAll(/_[0-9a-f]{8,}/g, "_…")}`);
  }
  for (const { answer, start, end, call } of book.answersOf(spend.id)) {
    if (answer.kind === "lost") reasons.add(`the process was killed in ${call}`);
    if (answer.kind === "error" && answer.code === "holdfast_spend_aborted") reasons.add(`${call} was aborted`);
    for (const disturbance of evidence.disturbances) {
      if (!doubtful.has(disturbance.kind)) continue;
      if (disturbance.start <= end && disturbance.end >= start) reasons.add(`${disturbance.kind} during ${call}`);
    }
    if (answer.kind === "ok" && answer.id === row.vendor_reference) {
      const days = movedSince(evidence, end) / dayMs;
      if (days >= 1) reasons.add(`the object was ${answer.status}, and followed for ${Math.floor(days)} days`);
    }
    if (end - start >= evidence.vendorDeadlineMs) reasons.add(`${call} took ${end - start} ms`);
  }
  return [...reasons];
}
