export type LeaseAnswer = "ACQUIRED" | "HELD_BY_OTHER" | "ALREADY_COMPLETED";

/** The right to run a named billing job for a time. Times are microseconds since 1970 on the database clock. */
export interface BillingLease {
  readonly lease: string;
  readonly billingPeriod: string;
  readonly holderId: string;
  readonly fencingToken: bigint;
  readonly expireTime: bigint;
  readonly completed: boolean;
}

export interface LeaseCommand {
  readonly vaultKeyId: string;
  readonly lease: string;
  readonly billingPeriod: string;
  readonly holderId: string;
  readonly traceId: string;
}
