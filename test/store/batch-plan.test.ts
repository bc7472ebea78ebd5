import type pg from "pg";
import { afterAll, beforeAll, expect, it } from "vitest";
import type { Authorization, AuthorizeDecision } from "../../server/domain/spend.ts";
import { authorizeBatch } from "../../server/store/authorize.ts";
import { commitBatch } from "../../server/store/spend.ts";
import { type Asked, asks, commitCommand, type Granting, openGranting, usd } from "../support/granting.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";

let database: TestDatabase;
let granting: Granting;
let client: pg.PoolClient;

const size = 10;
const grown = 1600;
/** Of one table by one batch: a few looks at each spend, and far less than there is. */
const readMax = 40 * size;

/**
 * A session that made its plans while every table was empty, and a workspace that has grown since: before the first
 * statistics, a planner takes it for one of a single spend. Nothing looks at the clock: what is read is counted.
 */
beforeAll(async () => {
  database = await createTestDatabase();
  granting = await openGranting(database.pool);
  await granting.cap("all", usd(1_000_000));
  await granting.cap("customers", usd(1_000), { perCustomer: true, refundsRestoreHeadroom: true });
  client = await database.pool.connect();
  for (const batch of Object.values(batches("before"))) await (await batch())();
  for (let from = 0; from < grown; from += 400) {
    const granted = await granting.authorize(
      ...Array.from({ length: 400 }, (_, index) =>
        asks({ purpose: `${from + index}`, customerId: `c${from + index}` }),
      ),
    );
    const commits = granted.slice(0, 300).map((one) => commitCommand(authorizationOf(one)));
    await commitBatch(database.pool, granting.workspace, commits);
  }
});
afterAll(async () => {
  client.release();
  await database.close();
});

function authorizationOf({ authorization }: AuthorizeDecision): Authorization {
  if (authorization === undefined) throw new Error("not granted");
  return authorization;
}

function spends(name: string, asked: Asked = {}) {
  return Array.from({ length: size }, (_, index) =>
    asks({ purpose: `${name}-${index}`, customerId: `${name}-${index}`, ...asked }),
  );
}

/** Each prepares what it needs on another connection, and gives the batch. */
function batches(name: string): Record<string, () => Promise<() => Promise<unknown>>> {
  const { workspace } = granting;
  const tooMuch = asks({ purpose: `${name}-too-much`, amount: usd(2_000) });
  const granted = async (what: string, asked?: Asked) =>
    (await granting.authorize(...spends(`${name}-${what}`, asked))).map(authorizationOf);
  return {
    "grants in sets": async () => () => authorizeBatch(client, workspace, spends(`${name}-sets`)),
    "grants one by one": async () => () => authorizeBatch(client, workspace, [...spends(`${name}-each`), tooMuch]),
    repeats: async () => {
      await granted("repeats");
      return () => authorizeBatch(client, workspace, spends(`${name}-repeats`));
    },
    "commits in sets": async () => {
      const commits = (await granted("commits")).map((one) => commitCommand(one));
      return () => commitBatch(client, workspace, commits);
    },
    "commits one by one": async () => {
      const commits = (await granted("mixed")).map((one) => commitCommand(one));
      return () => commitBatch(client, workspace, [...commits, ...commits.slice(0, 1)]);
    },
    "charges that others have committed": async () => {
      const [first, ...others] = await granted("charges");
      const one = commitCommand(first as Authorization);
      await commitBatch(database.pool, workspace, [one]);
      const commits = others.map((other) => commitCommand(other, { vendorReference: one.vendorReference }));
      return () => commitBatch(client, workspace, commits);
    },
    refunds: async () => {
      const charges = (await granted("charged")).map((one) => commitCommand(one));
      await commitBatch(database.pool, workspace, charges);
      const asked = spends(`${name}-refunds`, { direction: "REFUND" });
      const refunds = await granting.authorize(
        ...asked.map((one, index) => ({ ...one, refundOf: charges[index]?.vendorReference ?? "" })),
      );
      const commits = refunds.map((one) => commitCommand(authorizationOf(one), { amount: usd(1) }));
      return () => commitBatch(client, workspace, commits);
    },
  };
}

interface Reads {
  readonly relation: string;
  readonly rows: bigint;
  readonly scans: bigint;
}

/** What this session has read of each table and index since it last reported: within a transaction it only grows. */
async function readSoFar(): Promise<Reads[]> {
  const { rows } = await client.query<Reads>(
    `select c.relname as relation, pg_stat_get_xact_numscans(c.oid) as scans,
       pg_stat_get_xact_tuples_returned(c.oid) + pg_stat_get_xact_tuples_fetched(c.oid) as rows
     from pg_class c where c.relnamespace = 'holdfast'::regnamespace and c.relkind in ('r', 'i') order by c.oid`,
  );
  return rows;
}

async function readsOf(work: () => Promise<unknown>): Promise<Reads[]> {
  await client.query("begin");
  const before = await readSoFar();
  await work();
  const after = await readSoFar();
  await client.query("commit");
  return after.map(({ relation, rows, scans }, index) => ({
    relation,
    rows: rows - (before[index]?.rows ?? 0n),
    scans: scans - (before[index]?.scans ?? 0n),
  }));
}

it.each([
  "grants in sets",
  "grants one by one",
  "repeats",
  "commits in sets",
  "commits one by one",
  "charges that others have committed",
  "refunds",
])("%s read what they name, however much else there is", async (what) => {
  const batch = await batches("after")[what]?.();
  if (batch === undefined) throw new Error(`no batch of ${what}`);
  const reads = await readsOf(batch);
  expect(reads.filter(({ rows, scans }) => rows > readMax || scans > readMax)).toEqual([]);
});
