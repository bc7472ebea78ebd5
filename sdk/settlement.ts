import { VoidEvidence } from "@holdfast/api/holdfast/v1/spend_pb";
import type { Background } from "./background.ts";
import type { CallContext } from "./context.ts";
import type { ControlPlane } from "./control-plane.ts";
import type { DecimalMoney } from "./money.ts";
import { isRetryable, type RpcFailure, toRpcFailure } from "./rpc-failure.ts";
import type { Runtime } from "./runtime.ts";
import type { Grant } from "./spend.ts";
import { inSpan } from "./telemetry.ts";
import { ATTRIBUTES } from "./telemetry-attributes.ts";

/** Why no charge exists. */
export type NoCharge =
  | { readonly evidence: "never_sent" }
  | { readonly evidence: "vendor_refused"; readonly status: number; readonly replayed: boolean }
  /** Turned away in front of being executed: 401, 403 or a rate limit. The next call may try again at once. */
  | { readonly evidence: "not_executed"; readonly status: number }
  | { readonly evidence: "tombstone"; readonly vendorReference: string };

/** What Bind answered. */
export type BindResult =
  | { readonly kind: "bound" }
  | { readonly kind: "other_bound"; readonly vendorReference: string }
  /** The attempt does not hold the authorization any more; ask again. */
  | { readonly kind: "superseded" };

/** Whose authorization it is. A tombstone is a fact about the object, so it needs no attempt. */
export type SettlingAttempt = Pick<Grant, "authorization" | "attemptId"> & Partial<Pick<Grant, "lease">>;

/** Tells the control plane how an attempt ended. Nothing here ever hides the vendor's answer from the caller. */
export interface Settlements {
  /** Never rejects: what cannot be delivered now is repeated in the background. */
  commit(
    authorization: string,
    charged: { money: DecimalMoney; vendorReference: string; attemptId?: string },
  ): Promise<void>;
  /**
   * Never rejects. Resolves to true only if the server has accepted the evidence. False: it did not, and the spend is in
   * doubt there, or it has not answered yet, and the void is repeated in the background.
   */
  void(attempt: SettlingAttempt, proof: NoCharge): Promise<boolean>;
  /** Never rejects. */
  reportUnknown(grant: Grant, reason: string): Promise<void>;
  /** Rejects with an RpcFailure. */
  bind(grant: Grant, vendorReference: string, vendorState?: string): Promise<BindResult>;
}

export interface SettlementSettings {
  readonly controlPlane: ControlPlane;
  readonly runtime: Runtime;
  readonly background: Background;
  readonly context: CallContext;
  readonly onBackgroundError: (error: unknown) => void;
  readonly timeoutMs: number;
}

// The caller waits for a settlement only so long before it gets the vendor's answer.
const FOREGROUND_MAX_MS = 5_000;

const SUPERSEDED = new Set(["ATTEMPT_SUPERSEDED", "STATE_NOT_ALLOWED", "ALREADY_VOIDED", "ALREADY_COMMITTED"]);

export function createSettlements(settings: SettlementSettings): Settlements {
  const { controlPlane, runtime } = settings;
  const deadline = (): number => runtime.clock.now() + Math.min(settings.timeoutMs, FOREGROUND_MAX_MS);

  /** True if the server has taken it; false if it refused, or if it is still on its way in the background. */
  async function deliver(what: string, task: () => Promise<unknown>): Promise<boolean> {
    try {
      await task();
      return true;
    } catch (error) {
      const failure = toRpcFailure(error);
      if (isRetryable(failure)) {
        settings.background.add(what, task);
        return false;
      }
      if (failure.reason !== "EVIDENCE_INSUFFICIENT") settings.onBackgroundError(failure);
      return false;
    }
  }

  return {
    async commit(authorization, charged) {
      const request = {
        authorization,
        amount: { currency: charged.money.currency, amount: charged.money.amount },
        vendorReference: charged.vendorReference,
        attemptId: charged.attemptId ?? "",
      };
      const attributes = {
        [ATTRIBUTES.authorization]: authorization,
        [ATTRIBUTES.vendorReference]: charged.vendorReference,
      };
      const lease = settings.context.lease.getStore();
      await inSpan("holdfast.commit", attributes, () =>
        deliver(`the commit of ${authorization}`, async () => {
          await controlPlane.commit(request, deadline());
          lease?.settled(authorization);
        }),
      );
    },
    void: (grant, proof) =>
      deliver(`the void of ${grant.authorization}`, async () => {
        await controlPlane.void(voidRequest(grant, proof), deadline());
        // What was not sent is left for a later run; what the vendor refused is at its end.
        if (proof.evidence !== "never_sent" && proof.evidence !== "not_executed")
          grant.lease?.settled(grant.authorization);
      }),
    async reportUnknown(grant, reason) {
      const { authorization, attemptId } = grant;
      const printable = reason.replaceAll(/[^ -~]/g, " ").slice(0, 500);
      await deliver(`the report about ${authorization}`, () =>
        controlPlane.reportUnknown({ authorization, attemptId, reason: printable }, deadline()),
      );
    },
    async bind(grant, vendorReference, vendorState = "") {
      const { authorization, attemptId } = grant;
      try {
        await controlPlane.bind({ authorization, attemptId, vendorReference, vendorState }, deadline());
        return { kind: "bound" };
      } catch (error) {
        return bindRefusal(toRpcFailure(error), vendorReference);
      }
    },
  };
}

function bindRefusal(failure: RpcFailure, own: string): BindResult {
  if (failure.reason === "ALREADY_BOUND") {
    const winner = failure.metadata["vendor_reference"] ?? "";
    if (winner === own) return { kind: "bound" };
    return winner === "" ? { kind: "superseded" } : { kind: "other_bound", vendorReference: winner };
  }
  if (SUPERSEDED.has(failure.reason)) return { kind: "superseded" };
  throw failure;
}

function voidRequest(grant: SettlingAttempt, proof: NoCharge): Parameters<ControlPlane["void"]>[0] {
  const { authorization, attemptId } = grant;
  switch (proof.evidence) {
    case "never_sent":
      return { authorization, attemptId, evidence: VoidEvidence.NEVER_SENT };
    case "vendor_refused":
      return {
        authorization,
        attemptId,
        evidence: VoidEvidence.VENDOR_REFUSED,
        vendorStatus: proof.status,
        vendorReplayed: proof.replayed,
      };
    case "not_executed":
      return { authorization, attemptId, evidence: VoidEvidence.NOT_EXECUTED, vendorStatus: proof.status };
    case "tombstone":
      return { authorization, attemptId, evidence: VoidEvidence.TOMBSTONE, vendorReference: proof.vendorReference };
  }
}
