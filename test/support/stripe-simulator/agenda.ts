import type { Context } from "./state.ts";

/** Something that Stripe does by itself at a time, on behalf of nobody's request. */
interface Entry {
  readonly at: number;
  readonly account: string;
  readonly run: (context: Context) => void;
}

/**
 * What Stripe will do later, without being asked: finalize and charge an invoice, renew a subscription, expire a
 * session. It happens only when a test moves the clock past it, in order of time. What is done then looks at the object
 * again: nothing is ever taken off.
 */
export class Agenda {
  #entries: Entry[] = [];

  /** `at` is milliseconds on the simulator's clock. */
  add(at: number, account: string, run: (context: Context) => void): void {
    this.#entries.push({ at, account, run });
  }

  /** Takes out the earliest entry that is due at `now`; of those at the same time, the one that was added first. */
  takeDue(now: number): Entry | undefined {
    let due: Entry | undefined;
    for (const entry of this.#entries) {
      if (entry.at <= now && (due === undefined || entry.at < due.at)) due = entry;
    }
    if (due !== undefined) this.#entries = this.#entries.filter((entry) => entry !== due);
    return due;
  }
}
