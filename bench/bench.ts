/** How much of a bench is run. Times are never limits: every step is a count of calls. */
export interface BenchOptions {
  /** A few calls of everything: shows that the bench works, and no figure worth reading. */
  readonly quick: boolean;
  /** A folder for CPU profiles of the servers; none are taken without it. */
  readonly profileFolder: string | undefined;
  /** Another checkout of this repository, whose server runs as one more contender. */
  readonly against: string | undefined;
  /** Says what is being done, for whoever waits. */
  readonly progress: (text: string) => void;
}

export interface BenchResult {
  /** Figures of this machine in this minute, for a person; only the ratios can be compared. */
  readonly table: readonly string[];
  /** Two contenders of one run against each other, by a name that stays. */
  readonly ratios: Readonly<Record<string, number>>;
  /** Names of ratios that this machine cannot give, because a contender is not installed. */
  readonly absent?: readonly string[];
  /** Speed of this checkout over that of the other one, by what was done; more is faster. */
  readonly against?: Readonly<Record<string, number>>;
}

/** Contenders run in turn within one run, so that what disturbs the machine disturbs all of them. */
export interface Bench {
  /** One sentence for `--help`. */
  readonly about: string;
  /** The names of the ratios that it gives, each of which also picks it on the command line. */
  readonly gives: readonly string[];
  run(options: BenchOptions): Promise<BenchResult>;
}
