/** How many refusals are written down, per vault key. */
export interface RefusalBudget {
  /**
   * Whether this refusal is written down, and how many before it were not. A client in a loop must not fill the audit
   * with what it says already.
   */
  take(vaultKeyId: string): { readonly recorded: false } | { readonly recorded: true; readonly suppressed: number };
  /** What was not written down, by vault key, for a last event of each. Afterwards nothing is left. */
  rest(): ReadonlyMap<string, number>;
}

interface Account {
  /** When `left` was true. */
  atMs: number;
  left: number;
  suppressed: number;
}

/** `nowMs` is a clock that never goes back. In a second as many are written down as `perSecond`, and as many at once. */
export function createRefusalBudget(options: {
  readonly perSecond: number;
  readonly nowMs: () => number;
  readonly vaultKeysMax?: number;
}): RefusalBudget {
  const { perSecond, nowMs, vaultKeysMax = 10_000 } = options;
  const accounts = new Map<string, Account>();

  const accountOf = (vaultKeyId: string): Account => {
    const now = nowMs();
    const account = accounts.get(vaultKeyId) ?? { atMs: now, left: perSecond, suppressed: 0 };
    account.left = Math.min(perSecond, account.left + (Math.max(0, now - account.atMs) * perSecond) / 1000);
    account.atMs = now;
    // The one that was asked for last stands last.
    accounts.delete(vaultKeyId);
    accounts.set(vaultKeyId, account);
    return account;
  };
  const dropIdle = (): void => {
    if (accounts.size <= vaultKeysMax) return;
    // One that owes a count is dropped last: the count would be lost.
    const idle = [...accounts].find(([, { suppressed }]) => suppressed === 0)?.[0] ?? accounts.keys().next().value;
    if (idle !== undefined) accounts.delete(idle);
  };

  return {
    take(vaultKeyId) {
      const account = accountOf(vaultKeyId);
      dropIdle();
      if (account.left < 1) {
        account.suppressed += 1;
        return { recorded: false };
      }
      account.left -= 1;
      const { suppressed } = account;
      account.suppressed = 0;
      return { recorded: true, suppressed };
    },
    rest() {
      const left = [...accounts].filter(([, { suppressed }]) => suppressed > 0);
      accounts.clear();
      return new Map(left.map(([vaultKeyId, { suppressed }]) => [vaultKeyId, suppressed]));
    },
  };
}
