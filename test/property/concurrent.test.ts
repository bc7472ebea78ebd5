import { env } from "node:process";
import { createClient } from "@connectrpc/connect";
import { AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import { AuthorizationState } from "@holdfast/api/holdfast/v1/spend_pb";
import fc from "fast-check";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { Authorize, Command, CreateCap, Identity, System } from "./command.ts";
import { difference } from "./history.ts";
import { type HistoryServer, startHistoryServer, type Workspace } from "./history-server.ts";
import { spendKey } from "./model-world.ts";
import { micros } from "./rpc-message.ts";

const dollar = 1_000_000n;
const start = Date.parse("2026-11-30T12:00:00Z");
const clients = 8;
const callsPerClient = 25;
const seed = Number(env["HISTORY_SEED"] ?? Date.now() % 1_000_000);

let server: HistoryServer;

beforeAll(async () => {
  server = await startHistoryServer(2);
});
afterAll(async () => {
  await server?.close();
});

const caps: readonly CreateCap[] = [
  cap("all", 40n, { window: "LIFETIME" }),
  cap("day", 25n, { window: "DAY" }),
  cap("period", 30n, { window: "BILLING_PERIOD" }),
  cap("customer", 3n, { window: "LIFETIME", perCustomer: true }),
  cap("k1", 12n, { window: "LIFETIME", scope: { key: "k1" } }),
];

test(`concurrent callers never exceed a cap and nothing is counted twice (seed ${seed})`, async () => {
  const workspace = await server.open();
  const [system, other = system] = workspace.systems;
  await setUp(system);
  const scripts = fc.sample(script, { numRuns: clients, seed });
  const tally: Tally = { granted: new Map(), answers: new Map() };
  await Promise.all(scripts.map((calls, i) => runClient(i % 2 === 0 ? system : other, i, calls, tally)));
  expect(Math.min(...["GRANTED", "DENIED", "IN_PROGRESS"].map((name) => tally.answers.get(name) ?? 0))).toBeGreaterThan(
    3,
  );

  // One grant per spend that was told it is the first, however many callers asked at once.
  expect([...tally.granted.values()].filter((count) => count !== 1)).toEqual([]);
  const rows = await readAll(workspace);
  expect(new Set(rows.map(({ name }) => name)).size).toBe(rows.length);
  for (const rule of caps) await recountCap(system, rule, rows);
});

interface Call {
  readonly spend: Identity;
  readonly amount: bigint;
  readonly key: string;
  readonly next: "commit" | "less" | "void" | "report" | "raise" | "repeat" | "nothing";
}

const script: fc.Arbitrary<Call[]> = fc.array(
  fc.record({
    spend: fc.record({
      customer: fc.constantFrom("c1", "c2", "c3", "c4", "c5", "c6", "c7"),
      period: fc.constantFrom("2026-11", "2026-12"),
      purpose: fc.constantFrom("sub", "fee"),
    }),
    amount: fc.constantFrom(dollar, dollar, dollar / 2n),
    key: fc.constantFrom("k0", "k0", "k1"),
    next: fc.constantFrom("commit", "less", "void", "report", "raise", "repeat", "nothing", "nothing"),
  }),
  { minLength: callsPerClient, maxLength: callsPerClient, size: "max" },
);

async function setUp(system: System): Promise<void> {
  await system.apply({ op: "setClock", now: start });
  for (const key of ["k0", "k1"]) {
    const command: Command = {
      op: "createVaultKey",
      key,
      vendor: "stripe",
      endpoints: ["POST /v1/charges"],
      periods: ["2026-11", "2026-12"],
      purposes: [],
      customers: [],
      maxPerSpend: null,
      expireTime: null,
      attachedCaps: [],
    };
    expect(difference([{ error: null }], await system.apply(command))).toBeNull();
  }
  for (const rule of caps) expect(difference([{ error: null }], await system.apply(rule))).toBeNull();
}

/** First grants by authorization, and answers by disposition. */
interface Tally {
  readonly granted: Map<string, number>;
  readonly answers: Map<string, number>;
}

function count(counts: Map<string, number>, name: string): void {
  counts.set(name, (counts.get(name) ?? 0) + 1);
}

async function runClient(
  system: System,
  client: number,
  calls: readonly Call[],
  { granted, answers }: Tally,
): Promise<void> {
  for (const [i, call] of calls.entries()) {
    const request = authorizeFor(call, client * callsPerClient + i);
    const [answer = {}] = await system.apply(request);
    count(answers, String(answer["disposition"] ?? answer["error"]));
    if (answer["disposition"] !== "GRANTED" || answer["mayHaveBeenSent"] !== false) continue;
    count(granted, String(answer["name"]));
    const settling = { key: call.key, spend: call.spend, generation: Number(answer["generation"]) };
    const next = follow(call, request, settling);
    if (next !== null) await system.apply(next);
  }
}

function follow(
  call: Call,
  request: Authorize,
  settling: { readonly key: string; readonly spend: Identity; readonly generation: number },
): Command | null {
  const reference = `ch_${spendKey(call.spend)}_${settling.generation}`;
  const { attempt } = request;
  switch (call.next) {
    case "commit":
      return { op: "commit", ...settling, currency: "usd", amount: request.amount, reference };
    case "less":
      return { op: "commit", ...settling, currency: "usd", amount: request.amount / 4n, reference };
    case "void":
      return {
        op: "void",
        ...settling,
        attempt,
        evidence: "NEVER_SENT",
        vendorStatus: 0,
        replayed: false,
        reference: "",
      };
    case "report":
      return { op: "reportUnknown", ...settling, attempt };
    case "raise":
      return { op: "increase", ...settling, attempt, fence: null, currency: "usd", amount: 2n * request.amount };
    case "repeat":
      return request;
    case "nothing":
      return null;
  }
}

function authorizeFor(call: Call, n: number): Authorize {
  return {
    op: "authorize",
    ...call.spend,
    key: call.key,
    currency: "usd",
    amount: call.amount,
    vendor: "stripe",
    vendorAccount: "",
    endpoint: "POST /v1/charges",
    direction: "SPEND",
    refundOf: "",
    attempt: n.toString(16).padStart(32, "0"),
    settlement: "SEND_ONCE",
    resendSafeForMs: null,
    holdMs: 600_000,
    retryAfterGeneration: 0,
    continueReference: "",
    fence: null,
    fingerprint: "",
    credential: "",
    sameBodyRequired: false,
    dryRun: false,
  };
}

interface Row {
  readonly name: string;
  readonly customer: string;
  readonly period: string;
  readonly key: string;
  readonly held: bigint;
  readonly committed: bigint;
}

async function readAll({ transport, operatorToken }: Workspace): Promise<Row[]> {
  const admin = createClient(AdminService, transport);
  const headers = { authorization: `Bearer ${operatorToken}` };
  const rows: Row[] = [];
  let pageToken = "";
  do {
    const page = await admin.listAuthorizations({ pageSize: 7, pageToken }, { headers });
    for (const one of page.authorizations) {
      const open = one.state === AuthorizationState.HELD || one.state === AuthorizationState.IN_DOUBT;
      rows.push({
        name: one.name,
        customer: one.spend?.customerId ?? "",
        period: one.spend?.billingPeriod ?? "",
        key: one.vaultKey.replace("vaultKeys/", ""),
        held: open ? (micros(one.heldAmount) ?? 0n) : 0n,
        committed: micros(one.committedAmount) ?? 0n,
      });
    }
    pageToken = page.nextPageToken;
  } while (pageToken !== "");
  return rows;
}

/** Every counter of a cap equals the sum over the authorizations it counts, and is within the limit. */
async function recountCap(system: System, rule: CreateCap, rows: readonly Row[]): Promise<void> {
  const counted = rows.filter(({ key }) => rule.scope.key === undefined || rule.scope.key === key);
  const groups = Map.groupBy(counted, ({ period, customer }) =>
    JSON.stringify([windowOf(rule, period), rule.perCustomer ? customer : ""]),
  );
  for (const [group, members] of groups) {
    const [window, customer] = JSON.parse(group) as [string, string];
    const held = members.reduce((sum, row) => sum + row.held, 0n);
    const committed = members.reduce((sum, row) => sum + row.committed, 0n);
    const expected = { error: null, held, committed, headroom: rule.limit - held - committed };
    const actual = await system.usage({ cap: rule.cap, window, customer });
    expect(difference([expected], [actual]), `${rule.cap} ${group}`).toBeNull();
    expect(held + committed <= rule.limit, `${rule.cap} ${group} is within its limit`).toBe(true);
  }
}

function windowOf(rule: CreateCap, period: string): string {
  if (rule.window === "DAY") return "2026-11-30";
  return rule.window === "BILLING_PERIOD" ? period : "";
}

function cap(
  id: string,
  dollars: bigint,
  rest: Pick<CreateCap, "window"> & Partial<Pick<CreateCap, "perCustomer" | "scope">>,
): CreateCap {
  return {
    op: "createCap",
    cap: id,
    currency: "usd",
    limit: dollars * dollar,
    maxPerSpend: null,
    enforcement: "ENFORCE",
    calendar: { zone: "Asia/Kolkata", startHour: 0, weekStart: 1, anchorDay: 1, anchorMonth: 1 },
    fixed: null,
    attachedOnly: false,
    perCustomer: false,
    direction: "SPEND",
    restores: false,
    scope: {},
    ...rest,
  };
}
