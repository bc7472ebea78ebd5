import { join } from "node:path";
import { SpendInDoubtError } from "@holdfast/sdk";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type BillingCall, type BillingKind, type BillingOutcome } from "../crash/billing-call.ts";
import { type LineProcess, startLineProcess } from "../crash/line-process.ts";
import { rejection } from "../sdk/setup.ts";
import { amount, HOUR_MS, openTill, type Till } from "./till.ts";

let till: Till;
const children: LineProcess[] = [];
beforeAll(async () => {
  till = await openTill();
});
afterAll(async () => {
  await Promise.all(children.map((child) => child.kill()));
  await till.close();
});

const CREATE = "before POST /v1/payment_intents";
const CONFIRM = "before POST /v1/payment_intents/:id/confirm";
const CHARGE = "before POST /v1/charges";

/** Past the hold, the time in which the vendor remembers a key, and the quarantine after that. */
const LATE_MS = 50 * HOUR_MS;

interface Zombie {
  /** Lets the process go on, with the request that it had composed before. */
  wake(): Promise<BillingOutcome>;
  readonly defects: () => readonly unknown[];
}

/** A billing process that is stopped by the system right before a request is written. */
async function stopProcess(customerId: string, pauseAt: string, options: Partial<BillingCall> = {}): Promise<Zombie> {
  const child = startLineProcess(join(import.meta.dirname, "../crash/billing-process.ts"));
  children.push(child);
  child.tell({ call: till.call(customerId, { pauseAt, timeoutMs: 120_000, ...options }) });
  await child.said((line) => line["at"] === pauseAt);
  child.signal("SIGSTOP");
  return {
    async wake() {
      child.tell({ go: customerId });
      child.signal("SIGCONT");
      const { outcome } = await child.said((line) => "outcome" in line);
      await child.said((line) => line["closed"] === true);
      return outcome as BillingOutcome;
    },
    defects: () => child.lines.filter((line) => "defect" in line),
  };
}

describe("in two steps, a request that leaves after the vendor has forgotten its key", () => {
  test.each([CREATE, CONFIRM])("%s: whoever came later has charged, and it charges nothing", async (pauseAt) => {
    const customerId = `paid-${pauseAt.split("/").at(-1)}`;
    const before = await till.usage();
    const zombie = await stopProcess(customerId, pauseAt);
    await till.advance(LATE_MS);
    const other = await till.clerk().charge(customerId);
    expect(other.status).toBe("succeeded");
    expect(await zombie.wake()).toMatchObject({ ok: other.id, status: "succeeded" });
    expect(till.charges(customerId)).toHaveLength(1);
    expect(zombie.defects()).toEqual([]);
    expect(await till.usage()).toEqual({ ...before, committed: before.committed + amount });
  });

  test("to confirm an object that was cancelled meanwhile: it charges nothing, and a next try charges once", async () => {
    const customerId = "cancelled";
    const before = await till.usage();
    const zombie = await stopProcess(customerId, CONFIRM);
    await till.advance(LATE_MS);
    const [bound] = await till.generations(customerId);
    const { plain, reconcile, charge } = till.clerk();
    await plain.paymentIntents.cancel(bound?.vendor_reference ?? "");
    expect((await reconcile()).counts).toMatchObject({ voided: 1 });
    expect((await charge(customerId, "two_step", 1)).status).toBe("succeeded");
    expect(await zombie.wake()).toMatchObject({ error: expect.stringMatching(/^Spend|^Stripe/) as string });
    expect(till.charges(customerId)).toHaveLength(1);
    expect(await till.usage()).toEqual({ ...before, committed: before.committed + amount });
  });
});

describe("in one call, a process that was stopped past its hold", () => {
  test("sends nothing when it looks at its clock before it writes", async () => {
    const customerId = "checked";
    // The process itself must have been stopped for as long as its hold lasts: the shortest there is.
    const zombie = await stopProcess(customerId, "after AuthorizeSpend", {
      kind: "one_call",
      holdMs: 5_000,
      vendorDeadlineMs: 1_500,
    });
    await expect.poll(() => outlasted(customerId)).toBe(true);
    const outcome = await zombie.wake();
    expect(outcome).not.toHaveProperty("ok");
    expect(till.charges(customerId)).toEqual([]);
    const sent = till.simulator.requests().filter(({ params }) => params["customer"] === customerId);
    expect(sent).toEqual([]);
    expect(zombie.defects()).toEqual([]);
  });

  // The residue that one call cannot avoid: the clock was looked at, and the request leaves days later.
  test("and composed its request before: others wait for it as long as they must, and its charge is never lost", async () => {
    const customerId = "residue";
    const kind: BillingKind = "one_call";
    const before = await till.usage();
    const zombie = await stopProcess(customerId, CHARGE, { kind });
    // As long as it may still come, nobody else sends, and its headroom stays taken.
    await till.advance(25 * HOUR_MS);
    expect(await rejection(till.clerk().charge(customerId, kind))).toBeInstanceOf(SpendInDoubtError);
    expect((await till.clerk().reconcile()).counts).toMatchObject({ absent: 1 });
    expect(await till.usage()).toEqual({ ...before, held: before.held + amount });
    // The quarantine is over: it is given up, and charged again on purpose.
    await till.advance(LATE_MS);
    expect((await till.clerk().reconcile()).counts).toMatchObject({ absent: 1 });
    await till.advance(HOUR_MS / 12);
    expect((await till.clerk().reconcile()).counts).toMatchObject({ voided: 1 });
    expect((await till.clerk().charge(customerId, kind, 1)).status).toBe("succeeded");
    expect(await till.usage()).toEqual({ ...before, committed: before.committed + amount });
    // It comes nevertheless. Its caller gets the vendor's answer, and the money counts as a contradiction.
    expect(await zombie.wake()).toMatchObject({ status: "succeeded" });
    expect(till.charges(customerId)).toHaveLength(2);
    expect(await till.usage()).toEqual({ ...before, committed: before.committed + 2 * amount });
    const kinds = (await till.events(customerId)).map((event) => event.kind);
    expect(kinds).toContain("spend.contradiction");
  });
});

/** The database says that the customer's hold has run out; the process's own began before that. */
async function outlasted(customerId: string): Promise<boolean> {
  const { rows } = await till.server.database.pool.query<{ over: boolean }>(
    "select hold_expire_time < holdfast.clock() as over from holdfast.authorizations where customer_id = $1",
    [customerId],
  );
  return rows[0]?.over === true;
}
