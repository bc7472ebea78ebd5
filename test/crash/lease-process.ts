import { AsyncLocalStorage } from "node:async_hooks";
import { writeSync } from "node:fs";
import { createInterface } from "node:readline";
import type { HeldBillingLease } from "@holdfast/sdk";
import { type BillingCall, billingPeriod } from "./billing-call.ts";
import { createBillingClient } from "./billing-client.ts";

// A billing run in a process of its own. Its first line is {"call", "lease", "ttlMs"}; then it takes the lease,
// charges the customer of the call, and charges another one for each line {"charge": customer}. On {"finish"} the run
// ends. It says {"holding": token}, {"charged"}, {"aborted": reason} and {"result"}.

type Command =
  | { readonly call: BillingCall; readonly lease: string; readonly ttlMs: number }
  | { readonly charge: string }
  | { readonly finish: true };

function say(line: object): void {
  writeSync(1, `${JSON.stringify(line)}\n`);
}

process.on("unhandledRejection", (reason) => say({ defect: `unhandled rejection: ${String(reason)}` }));
process.on("uncaughtException", (error) => say({ defect: `uncaught exception: ${String(error)}` }));

const finished = Promise.withResolvers<void>();
let chargeAnother: (customerId: string) => Promise<void> = () => Promise.resolve();

async function run({ call, lease, ttlMs }: Extract<Command, { call: BillingCall }>): Promise<void> {
  const { holdfast, charge } = createBillingClient(call);
  const job = async (held: HeldBillingLease): Promise<void> => {
    held.signal.addEventListener("abort", () => say({ aborted: (held.signal.reason as Error).name }));
    say({ holding: String(held.fencingToken), holderId: held.holderId });
    // Wherever the line comes from, the charge belongs to this run.
    const inside = AsyncLocalStorage.snapshot();
    chargeAnother = (customerId) => inside(async () => say({ charged: customerId, outcome: await charge(customerId) }));
    await chargeAnother(call.customerId);
    await finished.promise;
  };
  const result = await holdfast.withBillingLease({ lease, billingPeriod, ttlMs }, job);
  say({ result });
  await holdfast.close();
}

createInterface(process.stdin)
  .on("line", (line) => {
    const command = JSON.parse(line) as Command;
    if ("call" in command) void run(command);
    else if ("charge" in command) void chargeAnother(command.charge);
    else finished.resolve();
  })
  .once("close", () => process.exit(0));
