import type { EngagedKillSwitch, KillSwitch, KillSwitchTarget } from "../domain/kill-switch.ts";
import { epochMicros } from "./authorization.ts";
import { type Database, run, statement } from "./database.ts";

const switchColumns = `s.kill_switch_id, s.target_kind, s.target, s.reason, s.engaged_by, s.released_by,
  s.release_reason, ${epochMicros("s.engage_time")} as engage_time, ${epochMicros("s.release_time")} as release_time`;

const engageStatement = statement(
  "engage_kill_switch",
  `insert into holdfast.kill_switches as s (
     workspace_id, kill_switch_id, target_kind, target, reason, engage_time, engaged_by
   )
   values ($1::text, $2::text, $3::text, $4::text, $5::text, holdfast.clock(), $6::text)
   on conflict (workspace_id, target_kind, target) where release_time is null do nothing
   returning ${switchColumns}`,
);

const engagedStatement = statement(
  "get_engaged_kill_switch",
  `select ${switchColumns} from holdfast.kill_switches s
   where s.workspace_id = $1::text and s.target_kind = $2::text and s.target = $3::text and s.release_time is null`,
);

const getStatement = statement(
  "get_kill_switch",
  `select ${switchColumns} from holdfast.kill_switches s
   where s.workspace_id = $1::text and s.kill_switch_id = $2::text`,
);

const releaseStatement = statement(
  "release_kill_switch",
  `update holdfast.kill_switches s set
     release_time = now.t, released_by = $3::text, release_reason = $4::text
   from (select holdfast.clock() as t) as now
   where s.workspace_id = $1::text and s.kill_switch_id = $2::text and s.release_time is null
   returning ${switchColumns}`,
);

const listStatement = statement(
  "list_kill_switches",
  `select ${switchColumns} from holdfast.kill_switches s
   where s.workspace_id = $1::text and ($2::boolean or s.release_time is null)
     and ($3::bigint is null or (s.engage_time, s.kill_switch_id)
       < (timestamptz 'epoch' + $3::bigint * interval '1 microsecond', $4::text))
   order by s.engage_time desc, s.kill_switch_id desc limit $5::integer`,
);

interface SwitchRow {
  readonly kill_switch_id: string;
  readonly target_kind: KillSwitchTarget["kind"];
  readonly target: string;
  readonly reason: string;
  readonly engaged_by: string;
  readonly engage_time: bigint;
  readonly release_time: bigint | null;
  readonly released_by: string | null;
  readonly release_reason: string | null;
}

export interface NewKillSwitch {
  readonly killSwitchId: string;
  readonly target: KillSwitchTarget;
  readonly reason: string;
  readonly engagedBy: string;
}

/**
 * Engages, or finds the switch that is engaged on that target already. The workspace row must have been taken by
 * `beginPolicyChange`.
 */
export async function engageKillSwitch(
  transaction: Database,
  workspace: string,
  { killSwitchId, target, reason, engagedBy }: NewKillSwitch,
): Promise<{ readonly killSwitch: KillSwitch; readonly isNew: boolean }> {
  const place = [target.kind, targetText(target)];
  const values = [workspace, killSwitchId, ...place, reason, engagedBy];
  const made = await one(transaction, engageStatement, values);
  if (made !== undefined) return { killSwitch: made, isNew: true };
  const engaged = await one(transaction, engagedStatement, [workspace, ...place]);
  if (engaged === undefined) throw new Error("a kill switch was released while the workspace was locked");
  return { killSwitch: engaged, isNew: false };
}

/** Undefined if it is not engaged. The workspace row must have been taken by `beginPolicyChange`. */
export async function releaseKillSwitch(
  transaction: Database,
  workspace: string,
  killSwitchId: string,
  release: { readonly by: string; readonly reason: string },
): Promise<KillSwitch | undefined> {
  return await one(transaction, releaseStatement, [workspace, killSwitchId, release.by, release.reason]);
}

export async function getKillSwitch(
  database: Database,
  workspace: string,
  killSwitchId: string,
): Promise<KillSwitch | undefined> {
  return await one(database, getStatement, [workspace, killSwitchId]);
}

export interface KillSwitchFilter {
  readonly includeReleased: boolean;
  /** The last one of the page before. */
  readonly after: Pick<KillSwitch, "engageTime" | "killSwitchId"> | undefined;
  readonly limit: number;
}

/** Newest first. */
export async function listKillSwitches(
  database: Database,
  workspace: string,
  { includeReleased, after, limit }: KillSwitchFilter,
): Promise<KillSwitch[]> {
  const values = [workspace, includeReleased, after?.engageTime ?? null, after?.killSwitchId ?? null, limit];
  return (await run<SwitchRow>(database, listStatement, values)).map(readSwitch);
}

/** The columns in which a judging function returns the kill switch that denied. */
export interface EngagedRow {
  readonly kill_switch: string | null;
  readonly kill_switch_target: KillSwitchTarget["kind"] | null;
}

export function readEngaged(row: EngagedRow): EngagedKillSwitch | undefined {
  if (row.kill_switch === null || row.kill_switch_target === null) return undefined;
  return { killSwitchId: row.kill_switch, targetKind: row.kill_switch_target };
}

async function one(database: Database, sql: typeof getStatement, values: unknown[]): Promise<KillSwitch | undefined> {
  const [row] = await run<SwitchRow>(database, sql, values);
  return row === undefined ? undefined : readSwitch(row);
}

function targetText(target: KillSwitchTarget): string {
  if (target.kind === "VENDOR") return target.vendor;
  return target.kind === "CUSTOMER" ? target.customerId : "";
}

function targetFrom(kind: KillSwitchTarget["kind"], text: string): KillSwitchTarget {
  if (kind === "VENDOR") return { kind, vendor: text };
  return kind === "CUSTOMER" ? { kind, customerId: text } : { kind };
}

function readSwitch(row: SwitchRow): KillSwitch {
  const { release_time: time, released_by: by, release_reason: reason } = row;
  return {
    killSwitchId: row.kill_switch_id,
    target: targetFrom(row.target_kind, row.target),
    reason: row.reason,
    engageTime: row.engage_time,
    engagedBy: row.engaged_by,
    release: time === null || by === null || reason === null ? undefined : { time, by, reason },
  };
}
