import type { Look } from "./command.ts";
import type { Generation, World } from "./model-world.ts";

const dayMs = 24 * 3_600_000;

/** Which account a service has shown, and since when; the first holds for all that was before. */
export interface AccountSpan {
  readonly since: number;
  readonly account: string;
}

/** When the last attempt may have sent. */
export function lastSend(generation: Generation): number {
  return Math.max(generation.holdExpireMax, generation.grantTime + (generation.resendSafeForMs ?? 0));
}

/** Nothing could be on its way any more when the look began, and nothing else was found or told since. */
export function lookCounts(generation: Generation, { at }: Look, now: number): boolean {
  if (generation.looksAfter !== null && at <= generation.looksAfter) return false;
  return at <= now && at - lastSend(generation) >= 25 * (dayMs / 24);
}

/** One look that met a vendor that was behind is not enough. */
export function provesAbsence(generation: Generation, look: Look, now: number): boolean {
  const first = generation.asked?.absentSince ?? null;
  if (generation.bound || generation.state !== "IN_DOUBT" || first === null) return false;
  if (!lookCounts(generation, { ...look, at: first }, now)) return false;
  return lookCounts(generation, look, now) && look.at - first >= 5 * 60_000;
}

export function noteAccount(world: World, { vendor, key }: Generation, account: string): void {
  if (account === "") return;
  const spans = world.accounts.get(`${vendor} ${key}`) ?? [];
  if (spans.at(-1)?.account === account) return;
  const since = spans.length === 0 ? Number.NEGATIVE_INFINITY : world.now;
  if (spans.at(-1)?.since === since) return;
  world.accounts.set(`${vendor} ${key}`, [...spans, { since, account }]);
}

/** Whether it may have been sent under another account than the one that was looked at. */
export function maybeElsewhere(world: World, generation: Generation, { account }: Look): boolean {
  const spans = world.accounts.get(`${generation.vendor} ${generation.key}`) ?? [];
  return spans.some((span, i) => {
    const until = (spans[i + 1]?.since ?? Number.POSITIVE_INFINITY) + dayMs;
    return span.account !== account && span.since <= lastSend(generation) && until > generation.grantTime;
  });
}
