/** What a kill switch stops. */
export type KillSwitchTarget =
  | { readonly kind: "WORKSPACE" }
  | { readonly kind: "VENDOR"; readonly vendor: string }
  | { readonly kind: "CUSTOMER"; readonly customerId: string };

/** Times are microseconds since 1970 on the database clock; `engagedBy` and `releasedBy` are ids of operators. */
export interface KillSwitch {
  /** 32 hex digits. */
  readonly killSwitchId: string;
  readonly target: KillSwitchTarget;
  readonly reason: string;
  readonly engageTime: bigint;
  readonly engagedBy: string;
  readonly release: { readonly time: bigint; readonly by: string; readonly reason: string } | undefined;
}

/** The kill switch that denied a spend. */
export interface EngagedKillSwitch {
  readonly killSwitchId: string;
  readonly targetKind: KillSwitchTarget["kind"];
}
