import { refuse } from "./refusal.ts";

const stepsMax = 12;
const namePattern = /^[a-z][a-z0-9_]*(?:\[[^[\]]*\])*$/;
const memberPattern = /^[A-Za-z0-9_.-]{1,128}$/;
// The members of these are named by the client's own users.
const freeGroups: ReadonlySet<string> = new Set(["metadata", "payload"]);
const freePattern = /^[ -~\u00a0-\u{10ffff}]{1,128}$/u;

/** "amount" of "amount[x]". */
export function stemOf(key: string): string {
  const at = key.indexOf("[");
  return at < 0 ? key : key.slice(0, at);
}

/** Names that some languages' objects have from birth: a parser drops them, or worse. */
export function isInborn(name: string): boolean {
  return name in {} || name === "prototype";
}

/** What a name is followed by; it has to be the same wherever the name occurs. */
type Form = "value" | "list" | "indexes" | "group";

interface Seen {
  readonly form: Form;
  /** How many indexes there were; they count up from 0. */
  indexes: number;
}

/** "a" and "a[b]", "a[]" and "a[0]", "a[1]" before "a[0]", or "a" twice: which of them counts depends on who reads. */
export function checkNames(keys: readonly string[]): void {
  const seen = new Map<string, Seen>();
  const once = new Set<string>();
  for (const key of keys) {
    if (!namePattern.test(key)) throw malformed("A parameter's name is not spelled as the vendor's clients spell it.");
    if (once.has(key) && !key.endsWith("[]")) {
      throw refuse(400, "duplicate_parameter", "A parameter is sent twice; send each once.", stemOf(key));
    }
    once.add(key);
    checkSteps(key, seen);
  }
}

function checkSteps(key: string, seen: Map<string, Seen>): void {
  const steps = key.replaceAll("]", "").split("[");
  const [stem = ""] = steps;
  if (steps.length > stepsMax || isInborn(stem)) throw malformed("A parameter's name is not allowed.");
  let outer = stem;
  for (let at = 1; at <= steps.length; at += 1) {
    const member = steps[at];
    const isFree = freeGroups.has(steps[at - 1] ?? "");
    const form = formOf(member, isFree);
    const before = seen.get(outer) ?? { form, indexes: 0 };
    seen.set(outer, before);
    if (before.form !== form) throw malformed("A parameter is sent in two forms; send it in one.", stem);
    if (member === undefined) return;
    if (form === "list" && (at < steps.length - 1 || isFree)) {
      throw malformed("Send lists of groups with indexes: name[0][member].", stem);
    }
    if (form === "indexes" && !counts(member, before)) {
      throw malformed("Send the indexes of a list in their order, from 0.", stem);
    }
    if (form === "group" && (isInborn(member) || !(isFree ? freePattern : memberPattern).test(member))) {
      throw malformed("A parameter has a member whose name is not allowed.", stem);
    }
    outer += `[${member}]`;
  }
}

function formOf(member: string | undefined, isFree: boolean): Form {
  if (member === undefined) return "value";
  if (member === "") return "list";
  return !isFree && /^[0-9]+$/.test(member) ? "indexes" : "group";
}

function counts(member: string, before: Seen): boolean {
  const index = Number(member);
  if (String(index) !== member || index > before.indexes) return false;
  if (index === before.indexes) before.indexes += 1;
  return true;
}

function malformed(message: string, param?: string): ReturnType<typeof refuse> {
  return refuse(400, "malformed_parameter", message, param);
}
