export type OperatorRole = "OPERATOR" | "AUDITOR";

/** A person or a program that calls AdminService. Times are microseconds since 1970 on the database clock. */
export interface Operator {
  readonly operatorId: string;
  readonly role: OperatorRole;
  readonly createTime: bigint;
  readonly rotateTime: bigint | undefined;
  /** Until when the secret before the last rotation opens; undefined if it does not any more. */
  readonly previousSecretExpireTime: bigint | undefined;
  readonly revokeTime: bigint | undefined;
  readonly revokeReason: string;
}
