import type { CrashWorld } from "./world.ts";
import type { Act } from "./route.ts";
import { another, desk, rowsOf, type Subject, vendorKey } from "./subject.ts";

/** Lets the customer, another attempt or a reconciler do something about a spend. */
export async function perform(world: CrashWorld, subject: Subject, act: Act): Promise<void> {
  const { kind } = subject.call;
  const rows = await rowsOf(world, subject);
  const generation = rows.at(-1)?.generation ?? 1;
  // Whoever comes later asks for the generation that is due, as a caller does who was told that the last one failed.
  const after = rows.findLast(({ state }) => state === "VOIDED")?.generation;
  const due = after === undefined ? {} : { retryAfterGeneration: after };
  const good = { card: kind === "two_step" ? "pm_card_visa" : "tok_visa" };
  switch (act) {
    case "grant":
      await another(world, subject, { ...due, until: "granted" });
      return;
    case "bind":
      await another(world, subject, { ...due, until: "bound" });
      return;
    case "pay":
      await another(world, subject, { ...due, ...(generation > 1 || rows.length === 0 ? good : {}) });
      return;
    case "follow":
      await another(
        world,
        subject,
        kind === "two_step" ? { ...due, card: "pm_card_authenticationRequired" } : { ...due, capture: false },
      );
      return;
    case "decline":
      await decline(world, subject, generation);
      return;
    case "next":
      await another(world, subject, { ...good, retryAfterGeneration: generation, until: "granted" });
      return;
    case "cancel":
      await cancel(world, subject, rows.at(-1)?.vendor_reference ?? "");
      return;
    case "browser":
      world.stage.simulator.confirmFromBrowser(rows.at(-1)?.vendor_reference ?? "");
      return;
    case "reconcile":
      await reconcile(world, subject);
  }
}

/** Another attempt whose card is declined, whatever the card is. */
async function decline(world: CrashWorld, subject: Subject, generation: number): Promise<void> {
  const at = subject.call.kind === "two_step" ? "confirm" : "create";
  const fault = world.stage.simulator.fault({
    mode: "declined_402",
    match: { key: vendorKey(subject, at, generation) },
  });
  await another(world, subject, { work: "charge" });
  fault.remove();
}

async function cancel(world: CrashWorld, subject: Subject, reference: string): Promise<void> {
  const { stripe, holdfast } = desk(world, subject);
  await stripe.paymentIntents.cancel(reference);
  await holdfast.close();
}

export async function reconcile(world: CrashWorld, subject: Subject): Promise<void> {
  const { plain, holdfast } = desk(world, subject);
  try {
    await holdfast.reconcile(plain, { includeNotDue: true, maxReads: 100_000 });
  } finally {
    await holdfast.close();
  }
}
