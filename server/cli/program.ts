import { setTimeout as delay } from "node:timers/promises";
import { Command, CommanderError } from "commander";
import { StartupError } from "../startup-error.ts";
import type { CommandContext, CommandGroup } from "./command.ts";
import { type Connection, connectionFrom, type ConnectionOptions } from "./connection.ts";
import { commandErrorFrom, commandExitCodes } from "./exit-codes.ts";
import { createOutput, plain } from "./output.ts";

/** What a command reads and writes; a test gives its own. */
export interface CommandLine {
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly out: {
    /** False where more should wait for "drain". */
    write(text: string): unknown;
    once?(event: "drain", told: () => void): unknown;
    readonly columns?: number;
  };
  readonly err: { write(text: string): unknown; readonly isTTY?: boolean };
  readonly input: () => Promise<string>;
  /** Ends a command that goes on by itself. */
  readonly signal?: AbortSignal;
  /** Takes over the commands that need no server: `serve` and its like. */
  readonly local: (args: readonly string[]) => Promise<number | undefined>;
}

/** The commands of the first level in the order of the help, each with where it is; a file is loaded only when it is needed. */
const groups: readonly (readonly [names: readonly string[], load: () => Promise<CommandGroup>])[] = [
  [["keys"], async () => (await import("./keys.ts")).keyCommands],
  [["caps"], async () => (await import("./caps.ts")).capCommands],
  [["kill"], async () => (await import("./kill.ts")).killCommands],
  [["authorizations", "in-doubt"], async () => (await import("./authorizations.ts")).authorizationCommands],
  [["contradictions"], async () => (await import("./contradictions.ts")).contradictionCommands],
  [["leases"], async () => (await import("./leases.ts")).leaseCommands],
  [["audit"], async () => (await import("./audit.ts")).auditCommands],
  [["operators"], async () => (await import("./operators.ts")).operatorCommands],
  [["credentials"], async () => (await import("./credentials.ts")).credentialCommands],
  [["reconcile"], async () => (await import("./reconcile.ts")).reconcileCommand],
  [["doctor"], async () => (await import("./doctor.ts")).doctorCommand],
];

const localCommands = [
  ["serve", "run the server; --embedded brings its own Postgres"],
  ["health", "ask the server of this environment whether it serves; for probes"],
  ["migrate", "bring the schema of DATABASE_URL to the version of this program"],
  ["workspace", "workspace create <id>: make a workspace and print its first operator's token, once"],
  ["recover", "take a restored, promoted or copied database into use; --restored: also where it does not show"],
] as const;

/** What the arguments may mean: every group of which they have a name, and all where they have none, as `--help` has. */
async function groupsOf(args: readonly string[]): Promise<CommandGroup[]> {
  if (localCommands.some(([name]) => name === args[0])) return [];
  const named = groups.filter(([names]) => names.some((name) => args.includes(name)));
  return await Promise.all((named.length > 0 ? named : groups).map(([, load]) => load()));
}

/** Runs one command and returns its exit code, or undefined while a server goes on running. Throws a StartupError. */
export async function runCommand(args: readonly string[], line: CommandLine): Promise<number | undefined> {
  let code: number | undefined = commandExitCodes.ok;
  let url = "";
  const program = new Command("holdfast")
    .description("Spend control: what may be spent, what was, and how to stop it.")
    .option("--url <url>", "a server; HOLDFAST_URL, else http://127.0.0.1:7070")
    .option("--ca-file <file>", "the authority of the server's certificate, PEM")
    .option("--cert-file <file>", "your own certificate for mTLS, PEM")
    .option("--key-file <file>", "its key, PEM")
    .option("--json", "print the answer as JSON")
    .addHelpText("after", "\nThe token comes from HOLDFAST_OPERATOR_TOKEN. Exit codes: docs/terminal.md.")
    .configureHelp({ helpWidth: 80, showGlobalOptions: false })
    .configureOutput({
      writeOut: (text) => line.out.write(text),
      writeErr: (text) => line.err.write(plain(text, "\n")),
    })
    .showHelpAfterError("(add --help for the flags)")
    .exitOverride();
  const context = contextOf(program, line, (opened) => {
    url = opened.url;
  });
  for (const [name, description] of localCommands) {
    program
      .command(name)
      .description(description)
      .allowUnknownOption()
      .allowExcessArguments()
      .action(async () => {
        code = await line.local(args);
      });
  }
  for (const group of await groupsOf(args)) group(program, context);
  inheritSettings(program);
  // What they take is theirs to judge; inheriting has forbidden it.
  for (const [name] of localCommands) program.commands.find((one) => one.name() === name)?.allowExcessArguments();
  try {
    await program.parseAsync([...args], { from: "user" });
    return code;
  } catch (error) {
    if (error instanceof StartupError) throw error;
    if (error instanceof CommanderError) return error.exitCode === 0 ? commandExitCodes.ok : commandExitCodes.usage;
    const { message, exitCode } = commandErrorFrom(error, url);
    line.err.write(`holdfast: ${plain(message, "\n")}\n`);
    return exitCode;
  }
}

function contextOf(program: Command, line: CommandLine, opened: (connection: Connection) => void): CommandContext {
  let connection: Connection | undefined;
  const flags = () => program.opts<Partial<ConnectionOptions> & { json?: true }>();
  return {
    env: line.env,
    connection() {
      const { url, caFile, certFile, keyFile } = flags();
      connection ??= connectionFrom(line.env, { url, caFile, certFile, keyFile });
      opened(connection);
      return connection;
    },
    output: () =>
      createOutput({
        json: flags().json === true,
        columns: line.out.columns,
        write: (text) => line.out.write(text),
      }),
    input: line.input,
    wait: async (ms) => {
      const { signal } = line;
      await delay(ms, undefined, signal === undefined ? {} : { signal }).catch((error: unknown) => {
        if (signal?.aborted !== true) throw error;
      });
    },
    ended: () => line.signal?.aborted === true,
    signal: line.signal,
    write: async (text) => {
      if (line.out.write(text) !== false) return;
      await new Promise<void>((resolve) => {
        if (line.out.once === undefined) resolve();
        else line.out.once("drain", resolve);
      });
    },
    note: (text) => void line.err.write(`${plain(text)}\n`),
    progress: (text) => {
      if (line.err.isTTY === true) line.err.write(`${plain(text)}\n`);
    },
  };
}

/** Sub-commands do not take over how errors end by themselves, nor the global flags after their name. */
function inheritSettings(parent: Command): void {
  for (const command of parent.commands) {
    command.copyInheritedSettings(parent);
    inheritSettings(command);
  }
}
