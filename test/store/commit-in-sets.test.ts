import { afterAll, beforeAll, describe, expect, it } from "vitest";
import type { AuthorizationId, CommitCommand } from "../../server/domain/spend.ts";
import { bindVendorReference, commitBatch, getAuthorization, reportUnknown } from "../../server/store/spend.ts";
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

/** Five granted spends of 10 USD: the second in doubt, the third bound to "pi_2". */
async function open(): Promise<Opened> {
  const granting = await openGranting(database.pool);
  await granting.vaultKey("other");
  await granting.cap("all", usd(100));
  await granting.cap("customers", usd(30), { perCustomer: true });
  await granting.cap("number", 9);
  const commands = Array.from({ length: 5 }, (_, index) =>
    asks({ purpose: `p${index}`, customerId: `cust_${index % 2}`, attemptId: `${index}`.repeat(32) }),
  );
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
  await bindVendorReference(database.pool, granting.workspace, {
    ...given(2),
    vendorReference: "pi_2",
    vendorState: "",
    followForMs: 0,
  });
  return { granting, spends };
}

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

async function eventsOf({ workspace }: Granting): Promise<readonly unknown[]> {
  const { rows } = await database.pool.query(
    `select kind, actor_id, spend_key, generation, currency, amount_micros, disposition, reason, attempt_id,
       vault_key_id, detail
     from holdfast.audit_events where workspace_id = $1 order by xid, n`,
    [workspace],
  );
  return rows.filter(({ kind }: { kind: string }) => kind !== "call.refused");
}

async function chargesOf({ workspace }: Granting): Promise<readonly unknown[]> {
  const { rows } = await database.pool.query(
    "select vendor_reference, spend_key, generation from holdfast.vendor_charges where workspace_id = $1 order by 1",
    [workspace],
  );
  return rows;
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
    ["of an operator", [{ of: 1, actor: { kind: "operator", id: "op" }, resolution: "seen" }, { of: 3 }]],
  ])("%s is judged and written as its requests would be one by one", async (_what, told) => {
    const together = await open();
    const apart = await open();
    const atOnce = await commitBatch(database.pool, together.granting.workspace, commits(together, told));
    // What does not exist keeps the others from being committed in sets.
    const nothing = { spendKey: "f".repeat(36), generation: 1 };
    const asked = [
      ...commits(apart, told),
      { ...(commits(apart, [{ of: 0 }])[0] as CommitCommand), authorization: nothing },
    ];
    const oneByOne = (await commitBatch(database.pool, apart.granting.workspace, asked)).slice(0, -1);
    const outcome = ({ errorReason, overCommitted }: (typeof atOnce)[number]) => ({ errorReason, overCommitted });
    expect(atOnce.map(outcome)).toEqual(oneByOne.map(outcome));
    expect(await together.granting.counters()).toEqual(await apart.granting.counters());
    expect(await chargesOf(together.granting)).toEqual(await chargesOf(apart.granting));
    expect(await eventsOf(together.granting)).toEqual(await eventsOf(apart.granting));
    await together.granting.expectCountersToAddUp();
    for (const { authorization } of atOnce) {
      if (authorization === undefined) continue;
      expect(authorization).toEqual(await getAuthorization(database.pool, together.granting.workspace, authorization));
    }
  });
});
