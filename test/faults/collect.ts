import { readFileSync } from "node:fs";
import { setTimeout as delay } from "node:timers/promises";
import type {
  AuthorizationRow,
  ContradictionRow,
  CounterRow,
  Disturbance,
  Evidence,
  HoldRow,
  LedgerMovement,
  PlannedSpend,
  Reconciled,
} from "./evidence.ts";
import type { Workers } from "./workers.ts";
import type { World } from "./world.ts";

interface Known {
  readonly spends: readonly PlannedSpend[];
  readonly workers: Workers;
  readonly excesses: readonly CounterRow[];
  readonly disturbances: readonly Disturbance[];
  readonly reconciled: readonly Reconciled[];
  readonly vendorDeadlineMs: number;
}

/** Asks the ledgers, the database and the billing processes' own log. */
export async function collect(world: World, known: Known): Promise<Evidence> {
  const { spends, workers, excesses, disturbances, reconciled, vendorDeadlineMs } = known;
  const ledger = readFileSync(world.movementsFile, "utf8")
    .split("\n")
    .filter((line) => line !== "")
    .map((line) => JSON.parse(line) as LedgerMovement);
  return {
    spends,
    movements: [...ledger, ...world.plainVendor.movements],
    authorizations: await rows<AuthorizationRow>(
      world,
      `select spend_key, generation, customer_id, billing_period, purpose, idempotency_key, endpoint, settlement,
         direction, state, vendor_reference, vendor_state, follow_until_time is not null as is_followed, held_micros,
         committed_micros, committed_currency, void_evidence, void_reason
       from holdfast.authorizations`,
    ),
    contradictions: await rows<ContradictionRow>(
      world,
      "select spend_key, generation, kind, vendor_reference, amount_micros, counted_micros from holdfast.contradictions",
    ),
    holds: await rows<HoldRow>(
      world,
      "select spend_key, generation, cap_id, window_label, subject from holdfast.holds",
    ),
    counters: await rows<CounterRow>(world, countersSql),
    excesses,
    answers: workers.answers,
    faulted: [...(await world.vendor.faulted()), ...world.plainVendor.faulted],
    disturbances,
    reconciled,
    defects: workers.defects,
    vendorDeadlineMs,
  };
}

const countersSql = `select cap_id, window_label, subject, committed_micros, held_micros, limit_micros
  from holdfast.counters join holdfast.caps using (workspace_id, cap_id)`;

async function rows<Row>(world: World, sql: string): Promise<readonly Row[]> {
  return (await world.pool.query(sql)).rows as readonly Row[];
}

/** Looks at the counters again and again, and keeps those that were above their limit, once each. */
export function watchCaps(world: World): { stop(): Promise<readonly CounterRow[]> } {
  const excesses = new Map<string, CounterRow>();
  let isOver = false;
  const look = async (): Promise<void> => {
    while (!isOver) {
      for (const row of await rows<CounterRow>(
        world,
        `select * from (${countersSql}) c where committed_micros + held_micros > limit_micros`,
      )) {
        const name = `${row.cap_id} ${row.window_label} ${row.subject}`;
        if (!excesses.has(name)) excesses.set(name, row);
      }
      await delay(500);
    }
  };
  const looking = look();
  looking.catch(() => undefined);
  return {
    async stop() {
      isOver = true;
      await looking;
      return [...excesses.values()];
    },
  };
}
