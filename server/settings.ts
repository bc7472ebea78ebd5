export type Environment = Readonly<Record<string, string | undefined>>;

/** Reads variables one by one, remembers which it was asked for, and collects what is wrong with them. */
export class Settings {
  readonly problems: string[] = [];
  readonly #env: Environment;
  readonly #known = new Set<string>();

  constructor(env: Environment) {
    this.#env = env;
  }

  /** An empty variable counts as unset: compose files cannot leave one out. */
  text(name: string): string | undefined {
    this.#known.add(name);
    const value = this.#env[name]?.trim();
    return value === "" ? undefined : value;
  }

  integer(name: string, range: { readonly fallback: number; readonly min: number; readonly max: number }): number {
    const value = this.text(name);
    if (value === undefined) return range.fallback;
    const number = /^\d{1,12}$/.test(value) ? Number(value) : Number.NaN;
    if (number >= range.min && number <= range.max) return number;
    this.problems.push(
      `${name} is "${value}"; set a whole number from ${range.min} to ${range.max}, or unset it for ${range.fallback}.`,
    );
    return range.fallback;
  }

  oneOf<T extends string>(name: string, choices: readonly T[], fallback: T): T {
    const value = this.text(name);
    if (value === undefined) return fallback;
    const choice = choices.find((candidate) => candidate === value);
    if (choice !== undefined) return choice;
    this.problems.push(`${name} is "${value}"; set one of ${choices.join(", ")}, or unset it for ${fallback}.`);
    return fallback;
  }

  matching(
    name: string,
    rule: { readonly pattern: RegExp; readonly fallback: string; readonly remedy: string },
  ): string {
    const value = this.text(name);
    if (value === undefined || rule.pattern.test(value)) return value ?? rule.fallback;
    this.problems.push(`${name} is "${value}"; ${rule.remedy}`);
    return rule.fallback;
  }

  /** A setting that is misspelt would otherwise be ignored, and its default may be the unsafe choice. */
  refuseUnknown(): void {
    // Where the terminal finds a server: commands of both kinds are given in one shell.
    this.#known.add("HOLDFAST_URL");
    for (const name of Object.keys(this.#env).toSorted()) {
      if (name.startsWith("HOLDFAST_") && !this.#known.has(name)) {
        this.problems.push(`${name} is not a setting; correct its name or unset it. Known: ${this.#knownNames()}.`);
      }
    }
  }

  #knownNames(): string {
    return [...this.#known].filter((name) => name.startsWith("HOLDFAST_")).join(", ");
  }
}
