/** A vendor's own key as it is known without its secret. Times are microseconds since 1970 on the database clock. */
export interface VendorCredential {
  readonly vendorCredentialId: string;
  readonly vendor: string;
  /** The vendor's id of the account. */
  readonly vendorAccountId: string;
  readonly maskedSecret: string;
  readonly createTime: bigint;
  readonly rotateTime: bigint | undefined;
  readonly lastAcceptedTime: bigint | undefined;
  readonly lastRefusedTime: bigint | undefined;
}

/** "live" or "test"; empty where the secret does not say so. */
export function modeOf({ maskedSecret }: Pick<VendorCredential, "maskedSecret">): string {
  return /_(live|test)_/.exec(maskedSecret)?.[1] ?? "";
}

/** Where a credential looks, for example "acct_1/live": one account shows in each mode only what was charged in it. */
export function lookedAccount(credential: Pick<VendorCredential, "vendorAccountId" | "maskedSecret">): string {
  return `${credential.vendorAccountId}/${modeOf(credential)}`;
}

/** What a vendor said to one harmless read with a secret. */
export type CredentialTrial =
  | { readonly kind: "accepted"; readonly vendorAccountId: string }
  /** The vendor knows the secret not, or not for this. */
  | { readonly kind: "refused"; readonly message: string }
  /** No answer, or none that says anything about the secret. */
  | { readonly kind: "unknown"; readonly message: string };

const stripeSecret = /^((?:sk|rk)_(?:org_)?(?:test|live)_)[A-Za-z0-9_]{12,}([A-Za-z0-9]{4})$/;

/** The kind of a secret and its last four characters, or undefined if it is no secret of the vendor's. */
export function maskSecret(vendor: string, secret: string): string | undefined {
  const match = vendor === "stripe" ? stripeSecret.exec(secret) : null;
  return match === null ? undefined : `${match[1]}…${match[2]}`;
}
