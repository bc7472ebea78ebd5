import type { Look as LookMessage } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { invalidField } from "../domain/errors.ts";
import type { Look } from "../domain/spend.ts";

const pattern = /^look-([0-9]{1,18})$/;

/** Says when what is looked for was listed, in microseconds since 1970. Opaque, so that nobody puts a clock of his in. */
export function encodeLookToken(time: bigint): string {
  return Buffer.from(`look-${time}`, "utf8").toString("base64url");
}

/** The look of a request. Throws INVALID_FIELD for a token that is not ours, and where one is needed and missing. */
export function lookFrom(message: LookMessage | undefined, isNeeded: boolean): { readonly look?: Look } {
  if (message === undefined) {
    if (!isNeeded) return {};
    throw invalidField("look", "is required with absence: send the look_token of the list that was looked through.");
  }
  const time = pattern.exec(Buffer.from(message.token, "base64url").toString("utf8"))?.[1];
  if (time === undefined) {
    throw invalidField("look.token", "is not one of ours; take look_token of ListUnsettledAuthorizations.");
  }
  return { look: { time: BigInt(time), account: message.vendorAccountId } };
}
