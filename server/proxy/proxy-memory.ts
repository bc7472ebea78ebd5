import { setTimeout } from "node:timers/promises";
import type { ClaimedRequest, ProxiedRequestClaim } from "../domain/proxied-request.ts";
import type { CredentialCipher } from "../store/credential-cipher.ts";
import type { Database } from "../store/database.ts";
import {
  claimProxiedRequest,
  forgetProxiedRequest,
  reopenDeclined,
  storeProxiedAnswer,
} from "../store/proxied-request.ts";
import { latestGeneration, releaseAbandonedRequest } from "../store/spend-generation.ts";
import { ownsVendorObjects, rememberVendorObjects } from "../store/vendor-object.ts";
import type { AskedRequest, ProxyMemory, Remembered, RequestClaim } from "./carry-out.ts";
import type { Identity } from "./identity.ts";
import { knownOwnership } from "./owned-objects.ts";
import type { ProxyKey } from "./policy-check.ts";
import type { RequestKey } from "./request-key.ts";
import type { ProxyAnswer } from "./vendor.ts";

export interface MemoryParts {
  readonly database: Database;
  readonly cipher: CredentialCipher;
  /** 32 random hex digits. */
  readonly random: () => string;
  /** Waits that long, in milliseconds, for a twin to write down what it was answered. */
  readonly wait?: (ms: number) => Promise<unknown>;
  /** Milliseconds on a clock that does not stand still with the process. */
  readonly nowMs?: () => number;
}

/** What the proxy remembers, in the database. */
export function createProxyMemory(parts: MemoryParts): ProxyMemory {
  const { database } = parts;
  return {
    claim: (key, request, identity, asked) => claimIn(parts, key, request, identity, asked),
    ...knownOwnership({
      owns: (key, vendorAccount, objectIds) =>
        ownsVendorObjects(
          database,
          key.workspace,
          { vendor: key.vendor, vendorAccount },
          { vaultKeyId: key.vaultKeyId, objectIds },
        ),
      own: (key, vendorAccount, objectIds) =>
        rememberVendorObjects(
          database,
          key.workspace,
          { vendor: key.vendor, vendorAccount },
          { vaultKeyId: key.vaultKeyId, objectIds },
        ),
    }),
  };
}

const twinWaits = 20;
const twinWaitMs = 100;
// Others take a claim for abandoned after a minute.
const surelyHeldMs = 30_000;

function claimIn(
  { database, cipher, random, wait = setTimeout, nowMs = () => Date.now() }: MemoryParts,
  key: ProxyKey,
  request: RequestKey,
  identity: Identity,
  { endpoint, keyRememberedForMs, declinedState }: AskedRequest,
): RequestClaim {
  const { workspace, vaultKeyId } = key;
  const { customerId, billingPeriod, purpose } = identity.spend;
  const claim: ProxiedRequestClaim = {
    vaultKeyId,
    ...request,
    claimId: random(),
    // Each of several that are passed on at once may be the one that is carried out.
    joins: keyRememberedForMs !== undefined,
    endpoint,
    spend: { customerId, billingPeriod, purpose },
  };
  let generation = 1;
  let recalledMs = 0;

  async function recall(): Promise<Remembered> {
    recalledMs = nowMs();
    const claimed = await ask();
    generation = claimed.generation;
    if (claimed.kind === "new") return go(false);
    if (claimed.kind === "open") {
      if (!claimed.sameBody) return { kind: "other_body" };
      return (await mayBeForgotten(claimed.openMicros)) ? { kind: "in_doubt" } : go(true);
    }
    if (mayBeTriedAgain(claimed)) {
      const next = await reopenDeclined(database, workspace, claim, claimed.generation);
      // Somebody else was faster: what that one finds out is this one's answer too.
      if (next === undefined) return recall();
      generation = next;
      return { ...go(false), retryAfterGeneration: await failedGeneration() };
    }
    if (!claimed.sameBody) return { kind: "other_body" };
    // An answer that was too large or is too old is read anew: the spend itself knows its object.
    const { answer } = claimed;
    return answer === undefined ? { ...go(true), answered: true } : { kind: "answer", answer };
  }

  /** The grant of an object that is kept after a decline knows what it was made with, and no later payment method. */
  function go(repeated: boolean): Remembered & { readonly kind: "go" } {
    return { kind: "go", repeated, otherMethod: key.proxy.keepDeclined && generation > 1 };
  }

  async function mayGo(): ReturnType<RequestClaim["mayGo"]> {
    // Once there is a grant nobody takes the claim, so it is enough to look when there was time for that before.
    if (Math.abs(nowMs() - recalledMs) < surelyHeldMs) return "go";
    const claimed = await claimProxiedRequest(database, cipher, workspace, claim);
    if (claimed.kind !== "new" && !claimed.sameBody) return "other_body";
    if (claimed.kind === "answered") return keyRememberedForMs === undefined ? "go" : "answer";
    return (await mayBeForgotten(claimed.openMicros)) ? "in_doubt" : "go";
  }

  /** Whether nothing is left that would keep the vendor from doing it twice; what has a grant has that. */
  async function mayBeForgotten(openMicros: bigint): Promise<boolean> {
    if (keyRememberedForMs === undefined || openMicros < BigInt(keyRememberedForMs) * 1000n) return false;
    return (await latestGeneration(database, workspace, identity.spend)) === undefined;
  }

  async function ask(): Promise<ClaimedRequest> {
    const claimed = await claimProxiedRequest(database, cipher, workspace, claim);
    if (claimed.kind !== "open" || claimed.sameBody) return claimed;
    // That there is no grant proves nothing about what is passed on without one.
    if (keyRememberedForMs !== undefined) return claimed;
    const released = await releaseAbandonedRequest(database, workspace, claim, identity.spend, declinedState);
    return released ? claimProxiedRequest(database, cipher, workspace, claim) : claimed;
  }

  /** A key of the client's own is answered once and for ever, as the vendor itself does. */
  function mayBeTriedAgain(claimed: ClaimedRequest & { readonly kind: "answered" }): boolean {
    if (!claimed.declined || identity.kind === "client_key") return false;
    if (claimed.sameButPaymentMethod) return true;
    return claimed.sameBody && claimed.ageMicros >= BigInt(key.proxy.retryDeclinedAfterMs) * 1000n;
  }

  /** Not where an operator has decided that there was no charge: whether there is to be one is a person's word too. */
  async function failedGeneration(): Promise<number | undefined> {
    const latest = await latestGeneration(database, workspace, identity.spend);
    const retried =
      latest?.state === "VOIDED" && latest.voidEvidence !== "OPERATOR" && latest.vaultKeyId === vaultKeyId;
    return retried ? latest.generation : undefined;
  }

  async function recallFailed(): Promise<Remembered | undefined> {
    // The twin that was declined has ended its spend already, and is about to write down its answer.
    for (let waits = 0; waits < twinWaits; waits += 1) {
      const remembered = await recall();
      if (remembered.kind !== "go") return remembered;
      if (!remembered.repeated) break;
      await wait(twinWaitMs);
    }
    const retryAfterGeneration = await failedGeneration();
    return retryAfterGeneration === undefined ? undefined : { ...go(true), retryAfterGeneration };
  }

  async function remember(answer: ProxyAnswer, declined: boolean): Promise<void> {
    if (!declined && identity.kind !== "client_key") {
      // Of a spend that is not over the vendor's object tells more, when it is read again, than this answer.
      const latest = await latestGeneration(database, workspace, identity.spend);
      if (latest?.state !== "COMMITTED") return;
    }
    await storeProxiedAnswer(database, cipher, workspace, claim, { generation, declined, answer });
  }

  return { recall, mayGo, recallFailed, remember, forget: () => forgetProxiedRequest(database, workspace, claim) };
}
