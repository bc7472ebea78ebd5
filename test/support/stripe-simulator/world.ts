import { Agenda } from "./agenda.ts";
import { SimulatorClock } from "./clock.ts";
import { StripeRefusal } from "./errors.ts";
import { Faults } from "./faults.ts";
import { IdempotencyKeys } from "./idempotency.ts";
import { MovementLedger } from "./movements.ts";
import { RequestLog } from "./request-log.ts";
import { type Account, type Context, type ReadLag, newAccount } from "./state.ts";

/** The account of a secret that no table maps to another. */
export const defaultAccount = "acct_simulator";

export interface WorldOptions {
  readonly movementsFile: string;
  /** How long a key is remembered; Stripe promises at least 24 h and no more than that. */
  readonly keyRetentionMs?: number;
  /** Real milliseconds that every execution takes, during which its key is in use; 0 unless told. */
  readonly executionMs?: number;
  readonly lag?: Partial<ReadLag>;
  /** Secret key → account. When given, every other secret is refused with 401. */
  readonly secrets?: Readonly<Record<string, string>>;
}

/** Everything the simulator remembers. */
export class World {
  readonly clock = new SimulatorClock();
  readonly agenda = new Agenda();
  readonly faults = new Faults();
  readonly log = new RequestLog();
  readonly ledger: MovementLedger;
  readonly keys: IdempotencyKeys;
  readonly lag: ReadLag;
  readonly executionMs: number;
  /** Objects that an execution uses right now. */
  readonly locks = new Set<string>();
  readonly #secrets: Readonly<Record<string, string>> | undefined;
  readonly #accounts = new Map<string, Account>();
  readonly #closing = new AbortController();

  constructor(options: WorldOptions) {
    this.ledger = new MovementLedger(options.movementsFile);
    this.keys = new IdempotencyKeys(this.clock, options.keyRetentionMs ?? 24 * 60 * 60 * 1000);
    this.executionMs = options.executionMs ?? 0;
    this.lag = { search: 60_000, lists: 0, events: 0, ...options.lag };
    this.#secrets = options.secrets;
  }

  /** Aborts when the simulator closes: nothing that waits then may still execute. */
  get closing(): AbortSignal {
    return this.#closing.signal;
  }

  close(): void {
    this.#closing.abort();
  }

  account(id: string): Account {
    const present = this.#accounts.get(id);
    if (present !== undefined) return present;
    const account = newAccount(id);
    this.#accounts.set(id, account);
    return account;
  }

  /** The account a secret key opens; null when it opens none. */
  accountOf(secret: string): string | null {
    if (this.#secrets !== undefined) return this.#secrets[secret] ?? null;
    return /^(sk|rk)_[A-Za-z0-9_]+$/.test(secret) ? defaultAccount : null;
  }

  /** Lets time pass until `epochMs`, and Stripe do on the way what it does by itself. Going back in time undoes nothing. */
  moveClockTo(epochMs: number): void {
    for (let due = this.agenda.takeDue(epochMs); due !== undefined; due = this.agenda.takeDue(epochMs)) {
      this.clock.setTime(due.at);
      try {
        due.run(this.contextOf(due.account, "", null));
      } catch (error) {
        // A refusal of what nobody asked for is told to nobody.
        if (!(error instanceof StripeRefusal)) throw error;
      }
    }
    this.clock.setTime(epochMs);
  }

  /** What an endpoint needs when no API request stands behind the call. */
  contextOf(accountId: string, objectId: string, origin: Context["origin"]): Context {
    return {
      account: this.account(accountId),
      params: {},
      ids: [objectId],
      origin,
      clock: this.clock,
      agenda: this.agenda,
      ledger: this.ledger,
      lag: this.lag,
    };
  }
}
