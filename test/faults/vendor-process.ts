import { createInterface } from "node:readline";
import { parseArgs } from "node:util";
import { startStripeSimulator } from "../support/stripe-simulator/index.ts";
import type { ReceivedRequest } from "../support/stripe-simulator/request-log.ts";
import type { FaultedRequest } from "./evidence.ts";

// The Stripe simulator as a process of its own, with its control API, and two more questions that would be too much
// to ask by it after a long run: {"open": n} how many requests are under way, and {"faulted": n} which ran into a
// fault. Says {"port"} first. Ends with its standard input.

const { values } = parseArgs({ options: { file: { type: "string" } } });
if (values.file === undefined) throw new Error("Give --file.");
const simulator = await startStripeSimulator({ movementsFile: values.file });

// The log of the simulator forgets; what ran into a fault is kept.
const faulted = new Map<string, ReceivedRequest>();
function collect(): void {
  for (const request of simulator.requests()) if (request.fault !== null) faulted.set(request.id, request);
}
setInterval(collect, 1_000);

const waiting = /^(hold|slow)/;

const say = (line: object): void => void process.stdout.write(`${JSON.stringify(line)}\n`);

createInterface(process.stdin)
  .on("line", (line) => {
    const command = JSON.parse(line) as { readonly open?: number; readonly faulted?: number };
    collect();
    const all = [...faulted.values()];
    if (command.open !== undefined) {
      const open = all.filter(({ fault, status }) => status === null && waiting.test(fault ?? ""));
      say({ answered: command.open, open: open.map(({ key }) => key ?? "") });
    } else {
      say({ answered: command.faulted, faulted: all.map(asEvidence) });
    }
  })
  .once("close", () => process.exit(0));
say({ port: simulator.port });

function asEvidence({ at, method, path, key, fault, executed, status }: ReceivedRequest): FaultedRequest {
  return { at, method, path, key, fault: fault ?? "", executed, status };
}
