import { type Database, run, statement } from "./database.ts";

// In the order of ids, so that two servers never wait for each other.
const writeStatement = statement(
  "write_vault_key_uses",
  `insert into holdfast.vault_key_uses as u (workspace_id, vault_key_id, use_time)
   select $1::text, k.id, now.t
   from unnest($2::text[]) as k (id), (select date_trunc('minute', holdfast.clock()) as t) as now
   order by k.id
   on conflict (workspace_id, vault_key_id) do update set use_time = excluded.use_time
   where u.use_time < excluded.use_time`,
);

/** Remembers which vault keys were used and writes it down now and then, never while something is granted. */
export interface VaultKeyUses {
  /** Costs a look-up in memory. */
  note(workspace: string, vaultKeyId: string): void;
  /** Writes what was noted since the last time. A failure keeps it for the next one. */
  write(database: Database): Promise<void>;
}

export function createVaultKeyUses(): VaultKeyUses {
  const used = new Map<string, Set<string>>();
  return {
    note: (workspace, vaultKeyId) => {
      let keys = used.get(workspace);
      if (keys === undefined) {
        keys = new Set();
        used.set(workspace, keys);
      }
      keys.add(vaultKeyId);
    },
    write: async (database) => {
      for (const [workspace, keys] of used) {
        used.delete(workspace);
        try {
          await run(database, writeStatement, [workspace, [...keys]]);
        } catch (error) {
          used.set(workspace, new Set([...keys, ...(used.get(workspace) ?? [])]));
          throw error;
        }
      }
    },
  };
}
