import { create } from "@bufbuild/protobuf";
import type { HandlerContext, ServiceImpl } from "@connectrpc/connect";
import {
  IncreaseHoldResponseSchema,
  type IncreaseHoldRequest,
  type IncreaseHoldResponse,
  type SpendControlService,
} from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { HoldfastError } from "../domain/errors.ts";
import type { Money } from "../domain/money.ts";
import { type Authorization, type IncreaseDecision, parseAuthorizationName } from "../domain/spend.ts";
import type { Database } from "../store/database.ts";
import { increaseHold } from "../store/increase-hold.ts";
import { principalOf } from "./auth.ts";
import { authorizationMessage, dispositionOf, leaseFenceFrom, moneyFrom } from "./convert.ts";
import { denialOf } from "./denial.ts";
import { requireSettled } from "./settle.ts";
import { currentTraceId } from "./trace.ts";

/** Raising a hold before the vendor object is raised. */
export function increaseHoldMethod(database: Database): Pick<ServiceImpl<typeof SpendControlService>, "increaseHold"> {
  return {
    async increaseHold(request: IncreaseHoldRequest, context: HandlerContext) {
      const { workspace, id } = principalOf(context.values);
      const amount = moneyFrom(request.amount, "amount", false);
      const decision = await increaseHold(database, workspace, {
        vaultKeyId: id,
        authorization: parseAuthorizationName(request.authorization, "authorization"),
        amount,
        attemptId: request.attemptId,
        fence: request.leaseFence && leaseFenceFrom(request.leaseFence),
        traceId: currentTraceId() ?? "",
      });
      return responseTo(amount, decision);
    },
  };
}

function responseTo(amount: Money, decision: IncreaseDecision): IncreaseHoldResponse {
  const { rule } = decision;
  if (decision.errorReason === "SPEND_MISMATCH") throw otherCurrency(amount, decision.authorization);
  const authorization = requireSettled(decision);
  const answer = { authorization: authorizationMessage(authorization) };
  if (rule === undefined) {
    return create(IncreaseHoldResponseSchema, { ...answer, disposition: dispositionOf.GRANTED });
  }
  const asked = { ...authorization, amount, more: amount.micros - authorization.held };
  const denial = denialOf(asked, rule, decision);
  return create(IncreaseHoldResponseSchema, { ...answer, disposition: dispositionOf.DENIED, denial });
}

function otherCurrency(amount: Money, authorization: Authorization | undefined): HoldfastError {
  return new HoldfastError(
    "SPEND_MISMATCH",
    `The spend is authorized in ${authorization?.amount.currency ?? "another currency"}, not in ${amount.currency}. Give the new total in its currency.`,
    { metadata: { fields: "amount.currency" } },
  );
}
