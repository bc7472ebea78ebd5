import { createBook, textOf } from "./book.ts";
import type { Verdict } from "./checker.ts";
import { type Evidence, type PlannedSpend, type SpendClass, spendClasses } from "./evidence.ts";

const columns = [
  "class",
  "operations",
  "spends",
  "moved",
  "committed",
  "voided",
  "in doubt",
  "followed",
  "differences",
];

/** A line per class, and their sum. */
export function tableOf(evidence: Evidence, verdict: Verdict): string {
  const rows = spendClasses.map((spendClass) => countOf(spendClass, evidence, verdict));
  const general = verdict.differences.filter(({ spend }) => spend === undefined).length;
  const total = rows.reduce((sums, row) => sums.map((sum, index) => sum + (row[index] ?? 0)));
  const lines = [
    columns,
    ...rows.map((row, index) => [spendClasses[index] ?? "", ...row.map(String)]),
    ["(of no class)", ...columns.slice(2).map(() => ""), String(general)],
    ["all", ...total.map((sum, index) => String(index === total.length - 1 ? sum + general : sum))],
  ];
  const widths = columns.map((_, column) => Math.max(...lines.map((line) => line[column]?.length ?? 0)));
  const text = lines.map((line) =>
    line
      .map((cell, column) => (column === 0 ? cell.padEnd(widths[0] ?? 0) : cell.padStart(widths[column] ?? 0)))
      .join("  "),
  );
  const rule = "-".repeat(text[0]?.length ?? 0);
  return [text[0], rule, ...text.slice(1, -1), rule, text.at(-1)].join("\n");
}

function countOf(spendClass: SpendClass, evidence: Evidence, verdict: Verdict): number[] {
  const book = createBook(evidence);
  const spends = evidence.spends.filter((spend) => spend.spendClass === spendClass);
  const ids = new Set(spends.map(({ id }) => id));
  const rows = spends.flatMap(({ id }) => book.authorizationsOf(id));
  const inState = (state: string): number => rows.filter((row) => row.state === state).length;
  const open = verdict.open.filter(({ spend }) => ids.has(spend));
  return [
    evidence.answers.filter(({ spend }) => ids.has(spend)).length,
    spends.length,
    spends.flatMap(({ id }) => book.movementsOf(id)).length,
    inState("COMMITTED"),
    inState("VOIDED"),
    open.filter(({ isFollowed }) => !isFollowed).length,
    open.filter(({ isFollowed }) => isFollowed).length,
    verdict.differences.filter(({ spend }) => spend !== undefined && ids.has(spend)).length,
  ];
}

/** What is not settled, counted by what left it open. */
export function openList({ open }: Verdict): string {
  const counts = new Map<string, number>();
  for (const { authorization, isFollowed, reasons } of open) {
    const state = isFollowed ? "followed" : authorization.state.toLowerCase().replace("_", " ");
    const line = `${state}, ${authorization.settlement}, ${authorization.endpoint}: ${reasons[0] ?? "no reason"}`;
    counts.set(line, (counts.get(line) ?? 0) + 1);
  }
  return [...counts]
    .toSorted(([, one], [, other]) => other - one)
    .map(([line, count]) => `${String(count).padStart(5)}  ${line}`)
    .join("\n");
}

/** How often each disturbance came, each fault was met and each answer was given. */
export function troubleList({ disturbances, faulted, answers }: Evidence): string {
  const answered = answers.map(({ answer }) => (answer.kind === "error" ? answer.name : answer.kind));
  return [
    `disturbances: ${countsOf(disturbances.map(({ kind }) => kind))}`,
    `faults met: ${countsOf(faulted.map(({ fault }) => fault))}`,
    `answers: ${countsOf(answered)}`,
  ].join("\n");
}

function countsOf(names: readonly string[]): string {
  const counts = new Map<string, number>();
  for (const name of names) counts.set(name, (counts.get(name) ?? 0) + 1);
  return [...counts]
    .toSorted(([, one], [, other]) => other - one)
    .map(([name, count]) => `${name} ${count}`)
    .join(", ");
}

/** Everything that is known about one spend, in the order in which it happened. */
export function historyOf(evidence: Evidence, id: string): string {
  const book = createBook(evidence);
  const spend = evidence.spends.find((one): one is PlannedSpend => one.id === id);
  const rows = book.authorizationsOf(id);
  const from = Math.min(...book.answersOf(id).map(({ start }) => start));
  const to = Math.max(...book.answersOf(id).map(({ end }) => end));
  const timed = [
    ...book.answersOf(id).flatMap(({ operation, worker, call, start, end, answer }) => [
      { at: start, text: `operation ${operation} in process ${worker}: ${call}` },
      { at: end, text: `operation ${operation} ended: ${JSON.stringify(answer)}` },
    ]),
    ...evidence.disturbances
      .filter(({ start, end, spend: about }) => (about === undefined || about === id) && start <= to && end >= from)
      .map(({ start, end, kind, movedMs, object }) => ({
        at: start,
        text: `${kind}${movedMs === undefined ? "" : ` ${movedMs} ms`} ${object ?? ""} until ${end - from} ms`,
      })),
  ].toSorted((one, other) => one.at - other.at);
  const ours = evidence.faulted.filter(
    ({ key, path }) =>
      rows.some((row) => key?.startsWith(row.idempotency_key)) ||
      rows.some((row) => row.vendor_reference !== null && path.includes(row.vendor_reference)),
  );
  return [
    `spend ${JSON.stringify(spend)}`,
    ...timed.map(({ at, text }) => `  ${String(at - from).padStart(8)} ms  ${text}`),
    ...rows.map((row) => `  authorization ${JSON.stringify(row)}`),
    ...book
      .movementsOf(id)
      .map((movement) => `  movement at ${movement.at} of the vendor's clock: ${textOf(movement)}`),
    ...ours.map((fault) => `  fault ${JSON.stringify(fault)}`),
    ...evidence.contradictions
      .filter(({ spend_key }) => rows.some((row) => row.spend_key === spend_key))
      .map((row) => `  contradiction ${JSON.stringify(row)}`),
  ].join("\n");
}
