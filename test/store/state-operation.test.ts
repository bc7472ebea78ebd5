import { afterAll, beforeAll, expect, test } from "vitest";
import { sweepExpired } from "../../server/store/spend.ts";
import { replaceClock, type TestClock } from "../support/clock.ts";
import { attempt, type Granting, openGranting, usd } from "../support/granting.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";
import { operations, type State, states, type Subject } from "./state-operation.ts";
import { expected } from "./state-operation-table.ts";

let database: TestDatabase;
let clock: TestClock;

beforeAll(async () => {
  database = await createTestDatabase();
  clock = await replaceClock(database.pool);
});
afterAll(() => database.close());

type Row = Readonly<Record<string, unknown>>;

async function open(): Promise<Granting> {
  await clock.set("2026-11-15T12:00:00Z");
  const granting = await openGranting(database.pool);
  await granting.vaultKey("other");
  await granting.cap("all", usd(1_000_000));
  await granting.cap("each", usd(1000), { perCustomer: true });
  return granting;
}

async function bring(granting: Granting, state: State, customerId: string): Promise<Subject> {
  const asked = { bodyFingerprint: "a".repeat(64), ...state.asked, customerId, attemptId: attempt() };
  const authorization = await granting.grant(asked);
  const subject = { granting, pool: database.pool, asked, authorization };
  await state.prepare?.(subject);
  return subject;
}

/** Every generation of every spend of the workspace, by customer. */
async function rowsOf(granting: Granting): Promise<Map<string, Row[]>> {
  const { rows } = await database.pool.query<{ row: Row }>(
    "select to_jsonb(t) as row from holdfast.authorizations t where t.workspace_id = $1 order by t.generation",
    [granting.workspace],
  );
  const byCustomer = new Map<string, Row[]>();
  for (const { row } of rows) {
    const customer = row["customer_id"] as string;
    byCustomer.set(customer, [...(byCustomer.get(customer) ?? []), row]);
  }
  return byCustomer;
}

// What follows from the state, or from when the vendor is asked: test/store/reconcile.test.ts and doubt.test.ts.
const derived = new Set([
  "state",
  "in_doubt_time",
  "latest_hold_expire_time",
  "look_from_time",
  "reconciliation_count",
  "reconciliation_first_time",
  "reconciliation_next_time",
  "reconciliation_time",
]);

/** "HELD", or "VOIDED HELD" where there are two generations, and the columns of the first that changed. */
function describeRows(before: Row, after: readonly Row[]): string {
  const changed = Object.keys(before).filter(
    (column) => !derived.has(column) && JSON.stringify(before[column]) !== JSON.stringify(after[0]?.[column]),
  );
  return [after.map((row) => row["state"]).join(" "), ...changed].join(" ");
}

async function contradictions(granting: Granting): Promise<Map<string, string>> {
  const { rows } = await database.pool.query<{ customer: string; kind: string }>(
    `select t.customer_id as customer, c.kind || ' ' || c.counted_micros as kind
     from holdfast.contradictions c join holdfast.authorizations t using (workspace_id, spend_key, generation)
     where c.workspace_id = $1`,
    [granting.workspace],
  );
  return new Map(rows.map(({ customer, kind }) => [customer, ` ! ${kind}`]));
}

test.each(Object.keys(states) as (keyof typeof states)[])("every operation on %s", async (name) => {
  const state: State = states[name];
  const granting = await open();
  const subjects = new Map<string, Subject>();
  const names = Object.keys(operations) as (keyof typeof operations)[];
  for (const [index, operation] of names.entries()) subjects.set(operation, await bring(granting, state, `c${index}`));
  await bring(granting, state, "bystander");
  await clock.advance(state.laterMs ?? 0);
  const before = await rowsOf(granting);

  const answers = new Map<string, string>();
  for (const operation of names)
    answers.set(operation, await operations[operation](subjects.get(operation) as Subject));

  const after = await rowsOf(granting);
  const second = await contradictions(granting);
  const table = Object.fromEntries(
    names.map((operation, index) => {
      const customer = `c${index}`;
      const rows = describeRows(before.get(customer)?.[0] as Row, after.get(customer) ?? []);
      return [operation, `${answers.get(operation)} -> ${rows}${second.get(customer) ?? ""}`];
    }),
  );
  expect(after.get("bystander")).toEqual(before.get("bystander"));
  await granting.expectCountersToAddUp();

  await sweepExpired(database.pool, granting.workspace, 1000);
  const swept = describeRows(before.get("bystander")?.[0] as Row, (await rowsOf(granting)).get("bystander") ?? []);
  await granting.expectCountersToAddUp();
  expect({ ...table, sweep: swept }).toEqual(expected[name]);
});
