import type { Money } from "./money.ts";
import type { ProxyPolicy } from "./proxy-policy.ts";

export type VaultKeyState = "ACTIVE" | "SUSPENDED" | "REVOKED";

/** What of a vault key may change. An undefined list pins nothing; an empty endpoint list denies every endpoint. */
export interface VaultKeyPolicy {
  readonly allowedEndpoints: readonly string[];
  readonly billingPeriods: readonly string[] | undefined;
  readonly purposes: readonly string[] | undefined;
  readonly customers: readonly string[] | undefined;
  readonly maxPerSpend: Money | undefined;
  /** Microseconds since 1970. */
  readonly expireTime: bigint | undefined;
  /** Ids of caps that count this key's spends beside those whose scope matches. */
  readonly attachedCaps: readonly string[];
  readonly labels: Readonly<Record<string, string>>;
  /** Undefined: `defaultProxyPolicy`. */
  readonly proxy?: ProxyPolicy | undefined;
}

export interface NewVaultKey extends VaultKeyPolicy {
  readonly vaultKeyId: string;
  readonly vendor: string;
}

/** Times are microseconds since 1970 on the database clock. */
export interface VaultKey extends NewVaultKey {
  readonly state: VaultKeyState;
  readonly version: bigint;
  readonly createTime: bigint;
  readonly updateTime: bigint;
  readonly suspendTime: bigint | undefined;
  readonly revokeTime: bigint | undefined;
  /** Why it is suspended or revoked. */
  readonly reason: string;
  /** Until when the secret before the last rotation opens; undefined if it does not any more. */
  readonly previousSecretExpireTime: bigint | undefined;
  /** When it was last asked to grant something, to the minute. */
  readonly lastUseTime: bigint | undefined;
}
