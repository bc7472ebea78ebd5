import { HoldfastError } from "../domain/errors.ts";
import type { Actor } from "../domain/spend.ts";
import type { Database } from "./database.ts";
import {
  announcePolicyChange,
  appendAudit,
  beginPolicyChange,
  isRevokedOperator,
  withdrawPolicyChange,
} from "./workspace.ts";

/** Who changes what, as the audit shows it. */
export interface PolicyEvent {
  readonly principal: { readonly role: Actor["kind"] | "auditor"; readonly workspace: string; readonly id: string };
  readonly kind: string;
  readonly traceId: string;
  readonly detail: object;
}

/** What a change adds to its event in the audit. */
export interface PolicyAudit {
  /** Nothing was changed after all: the event is not written. */
  unchanged(): void;
  /** Figures that are known only now. */
  detail(more: object): void;
  /** Another event of the same transaction. */
  also(kind: string, detail: object): void;
}

/**
 * Carries out a change of caps, vault keys, kill switches or operators. When it resolves, every grant that saw the old
 * policy has ended and every later one, on any replica, sees the new one. Changes of one workspace run one at a time.
 */
export type ChangePolicy = <Result>(
  event: PolicyEvent,
  change: (transaction: Database, audit: PolicyAudit) => Promise<Result>,
) => Promise<Result>;

/** `inTransaction` runs its argument in one READ COMMITTED transaction and commits it. */
export function createChangePolicy(
  inTransaction: <Result>(work: (transaction: Database) => Promise<Result>) => Promise<Result>,
): ChangePolicy {
  // A refusal rolls back with its transaction that the change has taken its turn: grants would queue behind nobody.
  const orWithdrawn = async <Result>(workspace: string, work: (transaction: Database) => Promise<Result>) => {
    try {
      return await inTransaction(work);
    } catch (error) {
      if (error instanceof HoldfastError) {
        // If that fails too, the gate opens by itself after 5 s; what the caller learns is the refusal.
        await inTransaction((transaction) => withdrawPolicyChange(transaction, workspace)).catch(() => {});
      }
      throw error;
    }
  };
  return async ({ principal, kind, traceId, detail }, change) => {
    const { role, workspace, id } = principal;
    // The gate has refused it; this is for an RPC whose roles are wrong.
    if (role === "auditor") throw new HoldfastError("ROLE_NOT_ALLOWED", "An auditor reads and changes nothing.");
    await inTransaction((transaction) => announcePolicyChange(transaction, workspace));
    return await orWithdrawn(workspace, async (transaction) => {
      await beginPolicyChange(transaction, workspace);
      // A revoke that this change has waited for is in force: it had passed the gate before.
      if (role === "operator" && (await isRevokedOperator(transaction, workspace, id))) {
        throw new HoldfastError("INVALID_TOKEN", "The operator is revoked; nothing was done.");
      }
      const events = [{ kind, detail }];
      const result = await change(transaction, {
        unchanged: () => void events.shift(),
        detail: (more) => {
          const [first] = events;
          if (first !== undefined) first.detail = { ...first.detail, ...more };
        },
        also: (otherKind, otherDetail) => void events.push({ kind: otherKind, detail: otherDetail }),
      });
      const actor = { kind: role, id };
      for (const event of events) await appendAudit(transaction, workspace, { ...event, actor, traceId });
      return result;
    });
  };
}
