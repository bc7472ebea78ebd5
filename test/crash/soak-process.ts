import { writeSync } from "node:fs";
import { createInterface } from "node:readline";
import { createHoldfast } from "@holdfast/sdk";
import Stripe from "stripe";
import { billingPeriod, purpose } from "./billing-call.ts";

// A billing service that charges one customer after the other, as its users would: over the SDK's own transport. It is
// told {"start": SoakStart}, then {"once": customer} or {"stop": true}. It says {"charged", "ms"} or {"failed",
// "error", "ms"} for every call, {"closed": true} in the end, and {"defect"} for whatever escaped a call.

export interface SoakStart {
  readonly baseUrl: string;
  readonly vaultKey: string;
  readonly stripePort: number;
  /** How many loops of calls run at the same time. None makes calls only when it is told to. */
  readonly callers: number;
  readonly timeoutMs: number;
}

type Command = { readonly start: SoakStart } | { readonly once: string } | { readonly stop: true };

function say(line: object): void {
  writeSync(1, `${JSON.stringify(line)}\n`);
}

process.on("unhandledRejection", (reason) => say({ defect: `unhandled rejection: ${String(reason)}` }));
process.on("uncaughtException", (error) => say({ defect: `uncaught exception: ${String(error)} ${error.stack}` }));

let over = false;
let charge: (customerId: string, oneCall: boolean) => Promise<void> = () => Promise.resolve();
let close: () => Promise<void> = () => Promise.resolve();

function start({ baseUrl, vaultKey, stripePort, callers, timeoutMs }: SoakStart): void {
  const holdfast = createHoldfast({ baseUrl, vaultKey, timeoutMs, vendorDeadlineMs: 5_000, holdMs: 60_000 });
  const plain = new Stripe("sk_test_1", { host: "127.0.0.1", port: stripePort, protocol: "http", telemetry: false });
  const stripe = holdfast.stripe(plain);
  charge = async (customerId, oneCall) => {
    const common = { amount: 490, currency: "usd", customer: customerId };
    const options = { spend: { customerId, billingPeriod, purpose } };
    const from = performance.now();
    try {
      if (oneCall) await stripe.charges.create({ ...common, source: "tok_visa" }, options);
      else await stripe.paymentIntents.create({ ...common, payment_method: "pm_card_visa", confirm: true }, options);
      say({ charged: customerId, ms: performance.now() - from });
    } catch (error) {
      const { name, message, code = "" } = error as Error & { code?: string };
      say({ failed: customerId, error: name, code, message, ms: performance.now() - from });
    }
  };
  const loops = Array.from({ length: callers }, async (_, caller) => {
    for (let n = 0; !over; n += 1) await charge(`soak-${caller}-${n}`, caller % 2 === 0);
  });
  close = async () => {
    await Promise.all(loops);
    await holdfast.close();
    say({ closed: true });
  };
}

createInterface(process.stdin)
  .on("line", (line) => {
    const command = JSON.parse(line) as Command;
    if ("start" in command) start(command.start);
    else if ("once" in command) void charge(command.once, true);
    else {
      over = true;
      void close();
    }
  })
  .once("close", () => process.exit(0));
say({ ready: true });
