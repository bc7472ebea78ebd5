import type { Movement } from "../support/stripe-simulator/movements.ts";
import type { Played } from "./round.ts";
import { rowsOf, type Row, type Subject } from "./subject.ts";
import type { CrashWorld } from "./world.ts";

interface Contradiction {
  readonly vendor_reference: string;
  readonly generation: number;
}

/** Compares the vendor's own ledger, the rows, and what the callers were told. */
export async function judge(world: CrashWorld, subject: Subject): Promise<Played> {
  const { call, cell, violations } = subject;
  const rows = await rowsOf(world, subject);
  const moved = world.stage.simulator.movements().filter(({ customer }) => customer === call.customerId);
  const contradictions = await contradictionsOf(world, subject);
  const wrong = [
    ...violations,
    ...judgeMovements(subject, moved, contradictions),
    ...judgeStrangers(rows, moved, contradictions),
    ...rows.flatMap((row) => judgeRow(row, moved, contradictions)),
    ...judgeGenerations(rows),
    ...judgeOutcomes(subject, moved),
  ];
  const states = rows.map((row) => `${row.state}${row.vendor_state === "" ? "" : ` ${row.vendor_state}`}`);
  const late = moved.length > 1 && wrong.length === 0 ? ", the second recorded as a contradiction" : "";
  return {
    cell,
    violations: wrong,
    missed: subject.missed,
    ending: `${states.join(", then ") || "no row"}; moved ${moved.length} times${late}`,
  };
}

/** One call cannot be called back when it has left the SDK; what it moves a day later has to be seen, and counted. */
function isBeyondRecall({ cell }: Subject): boolean {
  return cell.flow.kind === "one_call" && cell.step.name.startsWith("POST") && cell.action === "pause a day before";
}

function judgeMovements(subject: Subject, moved: readonly Movement[], known: readonly Contradiction[]): string[] {
  if (moved.length < 2) return [];
  const recorded = moved.filter(({ id }) => known.some(({ vendor_reference }) => vendor_reference === id));
  if (isBeyondRecall(subject) && moved.length === 2 && recorded.length === 1) return [];
  return [`moved ${moved.length} times: ${moved.map(({ id, idempotency_key: key }) => `${id} by ${key}`).join(", ")}`];
}

/** Whatever has moved is committed, or known as a contradiction. */
function judgeStrangers(rows: readonly Row[], moved: readonly Movement[], known: readonly Contradiction[]): string[] {
  const references = new Set([
    ...rows.filter(({ state }) => state === "COMMITTED").map((row) => row.vendor_reference ?? ""),
    ...known.map(({ vendor_reference }) => vendor_reference),
  ]);
  return moved
    .filter(({ id, payment_intent }) => !references.has(id) && !references.has(payment_intent ?? ""))
    .map(({ id, amount }) => `${id} moved ${amount}, and no row knows of it`);
}

function ownerOf({ metadata }: Movement): string | undefined {
  return metadata["holdfast_authorization"];
}

function judgeRow(row: Row, moved: readonly Movement[], known: readonly Contradiction[]): string[] {
  const mine = moved.filter(
    (one) => ownerOf(one) === row.name && !known.some(({ vendor_reference }) => vendor_reference === one.id),
  );
  const called = `generation ${row.generation} is ${row.state}`;
  switch (row.state) {
    case "COMMITTED": {
      const own = mine.find(({ id, payment_intent }) => [id, payment_intent].includes(row.vendor_reference ?? ""));
      if (own === undefined) return [`${called} with ${row.vendor_reference}, which moved nothing`];
      const micros = BigInt(own.amount) * 10_000n;
      return micros === BigInt(row.committed_micros ?? 0)
        ? []
        : [`${called} at ${row.committed_micros}, not ${micros}`];
    }
    case "VOIDED":
      return mine.length === 0 ? [] : [`${called}, and ${mine[0]?.id} moved`];
    case "HELD":
      if (row.vendor_state === "") return row.hold_over ? [`${called} past its hold`] : [`${called} in the end`];
      return mine.length === 0 ? [] : [`${called} and ${row.vendor_state}, and ${mine[0]?.id} moved`];
    default:
      return [`${called}, and the vendor can answer`];
  }
}

function judgeGenerations(rows: readonly Row[]): string[] {
  return rows
    .slice(0, -1)
    .filter(({ state }) => state !== "VOIDED")
    .map(({ generation, state }) => `generation ${generation} is ${state}, and another one followed`);
}

// What an application may see of a crash; nothing else, and never a connection error.
const typed = new Set([
  "HoldfastUnavailableError",
  "LeaseLostError",
  "SpendAlreadyCommittedError",
  "SpendAlreadyFailedError",
  "SpendInDoubtError",
  "SpendInProgressError",
  "VendorUnreachableError",
]);

function judgeOutcomes({ outcomes }: Subject, moved: readonly Movement[]): string[] {
  return outcomes.flatMap((outcome) => {
    if ("error" in outcome) {
      const isEnded = /ALREADY_(COMMITTED|VOIDED)/.test(outcome.message) && outcome.error === "HoldfastRefusedError";
      const isKnown = typed.has(outcome.error) || outcome.code === "card_declined" || isEnded;
      return isKnown ? [] : [`a caller was told ${outcome.error}: ${outcome.message}`];
    }
    if (outcome.ok === "" || outcome.status !== "succeeded") return [];
    const is = moved.some(({ id, payment_intent }) => id === outcome.ok || payment_intent === outcome.ok);
    return is ? [] : [`a caller was told that ${outcome.ok} succeeded, and nothing moved`];
  });
}

async function contradictionsOf(world: CrashWorld, { call }: Subject): Promise<readonly Contradiction[]> {
  const { rows } = await world.stage.pool.query<Contradiction>(
    `select c.vendor_reference, c.generation from holdfast.contradictions c
     join holdfast.authorizations a using (workspace_id, spend_key, generation) where a.customer_id = $1`,
    [call.customerId],
  );
  return rows;
}

/** Every counter is what its rows come to, and no customer's is above its limit but by what was recorded as a contradiction. */
export async function judgeCounters(world: CrashWorld, subjects: readonly Subject[], when: string): Promise<void> {
  const { rows } = await world.stage.pool.query<{ subject: string; what: string }>(countersSql);
  for (const { subject: customer, what } of rows) {
    const one = subjects.find(({ call }) => call.customerId === customer) ?? subjects[0];
    const text = `${when}, the counter of ${customer || "everything"}: ${what}`;
    if (one !== undefined && !one.violations.includes(text)) one.violations.push(text);
  }
}

const countersSql = `
  with recount as (
    select n.cap_id, n.subject, n.committed_micros, n.held_micros, c.limit_micros,
      coalesce(sum(case when t.state = 'COMMITTED' then t.committed_micros else 0 end - h.returned_micros), 0)
        + coalesce(x.counted, 0) as committed,
      coalesce(sum(h.amount_micros) filter (where t.state in ('HELD', 'IN_DOUBT')), 0) as held,
      coalesce(x.counted, 0) as contradicted
    from holdfast.counters n
    join holdfast.caps c using (workspace_id, cap_id)
    left join holdfast.holds h using (workspace_id, cap_id, window_label, subject)
    left join holdfast.authorizations t using (workspace_id, spend_key, generation)
    left join lateral (
      select sum(k.counted_micros) as counted from holdfast.contradiction_counts k
      where k.workspace_id = n.workspace_id and k.cap_id = n.cap_id and k.window_label = n.window_label
        and k.subject = n.subject
    ) x on true
    group by n.cap_id, n.window_label, n.subject, n.committed_micros, n.held_micros, c.limit_micros, x.counted
  )
  select subject, format('%s: committed %s, held %s of %s; recounted %s and %s', cap_id, committed_micros, held_micros,
    limit_micros, committed, held) as what
  from recount
  where committed <> committed_micros or held <> held_micros
    or committed_micros + held_micros - contradicted > limit_micros`;
