import type { Transport } from "@connectrpc/connect";
import { createHoldfast } from "@holdfast/sdk";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type BillingKind, billingPeriod, purpose } from "../crash/billing-call.ts";
import { createDefaultTransport } from "../../sdk/transport.ts";
import { clientOf } from "../support/stripe-simulator/client.ts";
import { type CuttingFront, startCuttingFront } from "./cutting-front.ts";
import { amount, openTill, type Till } from "./till.ts";

let till: Till;
let front: CuttingFront;
beforeAll(async () => {
  till = await openTill();
  front = await startCuttingFront(Number(new URL(till.server.apps[0]?.url ?? "").port));
});
afterAll(async () => {
  await front.close();
  await till.close();
});

/** Of the spend, in the database: what an RPC has left behind. */
async function traces(customerId: string): Promise<string[]> {
  return (await till.events(customerId)).map(({ kind }) => kind);
}

const carriedOut: Readonly<Record<string, string>> = {
  AuthorizeSpend: "spend.granted",
  BindVendorReference: "spend.bound",
  CommitSpend: "spend.committed",
};

/** The SDK's own transport, which tells before an RPC and counts how often each was tried. */
function tellingTransport(before: (rpc: string) => Promise<void>): { transport: Transport; close: () => void } {
  const inner = createDefaultTransport(`http://127.0.0.1:${front.port}`, undefined);
  return {
    transport: {
      async unary(method, ...rest) {
        await before(method.name);
        return inner.unary(method, ...rest);
      },
      stream: (...args) => inner.stream(...args),
    },
    close: () => inner.close(),
  };
}

describe.each(["two_step", "one_call"] as const satisfies readonly BillingKind[])("%s", (kind) => {
  const rpcs = Object.keys(carriedOut).filter((rpc) => kind === "two_step" || rpc !== "BindVendorReference");
  test.each(rpcs.flatMap((rpc) => (["request", "answer"] as const).map((lost) => [rpc, lost] as const)))(
    "%s, the connection is reset with the %s on its way: asked again, carried out once, charged once",
    async (rpc, lost) => {
      const customerId = `${kind}-${rpc}-${lost}`;
      const before = await till.usage();
      let tries = 0;
      let cut: Promise<void> = Promise.resolve();
      const { transport, close } = tellingTransport((name) => {
        if (name !== rpc) return Promise.resolve();
        tries += 1;
        if (tries === 1) cut = lost === "request" ? loseRequest(customerId, rpc) : loseAnswer(customerId, rpc);
        return Promise.resolve();
      });
      const holdfast = createHoldfast({ vaultKey: till.vaultKey, transport });
      const stripe = holdfast.stripe(clientOf(till.simulator));
      const spend = { customerId, billingPeriod, purpose };
      const body = { amount, currency: "usd", customer: customerId };
      const { id } =
        kind === "two_step"
          ? await stripe.paymentIntents.create({ ...body, payment_method: "pm_card_visa", confirm: true }, { spend })
          : await stripe.charges.create({ ...body, source: "tok_visa" }, { spend });
      await cut;
      await holdfast.close();
      close();
      expect(tries).toBe(2);
      const [charge, ...others] = till.charges(customerId);
      expect(others).toEqual([]);
      expect(id).toBe(charge?.payment_intent ?? charge?.id);
      expect(await till.holds(customerId)).toBe(1);
      expect((await traces(customerId)).filter((one) => one === carriedOut[rpc])).toHaveLength(1);
      expect(await till.usage()).toEqual({ ...before, committed: before.committed + amount });
      const attempts = (await till.events(customerId)).flatMap(({ attempt_id: id }) => (id === null ? [] : [id]));
      expect(new Set(attempts).size).toBe(1);
    },
  );
});

async function loseRequest(customerId: string, rpc: string): Promise<void> {
  await front.swallowRequests();
  expect(await traces(customerId)).not.toContain(carriedOut[rpc]);
  front.reset();
}

async function loseAnswer(customerId: string, rpc: string): Promise<void> {
  front.swallowAnswers();
  await expect.poll(() => traces(customerId)).toContain(carriedOut[rpc]);
  front.reset();
}
