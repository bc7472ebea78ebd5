import type { ServiceImpl } from "@connectrpc/connect";
import type { AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import { invalidField } from "../domain/errors.ts";
import type { Database } from "../store/database.ts";
import type { Authorization } from "../domain/spend.ts";
import * as store from "../store/spend.ts";
import { principalOf } from "./auth.ts";
import { authorizationMessage, stateFrom } from "./convert.ts";
import { cutPage, decodePageToken, pageSize } from "./page.ts";

/** What an operator reads of authorizations. */
export function authorizationMethods(database: Database): Pick<ServiceImpl<typeof AdminService>, "listAuthorizations"> {
  return {
    async listAuthorizations(request, context) {
      const { workspace } = principalOf(context.values);
      const size = pageSize(request.pageSize);
      const rows = await store.listAuthorizations(database, workspace, {
        states: request.states.map(stateFrom),
        customerId: request.customerId || undefined,
        billingPeriod: request.billingPeriod || undefined,
        vaultKeyId: request.vaultKey.replace(/^vaultKeys\//, "") || undefined,
        after: authorizationPositionOf("authorizations", request.pageToken),
        limit: size + 1,
      });
      const page = cutPage("authorizations", rows, size, authorizationPosition);
      return { authorizations: page.rows.map(authorizationMessage), nextPageToken: page.nextPageToken };
    },
  };
}

/** Where a page of authorizations by grant time ends. */
export function authorizationPosition(last: Authorization): readonly string[] {
  return [`${last.grantTime}`, last.spendKey, `${last.generation}`];
}

/** The authorization after which a page begins. Throws INVALID_FIELD. */
export function authorizationPositionOf(listing: string, token: string): store.AuthorizationFilter["after"] {
  const parts = decodePageToken(listing, token, 3);
  if (parts === undefined) return undefined;
  const [time = "", spendKey = "", generation = ""] = parts;
  if (!/^\d{1,18}$/.test(time) || !/^[0-9a-f]{36}$/.test(spendKey) || !/^\d{1,7}$/.test(generation)) {
    throw invalidField("page_token", "is not one of ours; take next_page_token of the page before.");
  }
  return { grantTime: BigInt(time), spendKey, generation: Number(generation) };
}
