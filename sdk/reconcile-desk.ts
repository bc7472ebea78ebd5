import { timestampMs } from "@bufbuild/protobuf/wkt";
import {
  type Authorization,
  AuthorizationState,
  ReconciliationFinding,
  VoidEvidence,
} from "@holdfast/api/holdfast/v1/spend_pb";
import type { Comparable } from "./compare.ts";
import type { ControlPlane } from "./control-plane.ts";
import { toDecimalMoney } from "./convert.ts";
import { type ReconcileDesk, type Refusal, REFUSALS } from "./reconcile-core.ts";
import { translateFailure } from "./refusal.ts";
import { toRpcFailure } from "./rpc-failure.ts";
import type { Runtime } from "./runtime.ts";

const NAME_PREFIX = "authorizations/";

/** An authorization that was listed to be looked for. */
export interface ListedRow extends Comparable {
  /** Says when that was, on the control plane's clock. */
  readonly lookToken: string;
}

/** An authorization as the API answers it, for a reconciliation. */
export function comparable(authorization: Authorization): Comparable {
  const { heldAmount, spend, grantTime, reconciliation, committedAmount } = authorization;
  return {
    mark: authorization.name.slice(NAME_PREFIX.length),
    endpoint: authorization.endpoint,
    vendorAccount: authorization.vendorAccount,
    vendorReference: authorization.vendorReference,
    idempotencyKey: authorization.idempotencyKey,
    held: toDecimalMoney(heldAmount) ?? toDecimalMoney(spend?.amount),
    grantedAtS: grantTime === undefined ? Number.POSITIVE_INFINITY : timestampMs(grantTime) / 1000,
    wasAbsent: reconciliation?.absentSinceTime !== undefined,
    state: stateOf(authorization),
    committed: toDecimalMoney(committedAmount),
  };
}

function stateOf({ state, vendorState }: Authorization): Comparable["state"] {
  switch (state) {
    case AuthorizationState.COMMITTED:
      return "COMMITTED";
    case AuthorizationState.VOIDED:
      return "VOIDED";
    case AuthorizationState.IN_DOUBT:
      return "IN_DOUBT";
    default:
      return vendorState === "" ? "RUNNING" : "FOLLOWED";
  }
}

export interface DeskSettings {
  readonly controlPlane: ControlPlane;
  readonly runtime: Runtime;
  readonly timeoutMs: number;
}

/**
 * Settles through the API, with the vault key. `account`: the account that is looked at, as Stripe shows it; empty if it
 * does not.
 */
export function createDesk(settings: DeskSettings, account: string): ReconcileDesk<ListedRow> {
  const { controlPlane, runtime, timeoutMs } = settings;
  const lookOf = ({ lookToken: token }: ListedRow) => ({ look: { token, vendorAccountId: account } });
  const deadline = () => runtime.clock.now() + timeoutMs;
  const answered = async (mark: string, call: (authorization: string) => Promise<unknown>): Promise<Refusal> => {
    const authorization = `${NAME_PREFIX}${mark}`;
    try {
      await call(authorization);
      return undefined;
    } catch (error) {
      const { reason } = toRpcFailure(error);
      if (REFUSALS.has(reason)) return reason;
      throw translateFailure(error, "a reconciliation", { authorization });
    }
  };
  return {
    commit: ({ mark }, { currency, amount }, vendorReference) =>
      answered(mark, (authorization) =>
        controlPlane.commit({ authorization, amount: { currency, amount }, vendorReference }, deadline()),
      ),
    void: (row, proof) =>
      answered(row.mark, (authorization) =>
        controlPlane.void(
          { ...proof, ...lookOf(row), authorization, evidence: VoidEvidence[proof.evidence] },
          deadline(),
        ),
      ),
    report: (row, { finding, ...rest }) =>
      answered(row.mark, (authorization) =>
        controlPlane.reportReconciliation(
          { ...rest, ...lookOf(row), authorization, finding: ReconciliationFinding[finding] },
          deadline(),
        ),
      ),
  };
}
