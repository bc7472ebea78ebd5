import { createServer, type Server } from "node:http";
import { once } from "node:events";
import type { AddressInfo } from "node:net";
import { SpendInDoubtError, stableKey, VendorUnreachableError } from "@holdfast/sdk";
import { afterAll, beforeAll, expect, test } from "vitest";
import { type BillingKind, billingPeriod, purpose } from "../crash/billing-call.ts";
import { rejection } from "../sdk/setup.ts";
import { amount, openTill, type Till } from "./till.ts";

let till: Till;
/** A vendor that answers nothing but 503, as during an outage. */
let outage: Server;
beforeAll(async () => {
  till = await openTill();
  outage = createServer((_request, response) => response.writeHead(503).end("<html>unavailable</html>"));
  outage.listen(0, "127.0.0.1");
  await once(outage, "listening");
});
afterAll(async () => {
  outage.closeAllConnections();
  outage.close();
  await till.close();
});

const kinds: readonly BillingKind[] = ["one_call", "two_step"];
const MINUTE_MS = 60_000;

test("two hours without the vendor: in doubt, counted and never given back, and settled when it is back", async () => {
  const before = await till.usage();
  for (const kind of kinds) {
    const key = stableKey(`away-${kind}`, billingPeriod, purpose);
    const moving = kind === "two_step" ? `${key}-confirm-1` : key;
    till.simulator.fault({ mode: "html_502_after", match: { key: moving }, times: 100 });
    till.simulator.fault({ mode: "html_502", match: { method: "GET" }, times: 100 });
    expect(await rejection(till.clerk().charge(`away-${kind}`, kind))).toBeInstanceOf(SpendInDoubtError);
    till.simulator.clearFaults();
  }
  const counted = { ...before, held: before.held + kinds.length * amount };
  for (const port of [1, (outage.address() as AddressInfo).port]) {
    for (let minutes = 0; minutes < 60; minutes += 15) {
      await till.advance(15 * MINUTE_MS);
      const report = await till.clerk({ stripePort: port }).reconcile();
      expect(report.complete).toBe(false);
      expect(report.counts).toMatchObject({ committed: 0, voided: 0, absent: 0 });
      // Few questions: a vendor that is away is not asked about everything.
      expect(report.reads).toBeLessThan(10);
      expect(await till.usage()).toEqual(counted);
    }
  }
  const { authorizations } = await till.spend().listUnsettledAuthorizations({ includeNotDue: true });
  expect(authorizations.map(({ inDoubtTime }) => inDoubtTime !== undefined)).toEqual([true, true]);
  expect((await till.clerk().reconcile()).counts).toMatchObject({ committed: 2 });
  expect(await till.usage()).toEqual({ ...before, committed: before.committed + kinds.length * amount });
  for (const kind of kinds) expect(till.charges(`away-${kind}`)).toHaveLength(1);
});

test.each(kinds)(
  "a new spend while it is away (%s) ends by itself, and says that nothing was charged or who will know",
  async (kind) => {
    const customerId = `new-${kind}`;
    const error = await rejection(till.clerk({ stripePort: 1 }).charge(customerId, kind));
    expect(error).toBeInstanceOf(VendorUnreachableError);
    expect((error as Error).message).toContain("ECONNREFUSED");
    expect(await till.state(customerId)).toBe("VOIDED");
    const { port } = outage.address() as AddressInfo;
    const other = await rejection(till.clerk({ stripePort: port }).charge(`${customerId}-503`, kind));
    expect((other as Error).name).toBe(kind === "one_call" ? "SpendInDoubtError" : "VendorUnreachableError");
    expect((await till.clerk().charge(customerId, kind)).status).toBe("succeeded");
    expect((await till.clerk().charge(`${customerId}-503`, kind)).status).toBe("succeeded");
    expect([till.charges(customerId), till.charges(`${customerId}-503`)].map(({ length }) => length)).toEqual([1, 1]);
  },
);
