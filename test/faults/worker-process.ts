import { writeSync } from "node:fs";
import { createInterface } from "node:readline";
import { createHoldfast, type GuardedStripe, type Holdfast, HoldfastError, SpendAbortedError } from "@holdfast/sdk";
import type Stripe from "stripe";
import type { Answer, Reconciled } from "./evidence.ts";
import { plainClient, plantedTransport } from "./plant.ts";
import { sendMessage } from "./plain-call.ts";
import type { WorkerCall, WorkerCommand, WorkerStart } from "./worker-call.ts";

// A billing service as a process of its own, told line by line which calls to make. It says {"operation", "answer"}
// for each and {"defect"} for whatever escaped a call. Written synchronously: what was said survives SIGKILL.

function say(line: object): void {
  const bytes = Buffer.from(`${JSON.stringify(line)}\n`);
  for (let written = 0; written < bytes.length; ) {
    try {
      written += writeSync(1, bytes, written);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "EAGAIN") throw error;
    }
  }
}

process.on("unhandledRejection", (reason) => say({ defect: `unhandled rejection: ${String(reason)}` }));
process.on("uncaughtException", (error) => say({ defect: `uncaught exception: ${error.stack ?? String(error)}` }));

class Billing {
  readonly #start: WorkerStart;
  readonly #holdfast: Holdfast;
  readonly #atPlainVendor: Holdfast;
  readonly #plain: Stripe;
  readonly #stripe: GuardedStripe;
  readonly #keeping: GuardedStripe;

  constructor(start: WorkerStart) {
    this.#start = start;
    const { baseUrl, timeoutMs, vendorDeadlineMs, holdMs, vaultKeys, plant } = start;
    const times = { timeoutMs, vendorDeadlineMs, holdMs };
    const transport = plant === "wrong_amount" ? { transport: plantedTransport(baseUrl) } : { baseUrl };
    this.#holdfast = createHoldfast({ ...transport, vaultKey: vaultKeys.stripe, ...times });
    this.#atPlainVendor = createHoldfast({ baseUrl, vaultKey: vaultKeys.plain, ...times });
    this.#plain = plainClient(start.stripePort, plant);
    this.#stripe = this.#holdfast.stripe(this.#plain);
    this.#keeping = this.#holdfast.stripe(this.#plain, { onDecline: "keep" });
  }

  async answer(call: WorkerCall): Promise<Answer> {
    const { plant } = this.#start;
    try {
      const answer = answerOf(await this.#make(call));
      if (plant === "second_charge" && answer.claimsMoved) await this.#chargeAgain(call);
      return answer;
    } catch (error) {
      const answer = errorOf(error);
      const lies = plant === "false_answer" && /denied|unavailable|failed/.test(answer.code);
      return lies ? { kind: "ok", id: "ch_nothing", status: "succeeded", claimsMoved: true } : answer;
    }
  }

  async flush(): Promise<void> {
    await Promise.all([this.#holdfast.flush(), this.#atPlainVendor.flush()]);
  }

  /** Undefined if the control plane does not answer. */
  async reconcile(): Promise<readonly Reconciled[] | undefined> {
    try {
      const { steps } = await this.#holdfast.reconcile(this.#plain, { includeNotDue: true, maxReads: 20_000 });
      return steps.map(({ authorization, outcome }) => ({ authorization, outcome }));
    } catch (error) {
      if (error instanceof HoldfastError) return undefined;
      throw error;
    }
  }

  #make({ call, args, spendOption, abortAfterMs, onDecline, spend }: WorkerCall): Promise<unknown> {
    const signal = abortAfterMs === undefined ? {} : { signal: AbortSignal.timeout(abortAfterMs) };
    if (call === "spend") {
      const [what, cents] = args as [Parameters<Holdfast["spend"]>[1], number];
      if (spendOption === undefined) throw new Error("no spend");
      const port = this.#start.plainVendorPort;
      const callback: Parameters<Holdfast["spend"]>[2] = (grant) => sendMessage(port, grant, { spend, amount: cents });
      return this.#atPlainVendor.spend(spendOption, what, callback, signal);
    }
    const stripe = onDecline === "keep" ? this.#keeping : this.#stripe;
    const options = { ...signal, ...(spendOption === undefined ? {} : { spend: spendOption }) };
    const names = call.split(".");
    const method = names.pop() ?? "";
    const owner = names.reduce<unknown>((object, name) => (object as Record<string, unknown>)[name], stripe);
    return (owner as Record<string, (...all: unknown[]) => Promise<unknown>>)[method]?.(
      ...args,
      options,
    ) as Promise<unknown>;
  }

  /** The planted bug: a charge beside the guard. */
  async #chargeAgain({ spend }: WorkerCall): Promise<void> {
    const params = { amount: 100, currency: "usd", source: "tok_visa", metadata: { faults_spend: spend } };
    await this.#plain.charges.create(params).catch(() => undefined);
  }
}

type Fields = Readonly<Record<string, unknown>>;

const moving: ReadonlySet<string> = new Set([
  "refund",
  "transfer",
  "transfer_reversal",
  "payout",
  "topup",
  "credit_note",
  "customer_balance_transaction",
  "v2.money_management.outbound_payment",
]);

/** What an application would take as "the money has moved". */
function claimsMoved(object: Fields): boolean {
  const { status } = object;
  switch (object["object"]) {
    case "payment_intent":
      return status === "succeeded";
    case "charge":
      return status === "succeeded" && object["captured"] === true;
    case "invoice":
      return status === "paid";
    case "subscription":
      return status === "active";
    case "checkout.session":
      return status === "complete" && object["payment_status"] === "paid";
    case undefined:
      return "alreadyCommitted" in object;
    default:
      return moving.has(String(object["object"])) && status !== "failed" && status !== "canceled";
  }
}

function textOf(value: unknown): string {
  return typeof value === "string" ? value : "";
}

function answerOf(value: unknown): Extract<Answer, { kind: "ok" }> {
  const object = value as Fields;
  const id = object["id"] ?? object["vendorReference"];
  return { kind: "ok", id: textOf(id), status: textOf(object["status"]), claimsMoved: claimsMoved(object) };
}

function errorOf(error: unknown): Extract<Answer, { kind: "error" }> {
  if (!(error instanceof Error)) return { kind: "error", name: "no error", code: "", message: String(error) };
  const { type, code, retryAfterGeneration } = error as Error & {
    type?: string;
    code?: string;
    retryAfterGeneration?: number;
  };
  return {
    kind: "error",
    name: error instanceof HoldfastError ? error.name : (type ?? error.name),
    code: code ?? "",
    message: error.message.slice(0, 300),
    ...(error instanceof SpendAbortedError ? { carriedThrough: error.carriedThrough } : {}),
    ...(retryAfterGeneration === undefined ? {} : { retryAfterGeneration }),
  };
}

let billing: Billing | undefined;
createInterface(process.stdin)
  .on("line", (line) => {
    const command = JSON.parse(line) as WorkerCommand;
    if ("start" in command) {
      billing = new Billing(command.start);
      say({ ready: true });
    } else if ("flush" in command) {
      void billing?.flush().then(() => say({ flushed: command.flush }));
    } else if ("reconcile" in command) {
      void billing?.reconcile().then((steps) => say({ reconciled: command.reconcile, steps }));
    } else {
      const { operation } = command.ask;
      void billing?.answer(command.ask).then((answer) => say({ operation, answer }));
    }
  })
  .once("close", () => process.exit(0));
