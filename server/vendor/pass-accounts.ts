import type { Database } from "../store/database.ts";
import { vendorAccountOwner } from "../store/vendor-credential.ts";

/** The accounts of a vendor as a workspace sees them. */
export interface PassAccounts {
  /** Empty for the credential's own account, which may be named by its id too; else the account itself. */
  of(account: string): string;
  /** A connected account that another workspace has taken: it is that one's alone, and is not read from here. */
  isForeign(account: string): Promise<boolean>;
}

export function createPassAccounts(
  database: Database,
  { workspace, vendor, own }: { readonly workspace: string; readonly vendor: string; readonly own: string },
): PassAccounts {
  const of = (account: string): string => (account === own ? "" : account);
  return {
    of,
    async isForeign(account) {
      if (of(account) === "") return false;
      const owner = await vendorAccountOwner(database, vendor, account);
      return owner !== undefined && owner !== workspace;
    },
  };
}

/** Why an account of another workspace is not read. */
export const foreignAccount = "the account belongs to another workspace";
