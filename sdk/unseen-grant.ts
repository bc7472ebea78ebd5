import { Code } from "@connectrpc/connect";
import { AuthorizationState, type Authorization, VoidEvidence } from "@holdfast/api/holdfast/v1/spend_pb";
import type { Background } from "./background.ts";
import type { ControlPlane } from "./control-plane.ts";
import type { SpendOption } from "./context.ts";
import { RpcFailure, toRpcFailure } from "./rpc-failure.ts";
import type { Runtime } from "./runtime.ts";
import { authorizationName } from "./stable-key.ts";

export interface UnseenGrantSettings {
  readonly controlPlane: ControlPlane;
  readonly runtime: Runtime;
  readonly background: Background;
}

const DEADLINE_MS = 5_000;
// The lost request itself may still be on its way to the server: what is absent is looked for again, for longer than
// one try of a request may take.
const ABSENT_CHECKS = 5;
// A spend moves on to its next generation at once after an earlier one was voided unsent.
const GENERATIONS_MAX = 50;

/**
 * Gives back what an attempt may have been granted without this process ever learning of it. The attempt sent nothing,
 * and only this process knows its id, so nobody else will. The grant is looked for and voided by its name: asking
 * again would mark it as possibly sent, and the void would be refused.
 *
 * If the server had told a repeated request of the attempt already, the void is refused and the spend is in doubt: it
 * then keeps its headroom until it is taken over, where its settlement allows that, or reconciled.
 */
export function giveBackUnseen(settings: UnseenGrantSettings, spend: SpendOption, attemptId: string): void {
  let absent = 0;
  const what = `whether ${spend.customerId} was granted something unseen`;
  settings.background.add(
    what,
    async (last) => {
      if (await voidOwn(settings, spend, attemptId)) return;
      absent += 1;
      if (!last && absent < ABSENT_CHECKS) throw new RpcFailure({ message: "nothing so far", code: Code.Unavailable });
    },
    { quiet: true },
  );
}

/** True if there is nothing to look for any more. Rejects with an RpcFailure. */
async function voidOwn(settings: UnseenGrantSettings, spend: SpendOption, attemptId: string): Promise<boolean> {
  const first = (spend.retryAfterGeneration ?? 0) + 1;
  for (let generation = first; generation < first + GENERATIONS_MAX; generation += 1) {
    const name = authorizationName(spend, generation);
    const found = await read(settings, name);
    if (found === undefined) return false;
    if (found === "not_ours" || found.state === AuthorizationState.COMMITTED) return true;
    // A bound object has a life of its own, and is followed or taken over by its reference.
    if (found.state !== AuthorizationState.VOIDED && found.vendorReference !== "") return true;
    if (found.state !== AuthorizationState.VOIDED) return voidUnsent(settings, name, attemptId);
  }
  return true;
}

async function read(settings: UnseenGrantSettings, name: string): Promise<Authorization | "not_ours" | undefined> {
  const { controlPlane, runtime } = settings;
  try {
    return await controlPlane.getAuthorization(name, runtime.clock.now() + DEADLINE_MS);
  } catch (error) {
    const failure = toRpcFailure(error);
    if (failure.rpcCode === Code.NotFound) return undefined;
    if (failure.reason === "OTHER_VAULT_KEY") return "not_ours";
    throw failure;
  }
}

/** The server takes this only from the attempt that holds it; another attempt's grant is left alone. */
async function voidUnsent(settings: UnseenGrantSettings, authorization: string, attemptId: string): Promise<true> {
  const { controlPlane, runtime } = settings;
  try {
    const request = { authorization, attemptId, evidence: VoidEvidence.NEVER_SENT };
    await controlPlane.void(request, runtime.clock.now() + DEADLINE_MS);
  } catch (error) {
    const failure = toRpcFailure(error);
    if (failure.rpcCode !== Code.FailedPrecondition) throw failure;
  }
  return true;
}
