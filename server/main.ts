import { text } from "node:stream/consumers";
import { exitCodes, StartupError } from "./startup-error.ts";

/** What a server is made of is loaded only for a command that is one. */
async function runLocal(args: readonly string[]): Promise<number | undefined> {
  const commands = await import("./local-commands.ts");
  return await commands.runLocal(process.env, args);
}

/** Ends a command that goes on by itself, such as `audit tail --follow`. A server has signals of its own. */
function interruption(args: readonly string[]): { readonly signal?: AbortSignal } {
  if (!args.includes("--follow")) return {};
  const controller = new AbortController();
  process.once("SIGINT", () => controller.abort());
  process.once("SIGTERM", () => controller.abort());
  return { signal: controller.signal };
}

/** A probe asks every few seconds, and needs nothing else to be loaded. */
async function run(args: readonly string[]): Promise<number | undefined> {
  if (args.length === 1 && args[0] === "health") {
    const { health } = await import("./health.ts");
    return await health(process.env, (line) => process.stdout.write(`${line}\n`));
  }
  const { runCommand } = await import("./cli/program.ts");
  return await runCommand(args.length === 0 ? ["--help"] : args, {
    env: process.env,
    out: process.stdout,
    err: process.stderr,
    input: () => text(process.stdin),
    ...interruption(args),
    local: runLocal,
  });
}

const args = process.argv.slice(2);
// Whoever reads has seen enough, as `head` has: that is no error. A server goes on without a reader.
process.stdout.on("error", (error: NodeJS.ErrnoException) => {
  if (error.code !== "EPIPE") throw error;
  if (args[0] !== "serve") process.exit(exitCodes.ok);
});
try {
  const code = await run(args);
  if (code !== undefined) process.exitCode = code;
} catch (error) {
  if (error instanceof StartupError) {
    process.stderr.write(`holdfast: ${error.message}\n`);
    process.exitCode = error.exitCode;
  } else {
    process.stderr.write(`holdfast: an unexpected error\n${error instanceof Error ? error.stack : String(error)}\n`);
    process.exitCode = exitCodes.bug;
  }
}
