import { createHash } from "node:crypto";
import type Stripe from "stripe";
import type { Answer, Disturbance, PlannedSpend, SpendClass } from "./evidence.ts";
import type { Random } from "./random.ts";
import type { WorkerCall } from "./worker-call.ts";

export type Call = Omit<WorkerCall, "operation" | "spend" | "spendOption"> & {
  /** False for a write on an object that belongs to the spend already. */
  readonly namesSpend?: false;
  readonly upTo?: number;
};

/** What a story is told in. */
export interface Stage {
  /** Makes a call in a billing process, once more where that process was killed under it. */
  ask(worker: number, call: Omit<WorkerCall, "operation">): Promise<Answer>;
  readonly workers: number;
  /** A client beside the guard, for what a story needs to begin with. It meets no faults. */
  readonly plain: Stripe;
  /** Sets a fault of the simulator. Holds are released later by themselves. */
  fault(
    random: Random,
    fault: { readonly key?: string; readonly path?: string },
    isStateGuarded: boolean,
  ): Promise<void>;
  /** Something that a customer or a bank does at the vendor; what the vendor refuses is nothing. */
  act(path: string, body: object, about: Pick<Disturbance, "spend" | "object">): Promise<void>;
  readonly isCalm: boolean;
}

/** One customer who wants one thing, and what is tried for it. */
export class Story {
  readonly random: Random;
  readonly plain: Stripe;
  readonly spends: PlannedSpend[] = [];
  /** The customer at Stripe, of this story alone: an execution that hangs keeps its customer from others. */
  readonly stripeCustomer: string;
  readonly #stage: Stage;
  readonly #name: string;
  readonly #customerId: string;
  /** By spend: the call that asks for it, to be repeated when everything is calm again. */
  readonly #first = new Map<string, Call>();
  /** By spend: the generation that was proven to have failed. */
  readonly #failed = new Map<string, number>();

  constructor(stage: Stage, random: Random, { name, customerId }: { name: string; customerId: string }) {
    this.#stage = stage;
    this.random = random;
    this.plain = stage.plain;
    this.#name = name;
    this.stripeCustomer = `cus_${name}`;
    this.#customerId = customerId;
  }

  /** A spend of this customer. Amounts are in cents. */
  plan(
    spendClass: SpendClass,
    amountMax: number,
    kinds: readonly string[],
    more: { readonly isObligation?: boolean; readonly base?: string } = {},
  ): PlannedSpend {
    const id = `${this.#name}.${this.spends.length + 1}`;
    const spend = {
      id,
      spendClass,
      customerId: this.#customerId,
      billingPeriod: "2026-11",
      purpose: `faults:${id}`,
      currency: "usd",
      amountMax,
      kinds,
      isObligation: more.isObligation ?? false,
      ...(more.base === undefined ? {} : { base: more.base }),
    };
    this.spends.push(spend);
    return spend;
  }

  /** Metadata by which the ledgers know the spend, without the product. */
  mark(spend: PlannedSpend): { readonly metadata: { readonly faults_spend: string } } {
    return { metadata: { faults_spend: spend.id } };
  }

  /** Faults for some of the requests of a spend. The suffixes are those of its steps' keys. */
  async trouble(spend: PlannedSpend, suffixes: readonly string[], collection: string): Promise<void> {
    const { random } = this;
    if (random.chance(0.35)) return;
    for (let n = random.whole(1, 3); n > 0; n -= 1) {
      if (random.chance(0.2)) await this.#stage.fault(random, { path: collection }, true);
      else {
        const suffix = random.pick(suffixes);
        await this.#stage.fault(random, { key: `${keyOf(spend)}${suffix}` }, suffix !== "");
      }
    }
  }

  /** Several calls of one spend at the same time, in different processes. Resolves with all answers. */
  async together(spend: PlannedSpend, call: Call, times = this.random.whole(1, 3)): Promise<readonly Answer[]> {
    const { random } = this;
    const first = random.whole(0, this.#stage.workers - 1);
    const places = Array.from({ length: times }, (_, n) => {
      const aborts = call.call !== "spend" || random.chance(0.5);
      const abort = aborts && random.chance(0.06) ? { abortAfterMs: random.whole(1, 800) } : {};
      return { worker: (first + n) % this.#stage.workers, abort };
    });
    return await Promise.all(places.map(({ worker, abort }) => this.#once(spend, { ...call, ...abort }, worker)));
  }

  /** Asks for the spend, and until an id is known, a few times; undefined where it never is. */
  async until(spend: PlannedSpend, call: Call): Promise<string | undefined> {
    for (let round = 0; round < 3; round += 1) {
      const found = (await this.together(spend, call)).find((answer) => answer.kind === "ok");
      if (found?.kind === "ok") return found.id;
    }
    return undefined;
  }

  /** The last question, when nothing fails any more: the first call of every spend once again. */
  async end(): Promise<void> {
    for (const spend of this.spends) {
      const call = this.#first.get(spend.id);
      if (call !== undefined) await this.#once(spend, call, this.random.whole(0, this.#stage.workers - 1));
    }
  }

  async act(path: string, object: string, spend: PlannedSpend, body: object = {}): Promise<void> {
    await this.#stage.act(path, body, { spend: spend.id, object });
  }

  async #once(spend: PlannedSpend, call: Call, worker: number): Promise<Answer> {
    const { namesSpend, upTo, ...rest } = call;
    if (namesSpend !== false && !this.#first.has(spend.id)) {
      const { abortAfterMs: _, ...without } = call;
      this.#first.set(spend.id, without);
    }
    const { id, customerId, billingPeriod, purpose, currency } = spend;
    const failed = this.#failed.get(id);
    const spendOption = {
      customerId,
      billingPeriod,
      purpose,
      ...(upTo === undefined ? {} : { upTo: { amount: (upTo / 100).toFixed(2), currency } }),
      ...(failed === undefined ? {} : { retryAfterGeneration: failed }),
    };
    const answer = await this.#stage.ask(worker, {
      ...rest,
      spend: id,
      ...(namesSpend === false ? {} : { spendOption }),
    });
    // Only some come back for a new try; and none does in the end, when the first try is what is looked at.
    if (answer.kind === "error" && answer.retryAfterGeneration !== undefined && !this.#stage.isCalm) {
      if (this.random.chance(0.5)) this.#failed.set(id, answer.retryAfterGeneration);
    }
    return answer;
  }
}

function keyOf({ customerId, billingPeriod, purpose }: PlannedSpend): string {
  return createHash("sha256").update(`${customerId}:${billingPeriod}:${purpose}`).digest("hex").slice(0, 32);
}
