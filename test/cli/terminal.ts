import { randomBytes } from "node:crypto";
import { type Authorization, type AuthorizationState, Settlement } from "@holdfast/api/holdfast/v1/spend_pb";
import { expect } from "vitest";
import { runCommand } from "../../server/cli/program.ts";
import type { TestServer } from "../support/server.ts";

export interface Ran {
  readonly code: number | undefined;
  readonly out: string;
  readonly err: string;
}

export interface RunOptions {
  readonly input?: string;
  readonly columns?: number;
  readonly isTTY?: boolean;
  readonly signal?: AbortSignal;
  readonly env?: Readonly<Record<string, string | undefined>>;
  /** Is told of everything as it is written. */
  readonly onOut?: (text: string) => void;
  readonly local?: (args: readonly string[]) => Promise<number | undefined>;
}

/** Runs a command in this process as the terminal would. */
export async function run(args: readonly string[], options: RunOptions = {}): Promise<Ran> {
  let out = "";
  let err = "";
  const { input = "", columns, isTTY, signal, env = {}, onOut, local } = options;
  const code = await runCommand(args, {
    env,
    out: {
      write: (text) => {
        out += text;
        onOut?.(text);
      },
      ...(columns === undefined ? {} : { columns }),
    },
    err: {
      write: (text) => {
        err += text;
      },
      ...(isTTY === undefined ? {} : { isTTY }),
    },
    input: () => Promise.resolve(input),
    ...(signal === undefined ? {} : { signal }),
    local: local ?? (() => Promise.reject(new Error("no local command is meant"))),
  });
  return { code, out, err };
}

export interface Terminal {
  run(line: string | readonly string[], options?: RunOptions): Promise<Ran>;
  /** Runs it, expects success and lines that fit, and returns what was written. */
  ok(line: string | readonly string[], options?: RunOptions): Promise<string>;
  /** Runs it with --json, expects success, and returns the parsed answer. */
  json(line: string | readonly string[], options?: RunOptions): Promise<any>;
}

/** A terminal with the address and the token of a test server. */
export function terminalOf(server: TestServer, token = server.operatorToken): Terminal {
  const env = { HOLDFAST_URL: server.apps[0]?.url ?? "", HOLDFAST_OPERATOR_TOKEN: token };
  const runAt: Terminal["run"] = (line, options = {}) =>
    run(typeof line === "string" ? words(line) : line, { ...options, env: { ...env, ...options.env } });
  const ok: Terminal["ok"] = async (line, options) => {
    const ran = await runAt(line, options);
    expect(ran).toMatchObject({ code: 0, err: "" });
    expectFits(ran.out, options?.columns);
    return ran.out;
  };
  return {
    run: runAt,
    ok,
    async json(line, options) {
      const { code, out, err } = await runAt(
        typeof line === "string" ? `--json ${line}` : ["--json", ...line],
        options,
      );
      expect({ code, err }).toEqual({ code: 0, err: "" });
      return JSON.parse(out) as unknown;
    },
  };
}

/** A line as a shell would split it; quotes keep words together. */
export function words(line: string): readonly string[] {
  return [...line.matchAll(/"([^"]*)"|(\S+)/g)].map(([, quoted, bare]) => quoted ?? bare ?? "");
}

export function expectFits(out: string, columns = 80): void {
  expect(out.split("\n").filter((line) => Array.from(line).length > columns)).toEqual([]);
}

/** The value that stands behind a name in fields below each other. */
export function field(out: string, name: string): string {
  const line = out.split("\n").find((one) => one.startsWith(`${name} `));
  if (line === undefined) throw new Error(`there is no ${name} in:\n${out}`);
  return line.slice(name.length).trim();
}

export interface Spent {
  readonly customerId?: string;
  readonly billingPeriod?: string;
  readonly purpose?: string;
  readonly amount?: string;
  readonly vendor?: string;
  readonly inDoubt?: true;
}

/** An authorization of its own, held or in doubt. */
export async function granted(server: TestServer, token: string, spent: Spent = {}): Promise<Authorization> {
  const spends = server.spend(token);
  const attemptId = randomBytes(16).toString("hex");
  const { customerId = `cust_${randomBytes(4).toString("hex")}`, vendor = "stripe" } = spent;
  const { billingPeriod = "2026-11", purpose = "subscription", amount = "49" } = spent;
  const { authorization, denial } = await spends.authorizeSpend({
    spend: { customerId, billingPeriod, purpose, amount: { currency: "usd", amount } },
    vendor,
    endpoint: "POST /v1/payment_intents",
    attemptId,
    settlement: Settlement.SEND_ONCE,
  });
  if (authorization === undefined) throw new Error(`it was not granted: ${denial?.message}`);
  if (spent.inDoubt === true) await spends.reportUnknown({ authorization: authorization.name, attemptId });
  return authorization;
}

export async function stateOf(server: TestServer, token: string, name: string): Promise<AuthorizationState> {
  const lookup = { case: "name", value: name } as const;
  const { authorization } = await server.spend(token).getAuthorization({ lookup });
  if (authorization === undefined) throw new Error(`${name} is not there`);
  return authorization.state;
}
