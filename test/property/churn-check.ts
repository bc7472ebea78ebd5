import type pg from "pg";
import { recount } from "../support/granting.ts";
import type { CreateCap } from "./command.ts";
import type { Workspace } from "./history-server.ts";
import { inScope } from "./model-cap.ts";

/** What a cap was, from the audit of the test itself. */
export interface MadeCap {
  readonly rule: CreateCap;
  archived: boolean;
}

/** Compares GetCap of every replica with the recount. Returns what differs. */
export async function recountAll({ systems, pool, workspace }: Workspace): Promise<string[]> {
  const { rows: caps } = await pool.query<{ capId: string; limit: bigint }>(
    `select c.cap_id as "capId", coalesce(c.limit_micros, c.limit_count) as limit from holdfast.caps c
     where c.workspace_id = $1`,
    [workspace],
  );
  const limits = new Map(caps.map(({ capId, limit }) => [capId, limit]));
  const wrong: string[] = [];
  for (const { capId, window, subject, committed, held } of await recount(pool, workspace)) {
    const name = { cap: capId, window, customer: subject };
    const limit = limits.get(capId) ?? 0n;
    for (const [server, system] of systems.entries()) {
      const usage = await system.usage(name);
      const expected = [committed, held, limit - committed - held];
      const given = [usage["committed"], usage["held"], usage["headroom"]];
      if (expected.some((figure, i) => figure !== given[i])) {
        wrong.push(`${JSON.stringify(name)} at server ${server}: ${given.join(" ")}, recounted ${expected.join(" ")}`);
      }
    }
  }
  return wrong;
}

/** Every hold lies in its window, and in the life of its cap. Returns the holds that do not. */
export async function misplacedHolds({ pool, workspace }: Workspace): Promise<string[]> {
  return await lines(
    pool,
    `select h.cap_id || ' ' || h.window_label || ' granted at ' || t.grant_time as line
     from holdfast.holds h
     join holdfast.caps c on c.workspace_id = h.workspace_id and c.cap_id = h.cap_id
     join holdfast.authorizations t on t.workspace_id = h.workspace_id and t.spend_key = h.spend_key
       and t.generation = h.generation
     where h.workspace_id = $1 and (
       t.grant_time < c.create_time or t.grant_time > c.archive_time
       or t.grant_time < holdfast.window_start(c, h.window_label)
       or t.grant_time >= holdfast.window_end(c, h.window_label)
       or (c.cap_window = 'BILLING_PERIOD' and h.window_label <> t.billing_period)
       or (c.per_customer and h.subject <> t.customer_id))`,
    workspace,
  );
}

/** What was granted above a limit although no cap in the shadow reports it. */
export async function exceededCaps({ pool, workspace }: Workspace): Promise<string[]> {
  return await lines(
    pool,
    `select e.spend_key || ' ' || (f.figures)::text as line
     from holdfast.audit_events e
     cross join lateral jsonb_array_elements(e.detail -> 'caps') as f (figures)
     where e.workspace_id = $1 and e.kind = 'spend.granted'
       and coalesce((f.figures ->> 'committed_micros')::numeric + (f.figures ->> 'held_micros')::numeric
           > (f.figures ->> 'limit_micros')::numeric,
         (f.figures ->> 'committed_count')::numeric + (f.figures ->> 'held_count')::numeric
           > (f.figures ->> 'limit_count')::numeric)
       and not exists (
         select from holdfast.audit_events s
         where s.workspace_id = $1 and s.xid = e.xid and s.kind = 'cap.shadow_exceeded'
           and s.spend_key = e.spend_key and s.detail ->> 'cap' = f.figures ->> 'cap')`,
    workspace,
  );
}

interface GrantRow {
  readonly spend_key: string;
  readonly key: string;
  readonly vendor: string;
  readonly endpoint: string;
  readonly customer: string;
  readonly purpose: string;
  readonly direction: "SPEND" | "REFUND";
  readonly currency: string;
  readonly drawn: string[];
  /** Caps that lived for certain when it was granted, not only in the same instant. */
  readonly living: string[];
}

const grantsSql = `
  select t.spend_key, t.vault_key_id as key, t.vendor, t.endpoint, t.customer_id as customer, t.purpose, t.direction,
    t.currency,
    array(select h.cap_id from holdfast.holds h where h.workspace_id = t.workspace_id and h.spend_key = t.spend_key
      and h.generation = t.generation) as drawn,
    array(select c.cap_id from holdfast.caps c where c.workspace_id = t.workspace_id and c.create_time < t.grant_time
      and (c.archive_time is null or c.archive_time > t.grant_time)
      and (c.cap_window <> 'FIXED' or (c.start_time <= t.grant_time and t.grant_time < c.end_time))) as living
  from holdfast.authorizations t where t.workspace_id = $1`;

/** Grants that a cap should have counted and did not, or that it should not have counted. */
export async function missedCaps(
  { pool, workspace }: Workspace,
  caps: ReadonlyMap<string, MadeCap>,
  attached: readonly string[],
): Promise<string[]> {
  const { rows } = await pool.query<GrantRow>(grantsSql, [workspace]);
  const counts = (grant: GrantRow, id: string): boolean => {
    const rule = caps.get(id)?.rule;
    if (rule === undefined || !inScope(rule, grant)) return false;
    if (rule.attachedOnly && !attached.includes(id)) return false;
    // Another currency is denied, or reported by a cap in the shadow; in neither case is it counted.
    return rule.currency === null || rule.currency === grant.currency;
  };
  return rows.flatMap((grant) => {
    const missed = grant.living.filter((id) => counts(grant, id) && !grant.drawn.includes(id));
    const wrong = grant.drawn.filter((id) => !counts(grant, id));
    return [
      ...missed.map((id) => `${grant.spend_key} is not counted by ${id}`),
      ...wrong.map((id) => `${grant.spend_key} is counted by ${id}`),
    ];
  });
}

async function lines(pool: pg.Pool, sql: string, workspace: string): Promise<string[]> {
  return (await pool.query<{ line: string }>(sql, [workspace])).rows.map(({ line }) => line);
}
