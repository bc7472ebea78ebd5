import { type Book, textOf } from "./book.ts";
import type { Difference } from "./checker.ts";
import type { Answer, AnswerLine, Disturbance, Evidence, LedgerMovement, PlannedSpend } from "./evidence.ts";

/** Errors that leave open whether this call moves money, now or later. */
const open = new Set(["holdfast_spend_in_doubt", "holdfast_spend_in_progress", "holdfast_spend_already_committed"]);

// Clocks of several processes are compared.
const slackMs = 100;

/** Every answer agrees with the ledgers: what was shown as moved has moved, and what was not has not. */
export function answerDifferences(evidence: Evidence, book: Book): Difference[] {
  const moves = evidence.disturbances.filter(({ movedMs }) => movedMs !== undefined);
  return evidence.spends.flatMap((spend) => {
    const answers = book.answersOf(spend.id);
    const movements = book.movementsOf(spend.id);
    const wrong = (what: string): Difference => ({ spend: spend.id, what });
    return [
      ...answers
        .filter((line) => claimsFalsely(spend, line, movements))
        .map((line) => wrong(`${saidBy(line)}, and nothing moved`)),
      ...failedDifferences(answers, book, spend).map(wrong),
      ...movements
        .filter((movement) => !hasActor(evidence, moves, spend, movement, answers))
        .map((movement) => wrong(`${textOf(movement)} moved although every call then said that it did not move it`)),
    ];
  });
}

function saidBy({ call, operation, answer }: AnswerLine): string {
  const said = answer.kind === "ok" ? `${answer.id} ${answer.status}` : answer.kind === "error" ? answer.name : "";
  return `operation ${operation} (${call}) answered ${said}`;
}

function claimsFalsely(spend: PlannedSpend, { answer }: AnswerLine, movements: readonly LedgerMovement[]): boolean {
  if (answer.kind !== "ok" || !answer.claimsMoved) return false;
  // The subscription's own id is in no movement, nor is that of a credit note.
  if (spend.spendClass === "subscription" || spend.spendClass === "credit_note") return movements.length === 0;
  return !movements.some(({ id, payment_intent, cause }) => [id, payment_intent, cause].includes(answer.id));
}

/** "Failed for certain" is only said of a generation that is void. */
function failedDifferences(answers: readonly AnswerLine[], book: Book, spend: PlannedSpend): string[] {
  const rows = book.authorizationsOf(spend.id);
  return answers.flatMap((line) => {
    const { answer } = line;
    if (answer.kind !== "error" || answer.retryAfterGeneration === undefined) return [];
    const row = rows.find(({ generation }) => generation === answer.retryAfterGeneration);
    return row?.state === "VOIDED" ? [] : [`${saidBy(line)}, and that generation is ${row?.state ?? "missing"}`];
  });
}

/** Whether somebody can have moved this money then: a call that does not deny it, a customer, or a delayed request. */
function hasActor(
  evidence: Evidence,
  moves: readonly Disturbance[],
  spend: PlannedSpend,
  movement: LedgerMovement,
  answers: readonly AnswerLine[],
): boolean {
  const acts = evidence.disturbances.some((one) => {
    const [from, to] = span(moves, one.start, one.end);
    return one.spend === spend.id && movement.at >= from && movement.at <= to;
  });
  const delayed = evidence.faulted.some(
    ({ key, fault }) => key !== null && key === movement.idempotency_key && /^(hold|slow)/.test(fault),
  );
  return acts || delayed || answers.some((line) => mayHaveMoved(moves, line, movement));
}

function mayHaveMoved(moves: readonly Disturbance[], { start, end, answer }: AnswerLine, movement: LedgerMovement) {
  const [from, to] = span(moves, start, end);
  if (movement.at < from) return false;
  if (answer.kind === "lost") return true;
  if (answer.kind === "ok") return movement.at <= to;
  return open.has(answer.code) || answer.carriedThrough === true || !deniesIt(answer);
}

/** Errors that say: not by this call. */
function deniesIt({ name, code }: Extract<Answer, { kind: "error" }>): boolean {
  return code.startsWith("holdfast_") || name === "StripeCardError";
}

/** The vendors' clock from before the start to after the end of something. */
function span(moves: readonly Disturbance[], start: number, end: number): readonly [number, number] {
  const before = sum(moves.filter((move) => move.end <= start));
  const after = sum(moves.filter((move) => move.start <= end));
  return [start + before - slackMs, end + after + slackMs];
}

function sum(moves: readonly Disturbance[]): number {
  return moves.reduce((total, { movedMs = 0 }) => total + movedMs, 0);
}
