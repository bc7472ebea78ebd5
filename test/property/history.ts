import type { Answer, Answers, Command, System } from "./command.ts";
import { resolve } from "./history-resolve.ts";
import type { History } from "./history-step.ts";
import { createModel, generations } from "./model.ts";
import { recount } from "./model-recount.ts";
import type { World } from "./model-world.ts";

export { histories, type History } from "./history-step.ts";

/** Where a system first differed from the model, with the commands that led there. */
export interface Difference {
  readonly what: string;
  readonly commands: readonly Command[];
}

export interface RunOptions {
  /** Is told each command with the model's answers. */
  readonly observe?: (command: Command, answers: Answers) => void;
  /** Compares every counter and authorization after so many commands, and at the end. 10 if absent. */
  readonly quietEvery?: number;
}

/**
 * Runs one history on a system that is at its beginning and on a fresh model, compares every answer, and at
 * quiet points every counter and every authorization. Null if nothing differed.
 */
export async function runHistory(
  history: History,
  system: System,
  options: RunOptions = {},
): Promise<Difference | null> {
  const model = createModel(history.start);
  const commands: Command[] = [];
  const start: Command = { op: "setClock", now: history.start };
  await system.apply(start);
  for (const step of [...history.setup.map((command) => ({ kind: "admin" as const, command })), ...history.steps]) {
    const command = resolve(model.world, step, commands);
    if (command === null) continue;
    commands.push(command);
    const expected = model.apply(command);
    options.observe?.(command, expected);
    const what = await compareAnswers(system, command, expected);
    if (what !== null) return { what: `${command.op}: ${what}`, commands: [start, ...commands] };
    if (commands.length % (options.quietEvery ?? 10) !== 0) continue;
    const quiet = await compareAtRest(model.world, system);
    if (quiet !== null) return { what: quiet, commands: [start, ...commands] };
  }
  const quiet = await compareAtRest(model.world, system);
  return quiet === null ? null : { what: quiet, commands: [start, ...commands] };
}

/** A failure that is no answer is a difference too, so that its history is shown. */
async function compareAnswers(system: System, command: Command, expected: Answers): Promise<string | null> {
  let actual: Answers;
  try {
    actual = await system.apply(command);
  } catch (error) {
    return `threw ${String(error)}; the model answers ${show(expected)}`;
  }
  return difference(expected, actual);
}

async function compareAtRest(world: World, system: System): Promise<string | null> {
  const wrong = recount(world);
  if (wrong.length > 0) return `the model does not add up: ${wrong.join("; ")}`;
  const model = { caps: world.caps, counters: world.counters };
  for (const counter of model.counters.values()) {
    const cap = model.caps.get(counter.name.cap);
    if (cap === undefined) continue;
    const actual = await system.usage(counter.name);
    const headroom = cap.limit - counter.committed - counter.held;
    const expected: Answer = { error: null, committed: counter.committed, held: counter.held, headroom };
    const what = difference([expected], [actual]);
    if (what !== null) return `counter ${show(counter.name)}: ${what}`;
    if (counter.committed < 0n || counter.held < 0n) return `counter ${show(counter.name)} is negative`;
  }
  for (const one of generations(world)) {
    const actual = await system.authorization(one, one.generation);
    const expected: Answer = {
      error: null,
      state: one.state,
      generation: one.generation,
      heldAmount: one.held,
      reference: one.reference,
      committedAmount: one.committed,
      refundedAmount: one.committed === null ? null : one.refunded,
      evidence: one.evidence,
    };
    const what = difference([expected], [actual]);
    if (what !== null) return `authorization ${show([one.customer, one.period, one.purpose, one.generation])}: ${what}`;
  }
  return null;
}

/** The first figures that differ. A figure that the model does not name is not compared. */
export function difference(expected: Answers, actual: Answers): string | null {
  if (expected.length !== actual.length) return `${actual.length} answers instead of ${expected.length}`;
  for (const [i, wanted] of expected.entries()) {
    const given = actual[i] ?? {};
    const differing = Object.keys(wanted).filter((name) => (given[name] ?? null) !== wanted[name]);
    if (differing.length === 0) continue;
    const list = differing.map((name) => `${name} is ${show(given[name] ?? null)}, not ${show(wanted[name])}`);
    return `${expected.length > 1 ? `answer ${i}: ` : ""}${list.join(", ")}; the model answers ${show(wanted)}`;
  }
  return null;
}

/** One line of a difference per command, in the order in which they ran. */
export function explain(found: Difference): string {
  return [found.what, ...found.commands.map((command, i) => `${i}: ${show(command)}`)].join("\n");
}

function show(value: unknown): string {
  return JSON.stringify(value, (_key, inner: unknown) => (typeof inner === "bigint" ? `${inner}n` : inner));
}
