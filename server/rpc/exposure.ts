import type { Exposure } from "../store/exposure.ts";
import { authorizationMessage } from "./convert.ts";

/** The most open authorizations that one answer lists. */
export const exposureMax = 1000;

/** What was granted before a switch, in the fields that every answer to one has. */
export function exposureFields(exposure: Exposure) {
  return {
    openAuthorizations: exposure.authorizations.map(authorizationMessage),
    openAuthorizationCount: exposure.count,
  };
}
