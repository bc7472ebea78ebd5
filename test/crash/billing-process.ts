import { writeSync } from "node:fs";
import { createInterface } from "node:readline";
import type { BillingCall } from "./billing-call.ts";
import { createBillingClient } from "./billing-client.ts";

// A billing service in a process of its own. Each line of standard input is a call to make, or {"go": id} for one
// that has stopped at its point. It says {"ready"}, {"id", "at"} at that point, {"id", "outcome"}, {"id", "closed"}
// when everything is delivered, and {"defect"} for whatever would have ended a careless process.

type Command = { readonly call: BillingCall } | { readonly go: string };

// At once, so that a kill right afterwards loses nothing.
function say(line: object): void {
  writeSync(1, `${JSON.stringify(line)}\n`);
}

process.on("unhandledRejection", (reason) => say({ defect: `unhandled rejection: ${String(reason)}` }));
process.on("uncaughtException", (error) => say({ defect: `uncaught exception: ${String(error)}` }));

const paused = new Map<string, () => void>();

async function run(call: BillingCall): Promise<void> {
  let armed = call.pauseAt !== undefined;
  const { holdfast, charge } = createBillingClient(call, async (point) => {
    if (!armed || point !== call.pauseAt) return;
    armed = false;
    await new Promise<void>((resolve) => {
      paused.set(call.id, resolve);
      say({ id: call.id, at: point });
    });
  });
  const outcome = await charge();
  say({ id: call.id, outcome });
  await holdfast.close();
  say({ id: call.id, closed: true });
}

createInterface(process.stdin)
  .on("line", (line) => {
    const command = JSON.parse(line) as Command;
    if ("go" in command) paused.get(command.go)?.();
    else void run(command.call);
  })
  .once("close", () => process.exit(0));
say({ ready: true });
