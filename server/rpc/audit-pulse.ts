import { type AuditPosition, isBehind } from "../domain/audit.ts";

/** How far the audit of a workspace stands. */
export interface AuditHead {
  /** The last event that stands for good; undefined where there is none. */
  readonly last: AuditPosition | undefined;
  /** Nothing can be added at or before it any more. */
  readonly seen: AuditPosition;
}

export interface AuditPulse {
  /**
   * Resolves with the next head that has an event behind `position`, or with the latest one when `signal` is aborted.
   * Rejects if the database cannot be asked.
   */
  beyond(workspace: string, position: AuditPosition | undefined, signal: AbortSignal): Promise<AuditHead | undefined>;
}

interface Waiter {
  readonly position: AuditPosition | undefined;
  readonly resolve: (head: AuditHead | undefined) => void;
  readonly reject: (error: unknown) => void;
}

/**
 * Asks how far the audit stands, once per workspace and interval for all who wait, and not at all while nobody does. A
 * notification of the database would not come through a pool of connections in transaction mode.
 */
export function createAuditPulse(options: {
  readonly readHead: (workspace: string) => Promise<AuditHead>;
  /** Resolves when it is time to ask again. */
  readonly pause: () => Promise<void>;
}): AuditPulse {
  const waiting = new Map<string, Set<Waiter>>();
  const latest = new Map<string, AuditHead>();

  async function watch(workspace: string, waiters: Set<Waiter>): Promise<void> {
    for (;;) {
      await options.pause();
      // Who came after the question was asked may wait for what it has not seen.
      const asking = [...waiters];
      if (asking.length === 0) break;
      try {
        const head = await options.readHead(workspace);
        latest.set(workspace, head);
        for (const one of asking) if (isNews(head, one.position)) one.resolve(head);
      } catch (error) {
        for (const one of asking) one.reject(error);
      }
    }
    waiting.delete(workspace);
    latest.delete(workspace);
  }

  return {
    beyond(workspace, position, signal) {
      const { promise, resolve, reject } = Promise.withResolvers<AuditHead | undefined>();
      if (signal.aborted) return Promise.resolve(latest.get(workspace));
      const waiter: Waiter = { position, resolve, reject };
      const isFirst = !waiting.has(workspace);
      const waiters = waiting.get(workspace) ?? new Set();
      waiting.set(workspace, waiters.add(waiter));
      const abort = (): void => resolve(latest.get(workspace));
      signal.addEventListener("abort", abort);
      if (isFirst) void watch(workspace, waiters);
      return promise.finally(() => {
        waiters.delete(waiter);
        signal.removeEventListener("abort", abort);
      });
    },
  };
}

function isNews({ last }: AuditHead, position: AuditPosition | undefined): boolean {
  return last !== undefined && (position === undefined || isBehind(last, position));
}
