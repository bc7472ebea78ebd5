import type { ProxyMemory } from "./carry-out.ts";
import type { ProxyKey } from "./policy-check.ts";

type Ownership = Pick<ProxyMemory, "owns" | "own">;

/** How many objects are known by heart. */
const knownMax = 10_000;

/**
 * Remembers in this process what was once found to be a key's own, so that it is not asked or written down again: the
 * first owner of an object stays its owner for ever. That a key does not own an object is asked every time, since it may
 * be written down at any moment. Whether the key still lives is another question, and never answered from here.
 */
export function knownOwnership(stored: Ownership, max = knownMax): Ownership {
  // The one that was asked for last comes last.
  const known = new Set<string>();

  function isKnown(name: string): boolean {
    if (!known.delete(name)) return false;
    known.add(name);
    return true;
  }

  return {
    async owns(key, account, objectIds) {
      const unknown = objectIds.filter((id) => !isKnown(nameOf(key, account, id)));
      if (unknown.length === 0) return true;
      if (!(await stored.owns(key, account, unknown))) return false;
      for (const id of unknown) known.add(nameOf(key, account, id));
      for (const oldest of known) {
        if (known.size <= max) break;
        known.delete(oldest);
      }
      return true;
    },
    async own(key, account, objectIds) {
      const unknown = objectIds.filter((id) => !isKnown(nameOf(key, account, id)));
      if (unknown.length > 0) await stored.own(key, account, unknown);
    },
  };
}

function nameOf({ workspace, vendor, vaultKeyId }: ProxyKey, account: string, objectId: string): string {
  return JSON.stringify([workspace, vendor, vaultKeyId, account, objectId]);
}
