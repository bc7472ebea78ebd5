import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { crashPoints } from "./crash-point.ts";
import { amount, type CrashPlan, type CrashRun, runCrash } from "./crash-run.ts";
import { startStage, type Stage } from "./stage.ts";

const minute = 60_000;
const week = 7 * 24 * 60 * minute;

const plans: readonly CrashPlan[] = [
  { name: "server", victim: "server", laterMs: 10 * minute },
  { name: "postgres", victim: "postgres", laterMs: 10 * minute },
  { name: "billing", victim: "billing process", laterMs: 10 * minute },
  { name: "billing week", victim: "billing process", laterMs: week },
];

// What an application may see of a crash; nothing else, and never a connection error.
const typedErrors = ["HoldfastUnavailableError", "SpendInDoubtError", "SpendInProgressError", "VendorUnreachableError"];

let stage: Stage;
beforeAll(async () => {
  stage = await startStage();
  // Room for exactly one hold per spend: a hold that leaked, or was taken twice, denies another one.
  await stage.policy.setLimit(dollars(plans.length * crashPoints.length * amount));
});
afterAll(async () => {
  await stage.close();
});

function dollars(cents: number): string {
  return (cents / 100).toFixed(2);
}

const run = new Map<string, CrashRun>();

describe.each(plans)("kill -9 of the $victim, and $laterMs ms later again ($name)", (plan) => {
  const calls = () => run.get(plan.name)?.calls ?? [];
  const found = (kind: string, name: string) => {
    const call = calls().find(({ point }) => point.kind === kind && point.name === name);
    if (call === undefined) throw new Error("did not run");
    return call;
  };
  let before: { committed: string; held: string };
  beforeAll(async () => {
    before = await stage.policy.usage();
    run.set(plan.name, await runCrash(stage, plan));
  });

  test.each(crashPoints)("$kind, $name: never two charges, and the truth is found", ({ kind, name }) => {
    const { first, again, charges, state, defects } = found(kind, name);
    expect(defects).toEqual([]);
    if (first !== undefined && "error" in first) expect(typedErrors).toContain(first.error);
    if (plan.laterMs === week && kind === "one_call" && ["granted", "charge sent", "charge answered"].includes(name)) {
      // The vendor has forgotten the key: only somebody who looks can tell, and nothing may be sent.
      expect(again).toMatchObject({ error: "SpendInDoubtError" });
      expect(state).toBe("IN_DOUBT");
      expect(charges).toHaveLength(name === "granted" ? 0 : 1);
      return;
    }
    // Whether a grant that nobody waited for any more was written, the crash decides.
    if (plan.laterMs === week && kind === "one_call" && name === "authorize sent" && state === "IN_DOUBT") {
      expect(charges).toEqual([]);
      return;
    }
    expect(charges).toHaveLength(1);
    expect(again).toMatchObject({ ok: charges[0]?.payment_intent ?? charges[0]?.id, status: "succeeded" });
    if (first !== undefined && "ok" in first) expect(again).toMatchObject({ ok: first.ok });
    expect(state).toBe("COMMITTED");
  });

  test("the cap counts every spend once, before and after", () => {
    const { counted, countedAtEnd } = run.get(plan.name) as CrashRun;
    const cents = (money: string) => Math.round(Number(money) * 100);
    const used = ({ committed, held }: typeof counted) => cents(committed) + cents(held);
    const all = crashPoints.length * amount;
    expect(used(counted) - used(before)).toBeLessThanOrEqual(all);
    const committed = calls().filter(({ state }) => state === "COMMITTED").length;
    expect(cents(countedAtEnd.committed) - cents(before.committed)).toBe(committed * amount);
    expect(cents(countedAtEnd.held) - cents(before.held)).toBe((crashPoints.length - committed) * amount);
  });
});
