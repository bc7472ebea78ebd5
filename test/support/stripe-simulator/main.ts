import { parseArgs } from "node:util";
import { startStripeSimulator } from "./index.ts";

// Runs the simulator as a process of its own, so that its memory outlives the billing processes that call it.
// Prints one line, the port. Stops on SIGTERM or SIGINT.
const { values } = parseArgs({
  options: {
    file: { type: "string" },
    port: { type: "string", default: "0" },
    "execution-ms": { type: "string", default: "0" },
  },
});

if (values.file === undefined) {
  console.error("Give --file, the path that movements of money are appended to.");
  process.exit(2);
}

const simulator = await startStripeSimulator({
  movementsFile: values.file,
  port: Number(values.port),
  executionMs: Number(values["execution-ms"]),
});
console.log(String(simulator.port));

for (const signal of ["SIGTERM", "SIGINT"] as const) {
  process.once(signal, () => {
    void simulator.close().then(() => process.exit(0));
  });
}
