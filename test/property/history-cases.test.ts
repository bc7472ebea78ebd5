import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { Authorize, Calendar, Command, Commit, CreateCap } from "./command.ts";
import { difference } from "./history.ts";
import { type HistoryServer, startHistoryServer } from "./history-server.ts";
import { createModel } from "./model.ts";

/** Short histories that a server once answered wrongly. */

const start = Date.parse("2026-11-01T02:00:00Z");
const dollar = 1_000_000n;
const calendar: Calendar = { zone: "UTC", startHour: 0, weekStart: 1, anchorDay: 1, anchorMonth: 1 };
let server: HistoryServer;

beforeAll(async () => {
  server = await startHistoryServer();
});
afterAll(async () => {
  await server?.close();
});

const lateKey: Command = {
  op: "createVaultKey",
  key: "late",
  vendor: "stripe",
  endpoints: ["POST /v1/charges"],
  periods: [],
  purposes: [],
  customers: [],
  maxPerSpend: null,
  expireTime: start + 1_000,
  attachedCaps: [],
};

const cases: Readonly<Record<string, readonly Command[]>> = {
  "a spend that replaces an expired, never bound one still needs headroom": [
    cap({ limit: 2n * dollar }),
    authorize({ key: "k0", settlement: "TWO_STEP" }),
    { op: "setClock", now: start + 60_000 },
    authorize({ key: "k1", amount: 5n * dollar }),
  ],
  "later requests of the batch still need headroom after a replacement": [
    cap({ limit: 2n * dollar }),
    authorize({ key: "k0", settlement: "TWO_STEP" }),
    { op: "setClock", now: start + 60_000 },
    {
      op: "authorizeBatch",
      key: "k1",
      requests: [authorize({ key: "k1" }), authorize({ key: "k1", customer: "c2", amount: 9n * dollar })],
    },
  ],
  "a replacement in another currency is denied with every figure": [
    cap({ limit: 2n * dollar }),
    authorize({ key: "k0", settlement: "TWO_STEP" }),
    { op: "setClock", now: start + 60_000 },
    authorize({ key: "k1", currency: "eur" }),
  ],
  "a key whose end has come is not made, and that is said before that it exists": [
    lateKey,
    { op: "setClock", now: start + 1_000 },
    lateKey,
    { ...lateKey, key: "later" },
    authorize({ key: "late" }),
  ],
  "a day ends at the first midnight where the clocks go back over it": [
    cap({ limit: 0n, window: "DAY", calendar: { ...calendar, zone: "America/Havana" } }),
    authorize({ key: "k0" }),
  ],
  "a repeated commit still says that it was above the hold": [
    cap({ limit: 2n * dollar }),
    authorize({ key: "k0" }),
    commit({ amount: 3n * dollar }),
    commit({ amount: 3n * dollar }),
  ],
  "a contradicting commit does not take the reference from another one of its batch": [
    cap({ limit: 9n * dollar }),
    authorize({ key: "k0" }),
    authorize({ key: "k0", customer: "c2" }),
    {
      op: "commitBatch",
      key: "k0",
      requests: [commit({}), commit({ reference: "ch_2" }), commit({ customer: "c2", reference: "ch_2" })],
    },
  ],
  "an answer of a batch shows what its later requests have not yet changed": [
    cap({ limit: 9n * dollar, restores: true }),
    authorize({ key: "k0" }),
    {
      op: "bind",
      key: "k0",
      spend: { customer: "c1", period: "2026-11", purpose: "sub" },
      generation: 1,
      attempt: "0".repeat(32),
      reference: "ch_1",
      vendorState: "processing",
      followForMs: 60_000,
    },
    {
      op: "authorizeBatch",
      key: "k0",
      requests: [
        authorize({ attempt: "1".repeat(32) }),
        authorize({ attempt: "2".repeat(32), continueReference: "ch_1" }),
        authorize({ customer: "c2" }),
        authorize({ customer: "c3", direction: "REFUND", refundOf: "ch_1" }),
        authorize({ customer: "c2", amount: 2n * dollar }),
      ],
    },
    { op: "setClock", now: start + 60_000 },
    {
      op: "authorizeBatch",
      key: "k0",
      requests: [
        authorize({ attempt: "3".repeat(32) }),
        authorize({ attempt: "4".repeat(32), continueReference: "ch_1" }),
      ],
    },
    {
      op: "commitBatch",
      key: "k0",
      requests: [commit({}), commit({ customer: "c3", reference: "re_1" }), commit({}), commit({ reference: "ch_9" })],
    },
  ],
  "a dry run in a batch is judged in its place": [
    cap({ limit: 2n * dollar }),
    {
      op: "authorizeBatch",
      key: "k0",
      requests: [
        authorize({ key: "k0", amount: 2n * dollar, dryRun: true }),
        authorize({ key: "k0", customer: "c2", amount: 2n * dollar }),
        authorize({ key: "k0", customer: "c3", amount: dollar, dryRun: true }),
      ],
    },
  ],
  "a charge that settles another spend is not counted twice where another object is bound": [
    cap({ limit: 9n * dollar }),
    authorize({ key: "k0" }),
    commit({}),
    authorize({ key: "k0", customer: "c2", settlement: "TWO_STEP" }),
    {
      op: "bind",
      key: "k0",
      spend: { customer: "c2", period: "2026-11", purpose: "sub" },
      generation: 1,
      attempt: "0".repeat(32),
      reference: "pi_2",
      vendorState: "",
      followForMs: null,
    },
    commit({ customer: "c2" }),
  ],
};

describe("a server answers as the model does", () => {
  test.each(Object.entries(cases))("%s", async (_name, commands) => {
    const { systems } = await server.open();
    const model = createModel(start);
    for (const command of [...setup, ...commands]) {
      const expected = model.apply(command);
      expect(difference(expected, await systems[0].apply(command)), command.op).toBeNull();
    }
    for (const { name } of model.world.counters.values()) {
      expect(difference([model.usage(name)], [await systems[0].usage(name)])).toBeNull();
    }
  });
});

const setup: readonly Command[] = [
  { op: "setClock", now: start },
  ...["k0", "k1"].map(
    (key): Command => ({
      op: "createVaultKey",
      key,
      vendor: "stripe",
      endpoints: ["POST /v1/charges"],
      periods: [],
      purposes: [],
      customers: [],
      maxPerSpend: null,
      expireTime: null,
      attachedCaps: [],
    }),
  ),
];

function cap(change: Partial<CreateCap>): CreateCap {
  return {
    op: "createCap",
    cap: "all",
    currency: "usd",
    limit: 0n,
    maxPerSpend: null,
    enforcement: "ENFORCE",
    window: "LIFETIME",
    calendar,
    fixed: null,
    attachedOnly: false,
    perCustomer: false,
    direction: "SPEND",
    restores: false,
    scope: {},
    ...change,
  };
}

function authorize(change: Partial<Authorize>): Authorize {
  return {
    op: "authorize",
    customer: "c1",
    period: "2026-11",
    purpose: "sub",
    key: "k0",
    currency: "usd",
    amount: dollar,
    vendor: "stripe",
    vendorAccount: "",
    endpoint: "POST /v1/charges",
    direction: "SPEND",
    refundOf: "",
    attempt: "0".repeat(32),
    settlement: "SEND_ONCE",
    resendSafeForMs: null,
    holdMs: 60_000,
    retryAfterGeneration: 0,
    continueReference: "",
    fence: null,
    fingerprint: "",
    credential: "",
    sameBodyRequired: false,
    dryRun: false,
    ...change,
  };
}

function commit(change: { customer?: string; amount?: bigint; reference?: string }): Commit {
  return {
    op: "commit",
    key: "k0",
    spend: { customer: change.customer ?? "c1", period: "2026-11", purpose: "sub" },
    generation: 1,
    currency: "usd",
    amount: change.amount ?? dollar,
    reference: change.reference ?? "ch_1",
  };
}
