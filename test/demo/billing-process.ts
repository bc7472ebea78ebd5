import { once } from "node:events";
import type { BillingJob, FromBilling, ToBilling } from "./billing-job.ts";
import { guardedCharging, unguardedCharging } from "./charging.ts";
import { Endings } from "./endings.ts";
import { billEverybody } from "./retrying.ts";

// One billing service, as an operating system process of its own: it is told its job, waits for the timer, bills
// everybody and reports. It keeps nothing between two runs, like a service that was just deployed.

// Ends with its parent, whichever way that ends.
process.once("disconnect", () => process.exit(1));
// Ctrl-C in a terminal reaches every process; the parent ends this one.
process.on("SIGINT", () => {});

const job = await prepare();
const report = await bill(job);
await tell({ kind: "done", report });
process.exit(0);

async function prepare(): Promise<BillingJob> {
  const message = await nextMessage();
  if (message.kind !== "prepare") throw new Error("The first message must be the job.");
  return message.job;
}

async function bill(job: BillingJob) {
  const endings = new Endings();
  const onStop = (): void => void tell({ kind: "stopped", report: endings.report() });
  const charging = job.guard === undefined ? unguardedCharging(job, onStop) : guardedCharging(job, onStop);
  const go = nextMessage();
  await tell({ kind: "ready" });
  await go;
  await billEverybody(job, charging, endings);
  await charging.close();
  return endings.report();
}

async function nextMessage(): Promise<ToBilling> {
  const [message] = (await once(process, "message")) as [ToBilling];
  return message;
}

function tell(message: FromBilling): Promise<void> {
  return new Promise((resolve, reject) => {
    if (process.send === undefined) throw new Error("This program is started by the demo, with a channel to it.");
    process.send(message, undefined, {}, (error) => (error === null ? resolve() : reject(error)));
  });
}
