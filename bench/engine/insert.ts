import { randomBytes } from "node:crypto";
import pg from "pg";
import { migrate } from "../../server/store/migrate.ts";
import { type Contender, nextAttempt, someCustomer, type Surroundings } from "./contender.ts";

const columns = "spend_key, customer_id, purpose, attempt_id";
const text = `insert into plain (${columns}, workspace_id, generation, billing_period, idempotency_key, vault_key_id, vendor,
    vendor_account, endpoint, currency, amount_micros, held_micros, direction, settlement, state,
    told_may_have_been_sent, body_fingerprint, grant_time, hold_expire_time, latest_hold_expire_time)
  select ${columns}, 'hot', 1, '2026-11', right(spend_key, 32), 'bench', 'stripe', '', 'POST /v1/payment_intents', 'usd',
    1000000, 1000000, 'SPEND', 'TWO_STEP', 'HELD', false, repeat('0', 64), now(), now() + interval '1 day',
    now() + interval '1 day'
  from unnest($1::text[], $2::text[], $3::text[], $4::text[]) as x (${columns})`;

/**
 * The least that remembers a spend: durable inserts into a table with the columns, checks and indexes of the
 * authorizations, with no cap, no audit and no answer. `rows` per statement.
 */
export async function openInsert({ connection }: Surroundings, rows: number): Promise<Contender> {
  await migrate(connection);
  const open = () => new pg.Pool({ ...connection, max: 4 });
  let pool = open();
  await pool.query("create table plain (like holdfast.authorizations including all)");
  return {
    async attempt() {
      const names = Array.from({ length: rows }, () => `bench-${nextAttempt()}`);
      const hex = () => names.map(() => randomBytes(16).toString("hex"));
      // Spends of one period begin with the same digits.
      const keys = hex().map((key) => `05e0${key}`);
      const values = [keys, names.map(someCustomer), names, hex()];
      return (await pool.query({ name: "insert", text, values })).rowCount === rows;
    },
    async counted() {
      const result = await pool.query<{ count: string }>("select count(*) from plain");
      return Number(result.rows[0]?.count) / rows;
    },
    async reopen() {
      await pool.end();
      pool = open();
    },
    close: () => pool.end(),
  };
}
