import type { Micros, Money } from "./money.ts";
import type { Direction } from "./spend.ts";

export type CapWindow = "LIFETIME" | "DAY" | "BILLING_PERIOD";

/** Which spends a cap counts; every field that is set must match. */
export interface CapScope {
  readonly vaultKeyId: string | undefined;
  readonly vendor: string | undefined;
  readonly endpoint: string | undefined;
  readonly customerId: string | undefined;
  readonly purpose: string | undefined;
}

export interface NewCap {
  readonly capId: string;
  readonly limit: Money;
  readonly window: CapWindow;
  /** IANA zone of a DAY window. */
  readonly timeZone: string;
  readonly scope: CapScope;
  readonly perCustomer: boolean;
  readonly direction: Direction;
  /** A refund of a charge that the cap counted gives its headroom back. Only for SPEND. */
  readonly refundsRestoreHeadroom: boolean;
  readonly maxPerSpend: Micros | undefined;
}

/** Times are microseconds since 1970 on the database clock. */
export interface Cap extends NewCap {
  readonly version: bigint;
  readonly createTime: bigint;
  readonly updateTime: bigint;
}

/** The counter of one cap in one window; zero if nothing was ever held in it. */
export interface CapUsage {
  readonly window: string;
  readonly customerId: string;
  readonly committed: Micros;
  readonly held: Micros;
  readonly windowEnd: bigint | undefined;
}
