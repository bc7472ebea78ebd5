import type pg from "pg";
import type { Config } from "./config.ts";
import { HoldfastError } from "./domain/errors.ts";
import type { AuthorizeCommand, AuthorizeDecision, CommitCommand } from "./domain/spend.ts";
import type { Figures } from "./figures.ts";
import type { TokenOwner } from "./rpc/auth.ts";
import type { Database } from "./store/database.ts";
import { GroupCommit } from "./store/group-commit.ts";
import { operatorSecrets } from "./store/operator.ts";
import { inTransaction } from "./store/postgres.ts";
import { batchRemedy, refusalFor } from "./store/refusal.ts";
import { createSemaphore, type Semaphore } from "./store/semaphore.ts";
import { authorizeBatch } from "./store/authorize.ts";
import { type CommitResult, commitBatch } from "./store/spend.ts";
import { vaultKeySecrets } from "./store/vault-key.ts";
import type { VaultKeyUses } from "./store/vault-key-use.ts";

export type AuthorizeQueue = GroupCommit<AuthorizeCommand, AuthorizeDecision>;
export type CommitQueue = GroupCommit<CommitCommand, CommitResult>;
export type Rehearse = (workspace: string, command: AuthorizeCommand) => Promise<AuthorizeDecision>;

export function authorizeQueue(pool: pg.Pool, config: Config, uses: VaultKeyUses, figures: Figures): AuthorizeQueue {
  return new GroupCommit({
    name: "authorize",
    run: async (workspace, commands) => {
      for (const { vaultKeyId } of commands) uses.note(workspace, vaultKeyId);
      const decisions = await authorizeBatch(pool, workspace, commands);
      figures.decided(workspace, decisions);
      return decisions;
    },
    // What decides which caps apply, as far as one vault key usually varies; a cap may also be of one customer.
    keysOf: ({ vaultKeyId, endpoint, direction, spend: { customerId, purpose } }) => {
      const policy = [vaultKeyId, endpoint, direction, purpose].join("\n");
      return [policy, `${policy}\n${customerId}`];
    },
    ...queueLimits(config),
  });
}

// Longer than a batch waits for a lock, so that it is not taken for one that has died.
const stalledMs = 2000;

function queueLimits({ batchMax, queueMax, poolSize }: Config) {
  const sideMax = Math.max(1, Math.floor(poolSize / 5));
  return { classify: batchRemedy, translate: refusalFor, batchMax, queueMax, sideMax, stalledMs };
}

export function commitQueue(pool: pg.Pool, config: Config, figures: Figures): CommitQueue {
  return new GroupCommit({
    name: "commit",
    run: async (workspace, commands) => {
      const results = await commitBatch(pool, workspace, commands);
      figures.overCommitted(workspace, results.filter(({ overCommitted }) => overCommitted).length);
      return results;
    },
    keysOf: ({ actor, authorization }) => [actor.id, `${actor.id}\n${authorization.spendKey}`],
    ...queueLimits(config),
  });
}

const waitingMax = 100;
const rehearsed = Symbol("rolled back on purpose");

/** The same judgement as a grant, under the same locks, in a transaction that is always rolled back. */
export function rehearsal(pool: pg.Pool, turn: Semaphore): Rehearse {
  const rehearse: Rehearse = async (workspace, command) => {
    let decision: AuthorizeDecision | undefined;
    try {
      await inTransaction(pool, async (transaction) => {
        [decision] = await authorizeBatch(transaction, workspace, [command], true);
        throw rehearsed;
      });
    } catch (error) {
      if (error !== rehearsed) throw refusalFor(error);
    }
    if (decision === undefined) throw new Error("a rehearsal gave no decision");
    return decision;
  };
  return (workspace, command) => turn(() => rehearse(workspace, command));
}

/** Work that is not queued in batches may use a quarter of the pool's connections. */
export function boundedBy({ poolSize }: Config, what: string, waiting = waitingMax): Semaphore {
  const message = `Too many ${what} wait for the database; nothing was done. Try again after the delay.`;
  return createSemaphore({
    running: Math.max(1, Math.floor(poolSize / 4)),
    waiting,
    refusal: () => new HoldfastError("QUEUE_FULL", message, { retryAfterMs: 250 }),
  });
}

/** Operators' tokens are looked up with every call, so garbage must not take their places. */
export function ownersOf(database: Database, config: Config) {
  const turn = boundedBy(config, "unknown tokens");
  const operatorTurn = boundedBy(config, "operators' calls", 10 * waitingMax);
  return async (kind: "vk" | "op", workspace: string, id: string): Promise<TokenOwner | undefined> => {
    if (kind === "vk") {
      const secrets = await turn(() => vaultKeySecrets(database, workspace, id));
      return { role: "vault_key", secrets };
    }
    const operator = await operatorTurn(() => operatorSecrets(database, workspace, id));
    if (operator === undefined) return undefined;
    return { role: operator.role === "AUDITOR" ? "auditor" : "operator", secrets: operator.secrets };
  };
}
