import type { Actor } from "../domain/spend.ts";
import type { Database } from "./database.ts";
import { announcePolicyChange, appendAudit, beginPolicyChange } from "./workspace.ts";

/** Who changes what, as the audit shows it. */
export interface PolicyEvent {
  readonly principal: { readonly role: Actor["kind"]; readonly workspace: string; readonly id: string };
  readonly kind: string;
  readonly traceId: string;
  readonly detail: object;
}

/**
 * Carries out a change of caps or vault keys. When it resolves, every grant that saw the old policy has ended and
 * every later one, on any replica, sees the new one.
 */
export type ChangePolicy = <Result>(
  event: PolicyEvent,
  change: (transaction: Database) => Promise<Result>,
) => Promise<Result>;

/** `inTransaction` runs its argument in one READ COMMITTED transaction and commits it. */
export function createChangePolicy(
  inTransaction: <Result>(work: (transaction: Database) => Promise<Result>) => Promise<Result>,
): ChangePolicy {
  return async ({ principal, kind, traceId, detail }, change) => {
    await inTransaction((transaction) => announcePolicyChange(transaction, principal.workspace));
    return await inTransaction(async (transaction) => {
      await beginPolicyChange(transaction, principal.workspace);
      const result = await change(transaction);
      const actor = { kind: principal.role, id: principal.id };
      await appendAudit(transaction, principal.workspace, { kind, actor, traceId, detail });
      return result;
    });
  };
}
