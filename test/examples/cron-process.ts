// One replica with a timer of its own. Told what to do by its first message, it says whom it has charged, stands still
// after one customer if it is to be killed there, and says how the job ended.
import { once } from "node:events";
import { createHoldfast } from "@holdfast/sdk";
import Stripe from "stripe";
import { billMonth, type Subscriber } from "../../sdk/examples/cron-on-every-replica.ts";

export interface Replica {
  readonly baseUrl: string;
  readonly vaultKey: string;
  readonly stripePort: number;
  readonly billingPeriod: string;
  readonly subscribers: readonly Subscriber[];
  /** Stand still as soon as this customer is paid. */
  readonly stopAfter?: string;
}

export type Told = { readonly paid: string; readonly payment: string } | { readonly result: string };

process.once("disconnect", () => process.exit(1));
const [replica] = (await once(process, "message")) as [Replica];
const { baseUrl, vaultKey, stripePort, billingPeriod, subscribers, stopAfter } = replica;
const holdfast = createHoldfast({ baseUrl, vaultKey });
const stripe = new Stripe("sk_test_1", { host: "127.0.0.1", port: stripePort, protocol: "http", telemetry: false });
const result = await billMonth({
  holdfast,
  stripe,
  billingPeriod,
  subscribers,
  async paid({ id }, payment) {
    await tell({ paid: id, payment });
    if (id === stopAfter) await new Promise(() => {});
  },
});
await holdfast.close();
await tell({ result });
process.exit(0);

function tell(told: Told): Promise<void> {
  return new Promise((resolve, reject) => {
    process.send?.(told, undefined, {}, (error) => (error === null ? resolve() : reject(error)));
  });
}
