export interface TurnsOptions<Job> {
  /** How many are under way at most. */
  readonly max: number;
  /** Jobs of one key never run at the same time. */
  readonly keyOf: (job: Job) => string;
  /** Ends soon after `yields` answers true; what is left is offered again. Must not reject. */
  readonly run: (job: Job, yields: () => boolean) => Promise<void>;
}

/** A bound number of jobs at a time, each of which gives way to those that wait, in the order in which they came. */
export interface Turns<Job> {
  /** Everything that has something to do now. What waits already keeps its place; what is not offered any more loses it. */
  offer(jobs: readonly Job[]): void;
  /** Starts nothing more, and waits for what is under way. */
  stop(): Promise<void>;
}

export function createTurns<Job>({ max, keyOf, run }: TurnsOptions<Job>): Turns<Job> {
  const running = new Map<string, Promise<void>>();
  let waiting = new Map<string, Job>();
  let stopped = false;
  // One that waits for its own turn to end keeps nobody else waiting.
  const yields = (): boolean => [...waiting.keys()].some((key) => !running.has(key));

  function next(): void {
    for (const [key, job] of waiting) {
      if (stopped || running.size >= max) return;
      if (running.has(key)) continue;
      waiting.delete(key);
      const ended = run(job, yields).finally(() => {
        running.delete(key);
        next();
      });
      running.set(key, ended);
    }
  }

  return {
    offer(jobs) {
      const offered = new Map(jobs.map((job) => [keyOf(job), job]));
      const kept = [...waiting.keys()].filter((key) => offered.has(key));
      const order = new Set([...kept, ...[...offered.keys()].filter((key) => !running.has(key))]);
      waiting = new Map([...order].flatMap((key) => (offered.has(key) ? [[key, offered.get(key) as Job]] : [])));
      next();
    },
    async stop() {
      stopped = true;
      await Promise.all(running.values());
    },
  };
}
