import { env } from "node:process";
import fc from "fast-check";
import { afterAll, beforeAll, expect, test } from "vitest";
import { type Chance, createChance } from "../simulate/random.ts";
import { exceededCaps, type MadeCap, misplacedHolds, missedCaps, recountAll } from "./churn-check.ts";
import type { Answer, Authorize, Command, CreateCap, Identity, System } from "./command.ts";
import { capRule } from "./history-cap.ts";
import { type HistoryServer, startHistoryServer } from "./history-server.ts";
import { spendKey } from "./model-world.ts";

/** `HISTORY_SEED=7 CHURN_ROUNDS=40 vitest run test/property/churn` looks longer, or at something else. */
const seed = Number(env["HISTORY_SEED"] ?? Date.now() % 1_000_000);
const rounds = Number(env["CHURN_ROUNDS"] ?? 5);
const clients = 8;
const callsPerRound = 10;
/** What operators do in each round, in any order. */
const changes = [
  ...(["create", "create", "create", "limit", "limit", "enforce", "enforce", "archive"] as const),
  ...(["suspend", "resume", "suspend", "resume"] as const),
];
const dollar = 1_000_000n;
const hour = 3_600_000;

let server: HistoryServer;

beforeAll(async () => {
  server = await startHistoryServer(2);
});
afterAll(async () => {
  await server?.close();
});

test(`whatever becomes of caps and keys, every counter is what was granted and charged (seed ${seed})`, async () => {
  const workspace = await server.open();
  const chance = createChance(seed);
  // Eight hours before the end of a day, a week and a month, in UTC and in other zones around it.
  const state: Churn = { now: Date.parse("2026-11-30T16:00:00Z"), caps: new Map(), made: 0, tally: new Map() };
  const [first] = workspace.systems;
  await apply(first, { op: "setClock", now: state.now });
  await makeCap(first, state, { ...plain("attached"), attachedOnly: true });
  for (const window of ["DAY", "WEEK", "MONTH", "YEAR", "LIFETIME"] as const) {
    await makeCap(first, state, { ...plain(window.toLowerCase()), window });
  }
  await makeCap(first, state, { ...plain("places"), currency: null, limit: 60n, window: "DAY" });
  for (const key of ["k0", "k1", "k2"]) await apply(first, vaultKey(key));

  for (let round = 0; round < rounds; round += 1) {
    const replicas = Array.from({ length: clients }, (_, n) => workspace.systems[n % 2] as System);
    await Promise.all([
      ...replicas.map((system, n) => runClient(system, chance.fork(), `r${round}n${n}`, state)),
      changePolicy(workspace.systems[round % 2] as System, chance.fork(), state),
    ]);
    // A quiet point: nothing is on its way.
    expect(await recountAll(workspace)).toEqual([]);
    expect(await misplacedHolds(workspace)).toEqual([]);
    expect(await exceededCaps(workspace)).toEqual([]);
    expect(await missedCaps(workspace, state.caps, ["attached"])).toEqual([]);
  }
  const seen = ["GRANTED", "DENIED", "createCap", "updateCap", "archiveCap", "suspendVaultKey", "setClock"];
  expect(seen.filter((name) => (state.tally.get(name) ?? 0) < 3)).toEqual([]);
});

interface Churn {
  now: number;
  readonly caps: Map<string, MadeCap>;
  made: number;
  readonly tally: Map<string, number>;
}

function count({ tally }: Churn, name: string): void {
  tally.set(name, (tally.get(name) ?? 0) + 1);
}

async function apply(system: System, command: Command): Promise<Answer> {
  const [answer = {}] = await system.apply(command);
  return answer;
}

async function makeCap(system: System, state: Churn, rule: CreateCap): Promise<void> {
  // Before it exists: a grant may count on it at once.
  state.caps.set(rule.cap, { rule, archived: false });
  const { error } = await apply(system, rule);
  expect(error).toBeNull();
  count(state, "createCap");
}

/** What operators do meanwhile: each change has an instant of its own, and some let windows end. */
async function changePolicy(system: System, chance: Chance, state: Churn): Promise<void> {
  const left = [...changes];
  while (left.length > 0) {
    const [kind] = left.splice(chance.between(0, left.length - 1), 1);
    state.now += chance.happens(0.3) ? chance.between(1, 3) * hour : 1;
    await apply(system, { op: "setClock", now: state.now });
    count(state, "setClock");
    const living = [...state.caps.values()].filter(({ archived }) => !archived);
    const cap = chance.pick(living);
    const command = changeOf(kind ?? "resume", chance, state, cap);
    if (command.op === "createCap") await makeCap(system, state, command);
    else {
      const { error } = await apply(system, command);
      expect(error, command.op).toBeNull();
      if (command.op === "archiveCap") cap.archived = true;
      count(state, command.op);
    }
    state.now += 1;
    await apply(system, { op: "setClock", now: state.now });
  }
}

function changeOf(kind: (typeof changes)[number], chance: Chance, state: Churn, { rule }: MadeCap): Command {
  const none = { op: "updateCap", cap: rule.cap, limit: null, restores: null, enforcement: null } as const;
  const unit = rule.currency === null ? 1n : dollar;
  switch (kind) {
    case "create": {
      state.made += 1;
      const [random] = fc.sample(capRule(fc.constant(`x${state.made}`)), {
        numRuns: 1,
        seed: chance.between(0, 2 ** 30),
      });
      if (random === undefined) throw new Error("no cap");
      const { fixed } = random;
      return {
        ...random,
        limit: random.limit * 4n,
        fixed: fixed === null ? null : { start: state.now + fixed.start, end: state.now + fixed.end },
      };
    }
    case "limit":
      return { ...none, limit: BigInt(chance.between(0, 60)) * unit };
    case "enforce":
      return { ...none, enforcement: chance.pick(["ENFORCE", "SHADOW"] as const) };
    case "archive":
      return { op: "archiveCap", cap: rule.cap };
    case "suspend":
      return { op: "suspendVaultKey", key: "k2" };
    case "resume":
      return { op: "resumeVaultKey", key: "k2" };
  }
}

async function runClient(system: System, chance: Chance, name: string, state: Churn): Promise<void> {
  for (let n = 0; n < callsPerRound; n += 1) {
    const request = authorizeFor(chance, `${name}c${n}`);
    const answer = await apply(system, request);
    count(state, String(answer["disposition"] ?? answer["error"]));
    if (answer["disposition"] !== "GRANTED" || answer["mayHaveBeenSent"] !== false) continue;
    const { customer, period, purpose, key } = request;
    const settling = { key, spend: { customer, period, purpose }, generation: Number(answer["generation"]) };
    for (const next of follow(chance, request, settling)) await apply(system, next);
  }
}

type Settling = { readonly key: string; readonly spend: Identity; readonly generation: number };

function follow(chance: Chance, request: Authorize, settling: Settling): Command[] {
  const { attempt, amount } = request;
  const reference = `ch_${spendKey(settling.spend)}_${settling.generation}`;
  const commit = (charged: bigint, to: string): Command => ({
    op: "commit",
    ...settling,
    currency: request.currency,
    amount: charged,
    reference: to,
  });
  const unsent = { evidence: "NEVER_SENT", vendorStatus: 0, replayed: false, reference: "" } as const;
  const voided: Command = { op: "void", ...settling, attempt, ...unsent };
  const raise: Command = {
    op: "increase",
    ...settling,
    attempt,
    fence: null,
    currency: request.currency,
    amount: 2n * amount,
  };
  switch (chance.pick(["commit", "less", "more", "void", "raise", "report", "second", "late", "nothing"])) {
    case "commit":
      return [commit(amount, reference)];
    case "less":
      return [commit(amount / 3n, reference)];
    case "more":
      return [commit(amount + dollar, reference)];
    case "void":
      return [voided];
    case "raise":
      return [raise, commit(2n * amount, reference)];
    case "report":
      return [{ op: "reportUnknown", ...settling, attempt }];
    case "second":
      return [commit(amount, reference), commit(amount, `${reference}_b`), commit(amount + 1n, reference)];
    case "late":
      return [voided, commit(amount, reference), commit(amount, reference)];
    default:
      return [];
  }
}

function authorizeFor(chance: Chance, purpose: string): Authorize {
  const direction = chance.happens(0.1) ? "REFUND" : "SPEND";
  return {
    op: "authorize",
    customer: chance.pick(["c1", "c2", "c3"]),
    period: chance.pick(["2026-11", "2026-12"]),
    purpose: chance.happens(0.2) ? "sub" : purpose,
    key: chance.pick(["k0", "k1", "k2"]),
    currency: chance.happens(0.1) ? "eur" : "usd",
    amount: chance.pick([dollar / 2n, dollar, 2n * dollar]),
    vendor: "stripe",
    vendorAccount: "",
    endpoint: "POST /v1/charges",
    direction,
    refundOf: "",
    attempt: chance.hex(32),
    settlement: "SEND_ONCE",
    resendSafeForMs: null,
    holdMs: 86_400_000,
    retryAfterGeneration: 0,
    continueReference: "",
    fence: null,
    fingerprint: "",
    credential: "",
    sameBodyRequired: false,
    dryRun: chance.happens(0.05),
  };
}

function plain(cap: string): CreateCap {
  return {
    op: "createCap",
    cap,
    currency: "usd",
    limit: 50n * dollar,
    maxPerSpend: null,
    enforcement: "ENFORCE",
    window: "LIFETIME",
    calendar: { zone: "UTC", startHour: 0, weekStart: 1, anchorDay: 1, anchorMonth: 1 },
    fixed: null,
    attachedOnly: false,
    perCustomer: false,
    direction: "SPEND",
    restores: false,
    scope: {},
  };
}

function vaultKey(key: string): Command {
  return {
    op: "createVaultKey",
    key,
    vendor: "stripe",
    endpoints: ["POST /v1/charges"],
    periods: ["2026-11", "2026-12"],
    purposes: [],
    customers: [],
    maxPerSpend: null,
    expireTime: null,
    attachedCaps: ["attached"],
  };
}
