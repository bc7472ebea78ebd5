import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import type { AuthorizationId, CommitCommand } from "../../server/domain/spend.ts";
import {
  bindVendorReference,
  type CommitResult,
  commitBatch,
  getAuthorization,
  reportUnknown,
} from "../../server/store/spend.ts";
import { asks, type Granting, micros, openGranting, usd } from "../support/granting.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";

let database: TestDatabase;

beforeAll(async () => {
  database = await createTestDatabase();
});
afterAll(() => database.close());

interface Opened {
  readonly granting: Granting;
  readonly spends: readonly AuthorizationId[];
}

/** Five granted spends of 10 USD, the second in doubt, the third bound to "pi_2"; and a refund of what is not known. */
async function open(): Promise<Opened> {
  const granting = await openGranting(database.pool);
  await granting.vaultKey("other");
  await granting.cap("all", usd(100));
  await granting.cap("customers", usd(30), { perCustomer: true });
  await granting.cap("number", 9);
  const commands = Array.from({ length: 5 }, (_, index) =>
    asks({
      purpose: `p${index}`,
      customerId: `cust_${index % 2}`,
      attemptId: `${index}`.repeat(32),
      settlement: index === 2 ? "TWO_STEP" : "SEND_ONCE",
    }),
  );
  commands.push(asks({ purpose: "back", direction: "REFUND", refundOf: "ch_elsewhere", attemptId: "5".repeat(32) }));
  const spends: AuthorizationId[] = [];
  for (const { authorization } of await granting.authorize(...commands)) {
    if (authorization === undefined) throw new Error("not granted");
    spends.push(authorization);
  }
  const given = (index: number) => {
    const authorization = spends[index] as AuthorizationId;
    return { vaultKeyId: "main", authorization, attemptId: `${index}`.repeat(32), traceId: "" };
  };
  await reportUnknown(database.pool, granting.workspace, { ...given(1), reason: "no answer" });
  const bound = await bindVendorReference(database.pool, granting.workspace, {
    ...given(2),
    vendorReference: "pi_2",
    vendorState: "",
    followForMs: 0,
  });
  expect(bound).toMatchObject({ authorization: { vendorReference: "pi_2" } });
  return { granting, spends };
}

/** Which of them is the refund. Whatever its batch commits besides is judged one by one. */
const refund = 5;

type Told = Partial<CommitCommand> & { readonly of: number };

function commits({ spends }: Opened, told: readonly Told[]): CommitCommand[] {
  return told.map(({ of, ...others }) => ({
    actor: { kind: "vault_key", id: "main" },
    authorization: spends[of] as AuthorizationId,
    amount: usd(10),
    vendorReference: `pi_${of}`,
    attemptId: `${of}`.repeat(32),
    traceId: "",
    ...others,
  }));
}

/** In no order: what is committed in sets is written before the others of its batch. */
async function eventsOf({ granting, spends }: Opened): Promise<readonly unknown[]> {
  const { rows } = await database.pool.query<{ event: string }>(
    `select jsonb_build_object('kind', kind, 'actor', actor_id, 'spend', spend_key, 'generation', generation,
       'currency', currency, 'amount', amount_micros, 'reason', reason, 'attempt', attempt_id, 'key', vault_key_id,
       'detail', detail)::text as event
     from holdfast.audit_events where workspace_id = $1 and spend_key is distinct from $2 order by 1`,
    [granting.workspace, spends[refund]?.spendKey],
  );
  return rows.map(({ event }) => event);
}

async function chargesOf({ workspace }: Granting): Promise<readonly unknown[]> {
  const { rows } = await database.pool.query(
    "select vendor_reference, spend_key, generation from holdfast.vendor_charges where workspace_id = $1 order by 1",
    [workspace],
  );
  return rows;
}

const outcome = ({ errorReason, overCommitted }: CommitResult) => ({ errorReason, overCommitted });

/** What is left of it, but for the refund. */
async function written(opened: Opened): Promise<unknown> {
  const charges = (await chargesOf(opened.granting)) as { vendor_reference: string }[];
  return {
    counters: await opened.granting.counters(),
    charges: charges.filter((one) => one.vendor_reference !== "re_1"),
    events: await eventsOf(opened),
  };
}

/** Commits batches as they come, and again elsewhere so that each is judged in turn. The results are of the last one. */
async function sameEitherWay(...batches: readonly (readonly Told[])[]): Promise<[Opened, CommitResult[]]> {
  const together = await open();
  const looped = await open();
  let results: CommitResult[] = [];
  for (const told of batches) {
    results = await commitBatch(database.pool, together.granting.workspace, commits(together, told));
    const asked = commits(looped, [...told, { of: refund, vendorReference: "re_1" }]);
    const inTurn = (await commitBatch(database.pool, looped.granting.workspace, asked)).slice(0, -1);
    expect(results.map(outcome)).toEqual(inTurn.map(outcome));
  }
  expect(await written(together)).toEqual(await written(looped));
  await together.granting.expectCountersToAddUp();
  for (const { authorization } of results) {
    if (authorization === undefined) continue;
    expect(authorization).toEqual(await getAuthorization(database.pool, together.granting.workspace, authorization));
  }
  return [together, results];
}

describe("a batch of commits", () => {
  it.each<[string, readonly Told[]]>([
    ["at what was held", [{ of: 0 }, { of: 1 }, { of: 2 }, { of: 3 }]],
    [
      "at more and at less",
      [
        { of: 0, amount: usd(11) },
        { of: 1, amount: usd(3) },
        { of: 3, amount: usd(0) },
      ],
    ],
    [
      "above the cap",
      [
        { of: 0, amount: usd(500) },
        { of: 3, amount: usd(1) },
      ],
    ],
    ["in another currency", [{ of: 0, amount: { currency: "eur", micros: micros(7) } }, { of: 3 }]],
    [
      "of one charge for two spends",
      [
        { of: 0, vendorReference: "pi_9" },
        { of: 3, vendorReference: "pi_9" },
      ],
    ],
    ["of two charges for one spend", [{ of: 0 }, { of: 0, vendorReference: "pi_9" }]],
    ["that come twice", [{ of: 0 }, { of: 0 }, { of: 3 }]],
    ["of what is bound to another spend", [{ of: 0, vendorReference: "pi_2" }, { of: 3 }]],
    ["of another object than is bound", [{ of: 2, vendorReference: "pi_9" }, { of: 3 }]],
    ["of another vault key", [{ of: 0, actor: { kind: "vault_key", id: "other" } }, { of: 3 }]],
    [
      "of an operator who is named like the vault key, in the middle of a call",
      [{ of: 0, actor: { kind: "operator", id: "main" }, resolution: "seen" }, { of: 3 }],
    ],
    ["of an operator", [{ of: 1, actor: { kind: "operator", id: "op" }, resolution: "seen" }, { of: 3 }]],
  ])("%s is judged and written as its requests would be one by one", async (_what, told) => {
    const [together, results] = await sameEitherWay(told);
    const apart = await open();
    const alone: typeof results = [];
    for (const one of commits(apart, told)) {
      alone.push(...(await commitBatch(database.pool, apart.granting.workspace, [one])));
    }
    expect(results.map(outcome)).toEqual(alone.map(outcome));
    expect(await written(together)).toEqual(await written(apart));
  });

  it("of any kind at all is judged and written as in turn", async () => {
    const one: fc.Arbitrary<Told> = fc.record(
      {
        of: fc.nat(refund - 1),
        vendorReference: fc.constantFrom("pi_0", "pi_1", "pi_2", "pi_3", "pi_9"),
        amount: fc.constantFrom(usd(10), usd(4), usd(60), { currency: "eur", micros: micros(7) }),
        actor: fc.constantFrom<CommitCommand["actor"]>(
          { kind: "vault_key", id: "main" },
          { kind: "vault_key", id: "other" },
        ),
      },
      { requiredKeys: ["of"] },
    );
    const histories = fc.sample(
      fc.array(fc.array(one, { minLength: 1, maxLength: 6 }), { minLength: 1, maxLength: 4 }),
      {
        numRuns: 60,
        seed: 8,
      },
    );
    for (const history of histories) await sameEitherWay(...history);
  }, 300_000);
});
