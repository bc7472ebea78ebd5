import { Code, ConnectError } from "@connectrpc/connect";

/**
 * Exit codes of the commands that talk to a running server. `serve`, `health`, `migrate`, `recover` and `workspace` have
 * those of the server (`startup-error.ts`).
 *
 * | code | name | meaning |
 * |---|---|---|
 * | 0 | ok | done |
 * | 1 | bug | an unexpected error |
 * | 3 | differences | `reconcile`: the two sides differ |
 * | 4 | problems | `doctor`: something is wrong |
 * | 64 | usage | an unknown command or flag, or a malformed value |
 * | 65 | refusedValue | the server refused a value; the message names the field and the remedy |
 * | 66 | notFound | there is no such resource |
 * | 67 | refusedState | not possible in the present state, or it exists already |
 * | 69 | unavailable | the server cannot be reached or cannot answer now |
 * | 70 | serverBug | the server failed; its log has the cause |
 * | 75 | tryAgain | somebody else was faster, or too much waits: repeat it |
 * | 77 | notAllowed | no token, a wrong one, or one whose role may not do this |
 */
export const commandExitCodes = {
  ok: 0,
  bug: 1,
  differences: 3,
  problems: 4,
  usage: 64,
  refusedValue: 65,
  notFound: 66,
  refusedState: 67,
  unavailable: 69,
  serverBug: 70,
  tryAgain: 75,
  notAllowed: 77,
} as const;

export type CommandExitCode = keyof typeof commandExitCodes;

/** A command cannot go on. The message says what is wrong and what to do. */
export class CommandError extends Error {
  override readonly name = "CommandError";
  readonly exitCode: number;

  constructor(code: CommandExitCode, message: string, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause });
    this.exitCode = commandExitCodes[code];
  }
}

const codeOf: ReadonlyMap<Code, CommandExitCode> = new Map([
  [Code.InvalidArgument, "refusedValue"],
  [Code.OutOfRange, "refusedValue"],
  [Code.NotFound, "notFound"],
  [Code.AlreadyExists, "refusedState"],
  [Code.FailedPrecondition, "refusedState"],
  [Code.Aborted, "tryAgain"],
  [Code.ResourceExhausted, "tryAgain"],
  [Code.Unauthenticated, "notAllowed"],
  [Code.PermissionDenied, "notAllowed"],
  [Code.Internal, "serverBug"],
  [Code.Unknown, "serverBug"],
  [Code.DataLoss, "serverBug"],
  [Code.Unimplemented, "serverBug"],
] as const);

/** What a failed call means for the command. Everything that is not the server's word is "unavailable". */
export function commandErrorFrom(error: unknown, url: string): CommandError {
  if (error instanceof CommandError) return error;
  if (!(error instanceof ConnectError)) {
    return new CommandError("bug", error instanceof Error ? (error.stack ?? error.message) : String(error), error);
  }
  const code = codeOf.get(error.code) ?? "unavailable";
  if (code === "unavailable") {
    return new CommandError(code, `The server at ${url} does not answer: ${causeOf(error)}`, error);
  }
  if (code === "notAllowed") {
    return new CommandError(code, `${error.rawMessage} Check HOLDFAST_OPERATOR_TOKEN.`, error);
  }
  return new CommandError(code, error.rawMessage, error);
}

/** The innermost reason: "ECONNREFUSED" helps, "internal error" does not. */
function causeOf(error: Error): string {
  let inner: unknown = error;
  let message = error instanceof ConnectError ? error.rawMessage : error.message;
  while (inner instanceof Error && inner.cause !== undefined) {
    inner = inner.cause;
    if (inner instanceof Error && inner.message !== "") message = inner.message;
  }
  return message;
}
