/** The simulator's time: the machine's clock plus an offset that tests move, so that a day can pass in a millisecond. */
export class SimulatorClock {
  #offsetMs = 0;

  /** Milliseconds since the epoch. */
  now(): number {
    return Date.now() + this.#offsetMs;
  }

  /** Whole seconds since the epoch, the unit of every `created` field. */
  seconds(): number {
    return Math.floor(this.now() / 1000);
  }

  advance(ms: number): void {
    this.#offsetMs += ms;
  }

  /** Makes it `epochMs` now; time keeps running from there. */
  setTime(epochMs: number): void {
    this.#offsetMs = epochMs - Date.now();
  }
}
