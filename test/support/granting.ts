import { randomBytes } from "node:crypto";
import type pg from "pg";
import { expect } from "vitest";
import type { NewCap } from "../../server/domain/cap.ts";
import { type Micros, type Money, toMicros } from "../../server/domain/money.ts";
import type {
  Authorization,
  AuthorizationId,
  AuthorizeCommand,
  AuthorizeDecision,
  CommitCommand,
  IncreaseCommand,
  IncreaseDecision,
} from "../../server/domain/spend.ts";
import type { KillSwitch, KillSwitchTarget } from "../../server/domain/kill-switch.ts";
import type { NewVaultKey, VaultKey, VaultKeyState } from "../../server/domain/vault-key.ts";
import { archiveCap, type CapChange, insertCap, updateCap } from "../../server/store/cap.ts";
import type { Database } from "../../server/store/database.ts";
import { increaseHold } from "../../server/store/increase-hold.ts";
import { engageKillSwitch, releaseKillSwitch } from "../../server/store/kill-switch.ts";
import { type ChangePolicy, createChangePolicy } from "../../server/store/policy.ts";
import { inTransaction } from "../../server/store/postgres.ts";
import { authorizeBatch } from "../../server/store/authorize.ts";
import * as store from "../../server/store/spend.ts";
import { changeVaultKeyState, insertVaultKey } from "../../server/store/vault-key.ts";
import { ensureWorkspace } from "../../server/store/workspace.ts";

export const endpoint = "POST /v1/payment_intents";

/** "12.50" as micros. */
export function micros(amount: string | number): Micros {
  const [whole = "0", fraction = ""] = `${amount}`.split(".");
  return toMicros(BigInt(whole) * 1_000_000n + BigInt(fraction.padEnd(6, "0")));
}

export function usd(amount: string | number): Money {
  return { currency: "usd", micros: micros(amount) };
}

/** A new random attempt id. */
export function attempt(): string {
  return randomBytes(16).toString("hex");
}

export type Asked = Partial<Omit<AuthorizeCommand, "spend">> & {
  readonly customerId?: string;
  readonly billingPeriod?: string;
  readonly purpose?: string;
};

/** A command with every field set; what is given replaces a default. */
export function asks(asked: Asked = {}): AuthorizeCommand {
  const { customerId = "cust_1", billingPeriod = "2026-11", purpose = "subscription", ...others } = asked;
  return {
    vaultKeyId: "main",
    spend: { customerId, billingPeriod, purpose },
    amount: usd(10),
    vendor: "stripe",
    vendorAccount: "",
    endpoint,
    direction: "SPEND",
    refundOf: "",
    settlement: "SEND_ONCE",
    resendSafeForMs: undefined,
    holdForMs: 600_000,
    attemptId: attempt(),
    bodyFingerprint: "",
    credentialFingerprint: "",
    sameBodyRequired: false,
    retryAfterGeneration: 0,
    continueVendorReference: "",
    fence: undefined,
    traceId: "0af7651916cd43dd8448eb211c80319c",
    ...others,
  };
}

export interface Counter {
  readonly capId: string;
  readonly window: string;
  readonly subject: string;
  readonly committed: bigint;
  readonly held: bigint;
}

export type NewCapOptions = Partial<Omit<NewCap, "capId" | "scope">> & { readonly scope?: Partial<NewCap["scope"]> };

/** A workspace that nothing has used yet, and the calls of the store on it. */
export interface Granting {
  readonly workspace: string;
  readonly changePolicy: ChangePolicy;
  vaultKey(vaultKeyId: string, policy?: Partial<NewVaultKey>): Promise<VaultKey>;
  revoke(vaultKeyId: string): Promise<void>;
  suspend(vaultKeyId: string): Promise<void>;
  resume(vaultKeyId: string): Promise<void>;
  engage(target: KillSwitchTarget): Promise<KillSwitch>;
  release(killSwitch: KillSwitch): Promise<void>;
  /** A limit that is no Money is a number of spends. */
  cap(capId: string, limit: Money | number, options?: NewCapOptions): Promise<void>;
  archive(capId: string): Promise<void>;
  changeCap(capId: string, change: Partial<CapChange>): Promise<void>;
  authorize(...commands: AuthorizeCommand[]): Promise<AuthorizeDecision[]>;
  /** Authorizes one and expects GRANTED. */
  grant(asked?: Asked): Promise<Authorization>;
  commit(id: AuthorizationId, options?: Partial<CommitCommand>): Promise<store.CommitResult>;
  /** Voids it as its holding attempt would after a decline; `on` is another connection than the pool. */
  refuse(id: AuthorizationId, on?: Database): Promise<store.Settled>;
  /** Raises its hold as its holding attempt would; `on` is another connection than the pool. */
  raise(
    id: AuthorizationId,
    amount: Money,
    options?: Partial<IncreaseCommand> & { readonly on?: Database },
  ): Promise<IncreaseDecision>;
  row(id: AuthorizationId): Promise<Record<string, unknown>>;
  counters(): Promise<Counter[]>;
  /** Checks that every counter is what its holds, commits and contradictions add up to. */
  expectCountersToAddUp(): Promise<void>;
}

/** Opens a workspace with the vault key "main", which allows `endpoint` at Stripe. */
export async function openGranting(pool: pg.Pool): Promise<Granting> {
  const workspace = `w${randomBytes(8).toString("hex")}`;
  await ensureWorkspace(pool, workspace);
  const changePolicy = createChangePolicy((work) => inTransaction(pool, work));
  const change = async <Result>(kind: string, work: (transaction: Database) => Promise<Result>): Promise<Result> => {
    const principal = { role: "operator" as const, workspace, id: "test" };
    return await changePolicy({ principal, kind, traceId: "", detail: {} }, work);
  };
  const granting: Granting = {
    workspace,
    changePolicy,
    vaultKey: (vaultKeyId, policy) => insertVaultKey(pool, workspace, newKey(vaultKeyId, policy), randomBytes(32)),
    revoke: async (id) =>
      void (await change("vault_key.revoked", (client) => setState(client, workspace, id, "REVOKED"))),
    suspend: async (id) =>
      void (await change("vault_key.suspended", (client) => setState(client, workspace, id, "SUSPENDED"))),
    resume: async (id) =>
      void (await change("vault_key.resumed", (client) => setState(client, workspace, id, "ACTIVE"))),
    engage: async (target) => {
      const made = { killSwitchId: attempt(), target, reason: "test", engagedBy: "test" };
      const { killSwitch } = await change("kill_switch.engaged", (client) => engageKillSwitch(client, workspace, made));
      return killSwitch;
    },
    release: async ({ killSwitchId }) => {
      const release = { by: "test", reason: "test" };
      await change("kill_switch.released", (client) => releaseKillSwitch(client, workspace, killSwitchId, release));
    },
    cap: async (capId, limit, options) =>
      void (await change("cap.created", (client) => insertCap(client, workspace, newCap(capId, limit, options)))),
    changeCap: async (capId, changes) => {
      const none = {
        limit: undefined,
        maxPerSpend: undefined,
        refundsRestoreHeadroom: undefined,
        enforcement: undefined,
      };
      const all = { ...none, ...changes };
      await change("cap.updated", (client) => updateCap(client, workspace, capId, all));
    },
    archive: async (capId) =>
      void (await change("cap.archived", (client) => archiveCap(client, workspace, capId, "test"))),
    authorize: (...commands) => authorizeBatch(pool, workspace, commands),
    grant: async (asked) => {
      const [decision] = await authorizeBatch(pool, workspace, [asks(asked)]);
      expect(decision).toMatchObject({ disposition: "GRANTED" });
      return decision?.authorization as Authorization;
    },
    commit: async (id, options) => {
      const [result] = await store.commitBatch(pool, workspace, [commitCommand(id, options)]);
      return result as store.CommitResult;
    },
    refuse: async (id, on = pool) => {
      const row = await granting.row(id);
      return await store.voidSpend(on, workspace, {
        actor: { kind: "vault_key", id: String(row["vault_key_id"]) },
        authorization: id,
        attemptId: String(row["attempt_id"]),
        evidence: "VENDOR_REFUSED",
        vendorStatus: 402,
        vendorReplayed: false,
        vendorReference: "",
        reason: "declined",
        traceId: "",
      });
    },
    raise: async (id, amount, { on = pool, ...options } = {}) => {
      const attemptId = options.attemptId ?? String((await granting.row(id))["attempt_id"]);
      const given = { vaultKeyId: "main", authorization: id, amount, fence: undefined, traceId: "" };
      return await increaseHold(on, workspace, { ...given, ...options, attemptId });
    },
    row: async ({ spendKey, generation }) => {
      const { rows } = await pool.query<{ row: Record<string, unknown> }>(
        `select to_jsonb(t) as row from holdfast.authorizations t
         where t.workspace_id = $1 and t.spend_key = $2 and t.generation = $3`,
        [workspace, spendKey, generation],
      );
      return rows[0]?.row ?? {};
    },
    counters: () => readCounters(pool, workspace),
    expectCountersToAddUp: async () => {
      expect(await readCounters(pool, workspace)).toEqual(await recount(pool, workspace));
    },
  };
  await granting.vaultKey("main");
  return granting;
}

export function commitCommand(authorization: AuthorizationId, options: Partial<CommitCommand> = {}): CommitCommand {
  return {
    actor: { kind: "vault_key", id: "main" },
    authorization,
    amount: usd(10),
    vendorReference: `pi_${authorization.spendKey}_${authorization.generation}`,
    attemptId: "",
    traceId: "",
    ...options,
  };
}

async function setState(client: Database, workspace: string, vaultKeyId: string, state: VaultKeyState) {
  return await changeVaultKeyState(client, workspace, vaultKeyId, { state, reason: "test" });
}

function newKey(vaultKeyId: string, policy: Partial<NewVaultKey> = {}): NewVaultKey {
  return {
    vaultKeyId,
    vendor: "stripe",
    allowedEndpoints: [endpoint],
    billingPeriods: undefined,
    purposes: undefined,
    customers: undefined,
    maxPerSpend: undefined,
    expireTime: undefined,
    attachedCaps: [],
    labels: {},
    ...policy,
  };
}

function newCap(capId: string, limit: Money | number, options: NewCapOptions = {}): NewCap {
  const { scope, ...others } = options;
  return {
    capId,
    limit: typeof limit === "number" ? { currency: undefined, count: BigInt(limit) } : limit,
    enforcement: "ENFORCE",
    window: "LIFETIME",
    timeZone: "UTC",
    startHour: 0,
    weekStart: 1,
    anchorDay: 1,
    anchorMonth: 1,
    startTime: undefined,
    endTime: undefined,
    attachedOnly: false,
    perCustomer: false,
    direction: "SPEND",
    refundsRestoreHeadroom: false,
    maxPerSpend: undefined,
    ...others,
    scope: {
      vaultKeyId: undefined,
      vendor: undefined,
      endpoint: undefined,
      customerId: undefined,
      purpose: undefined,
      ...scope,
    },
  };
}

// Of a cap that counts spends, the counts; the others never move.
async function readCounters(pool: pg.Pool, workspace: string): Promise<Counter[]> {
  const { rows } = await pool.query<Counter>(
    `select n.cap_id as "capId", n.window_label as "window", n.subject,
       case when c.currency is null then n.committed_count else n.committed_micros end as committed,
       case when c.currency is null then n.held_count else n.held_micros end as held
     from holdfast.counters n
     join holdfast.caps c on c.workspace_id = n.workspace_id and c.cap_id = n.cap_id
     where n.workspace_id = $1 order by 1, 2, 3`,
    [workspace],
  );
  return rows;
}

/** The counters as they would be if they were summed up from the rows: the server never does that. */
export async function recount(pool: pg.Pool, workspace: string): Promise<Counter[]> {
  const { rows } = await pool.query<Counter>(
    `select n.cap_id as "capId", n.window_label as "window", n.subject,
       case when c.currency is null then
         coalesce(sum(h.spend_count) filter (where t.state = 'COMMITTED'), 0) + coalesce(x.spends, 0)
       else
         coalesce(sum(case when t.state = 'COMMITTED' then
           case when t.committed_currency = t.currency then t.committed_micros else h.amount_micros end
           else 0 end - h.returned_micros), 0) + coalesce(x.counted, 0)
       end as committed,
       coalesce(sum(h.amount_micros + h.spend_count) filter (where t.state in ('HELD', 'IN_DOUBT')), 0) as held
     from holdfast.counters n
     join holdfast.caps c on c.workspace_id = n.workspace_id and c.cap_id = n.cap_id
     left join holdfast.holds h on h.workspace_id = n.workspace_id and h.cap_id = n.cap_id
       and h.window_label = n.window_label and h.subject = n.subject
     left join holdfast.authorizations t on t.workspace_id = h.workspace_id and t.spend_key = h.spend_key
       and t.generation = h.generation
     left join lateral (
       select sum(x.counted_micros) as counted, sum(x.counted_spends) as spends from holdfast.contradiction_counts x
       where x.workspace_id = n.workspace_id and x.cap_id = n.cap_id and x.window_label = n.window_label
         and x.subject = n.subject
     ) x on true
     where n.workspace_id = $1
     group by 1, 2, 3, c.currency, x.counted, x.spends order by 1, 2, 3`,
    [workspace],
  );
  return rows;
}
