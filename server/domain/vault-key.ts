import type { Money } from "./money.ts";

export type VaultKeyState = "ACTIVE" | "REVOKED";

/** The policy of a vault key. An undefined list pins nothing; an empty endpoint list denies every endpoint. */
export interface NewVaultKey {
  readonly vaultKeyId: string;
  readonly vendor: string;
  readonly allowedEndpoints: readonly string[];
  readonly billingPeriods: readonly string[] | undefined;
  readonly purposes: readonly string[] | undefined;
  readonly customers: readonly string[] | undefined;
  readonly maxPerSpend: Money | undefined;
  /** Microseconds since 1970. */
  readonly expireTime: bigint | undefined;
}

export interface VaultKey extends NewVaultKey {
  readonly state: VaultKeyState;
  readonly createTime: bigint;
  readonly revokeTime: bigint | undefined;
}
