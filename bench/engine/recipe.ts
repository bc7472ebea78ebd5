import pg from "pg";
import {
  amountMicros,
  type Contender,
  type Load,
  limitMicros,
  manyCaps,
  nextAttempt,
  smallRoom,
  someCustomer,
  type Surroundings,
} from "./contender.ts";
import { drive } from "./drive.ts";

/** Asks for one spend over a pool. True if granted. */
type Grant = (pool: pg.Pool, spend: Spend) => Promise<boolean>;

interface Spend {
  readonly key: string;
  readonly customer: string;
  readonly cap: string;
}

const schema = `
  create table caps (cap_id text primary key, limit_micros bigint not null, held_micros bigint not null default 0);
  create table spends (
    spend_key text primary key, customer_id text not null, cap_id text not null, amount_micros bigint not null,
    state text not null default 'HELD', create_time timestamptz not null default now()
  );
  create table events (
    event_id bigint generated always as identity primary key, spend_key text not null, kind text not null,
    detail jsonb not null, create_time timestamptz not null default now()
  )`;

const poolSizes = [5, 10, 20];

/** What a careful team writes by hand: one transaction of six statements per spend, the cap locked from the third on. */
const transaction: Grant = async (pool, { key, customer, cap }) => {
  const client = await pool.connect();
  try {
    await client.query("begin");
    const claimed = await client.query({
      name: "claim",
      text: `insert into spends (spend_key, customer_id, cap_id, amount_micros) values ($1, $2, $3, $4)
        on conflict do nothing`,
      values: [key, customer, cap, amountMicros],
    });
    const { rows } = await client.query<{ room: string }>({
      name: "lock",
      text: "select limit_micros - held_micros as room from caps where cap_id = $1 for update",
      values: [cap],
    });
    if (claimed.rowCount !== 1 || Number(rows[0]?.room) < amountMicros) {
      await client.query("rollback");
      return false;
    }
    await client.query({
      name: "take",
      text: "update caps set held_micros = held_micros + $2 where cap_id = $1",
      values: [cap, amountMicros],
    });
    await client.query({
      name: "event",
      text: "insert into events (spend_key, kind, detail) values ($1, 'granted', $2)",
      values: [key, { cap, customer, amount_micros: amountMicros }],
    });
    await client.query("commit");
    return true;
  } finally {
    client.release();
  }
};

/** The same in one statement. It leaves the row of a spend behind that the cap refused, which is why it is no recipe. */
const oneStatement: Grant = async (pool, { key, customer, cap }) => {
  const { rows } = await pool.query<{ granted: boolean }>({
    name: "grant",
    text: `with claim as (
        insert into spends (spend_key, customer_id, cap_id, amount_micros) values ($1, $2, $3, $4)
        on conflict do nothing returning spend_key
      ), take as (
        update caps set held_micros = held_micros + $4
        where cap_id = $3 and held_micros + $4 <= limit_micros and exists (select from claim) returning cap_id
      ), event as (
        insert into events (spend_key, kind, detail) select $1, 'granted', $5 from take
      )
      select exists (select from take) as granted`,
    values: [key, customer, cap, amountMicros, { cap, customer, amount_micros: amountMicros }],
  });
  return rows[0]?.granted === true;
};

export const openRecipe = (around: Surroundings): Promise<Contender> => openTables(around, transaction);
export const openOneStatement = (around: Surroundings): Promise<Contender> => openTables(around, oneStatement);

async function openTables({ connection }: Surroundings, grant: Grant): Promise<Contender> {
  const openPools = () => new Map(poolSizes.map((max) => [max, new pg.Pool({ ...connection, max })]));
  let pools = openPools();
  const sizes = new Map<Load, number>();
  const poolFor = (load: Load): pg.Pool => pools.get(sizes.get(load) ?? 10) as pg.Pool;
  await poolFor("hot").query(schema);
  await poolFor("hot").query(
    `insert into caps (cap_id, limit_micros)
     select 'many-' || n, $1::bigint from generate_series(0, $2 - 1) as n union all values ('hot', $1), ('small', $3)`,
    [limitMicros, manyCaps, smallRoom * amountMicros],
  );
  const contender: Contender = {
    attempt(load) {
      const customer = someCustomer();
      const cap = load === "many" ? customer.replace("cust", "many-") : load;
      return grant(poolFor(load), { key: `${customer}:2026-11:${nextAttempt()}`, customer, cap });
    },
    async counted(load) {
      const { rows } = await poolFor(load).query<{ counted: string; events: string }>(
        `select (select sum(held_micros) from caps where cap_id like $1) / $2 as counted,
           (select count(*) from events where detail ->> 'cap' like $1) as events`,
        [load === "many" ? "many-%" : load, amountMicros],
      );
      const { counted, events } = rows[0] ?? {};
      if (Number(counted) !== Number(events)) throw new Error(`${counted} are counted, and ${events} events say so`);
      return Number(counted);
    },
    async tune(load, callers, calls) {
      const rates: [size: number, rate: number][] = [];
      let granted = 0;
      for (const size of poolSizes) {
        sizes.set(load, size);
        const driven = await drive(contender, { load, callers, calls }, () => 0);
        granted += driven.granted;
        rates.push([size, driven.rate]);
      }
      const [best = 10] = rates.toSorted(([, a], [, b]) => b - a)[0] ?? [];
      sizes.set(load, best);
      return {
        text: `pool ${best} of ${rates.map(([size, rate]) => `${size}: ${Math.round(rate)}/s`).join(", ")}`,
        granted,
      };
    },
    async reopen() {
      await closeAll(pools);
      pools = openPools();
    },
    close: () => closeAll(pools),
  };
  return contender;
}

async function closeAll(pools: ReadonlyMap<number, pg.Pool>): Promise<void> {
  for (const pool of pools.values()) await pool.end();
}
