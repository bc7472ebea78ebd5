import { randomBytes } from "node:crypto";
import { type Message, toJson } from "@bufbuild/protobuf";
import { createRegistry } from "@bufbuild/protobuf";
import { ConnectError } from "@connectrpc/connect";
import { ErrorInfoSchema } from "@holdfast/api/google/rpc/error_details_pb";
import { AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { Disposition, ReconciliationFinding, VoidEvidence } from "@holdfast/api/holdfast/v1/spend_pb";
import fc from "fast-check";
import { afterAll, beforeAll, expect, test } from "vitest";
import { startTestServer, type TestServer } from "../support/server.ts";
import { asks, attempt, type Names, openTenant, type Tenant, usd } from "./isolation-world.ts";

let server: TestServer;
let tenants: readonly [Tenant, Tenant];

beforeAll(async () => {
  server = await startTestServer({ config: { batchMax: 500 } });
  tenants = [await openTenant(server, "acme"), await openTenant(server, "globex")];
}, 120_000);
afterAll(() => server.close());

/** One call with the name of something. */
interface Probe {
  readonly kind: keyof Names;
  readonly call: (tenant: Tenant, name: string) => Promise<Message>;
}

const reason = "isolation";
const resolution = { case: "voided" as const, value: { vendorReference: "" } };
const evidence = VoidEvidence.TOMBSTONE;

/** Reads, which are also made of the caller's own. */
const reads: Readonly<Record<string, Probe>> = {
  getCap: { kind: "caps", call: (t, name) => t.operator.getCap({ name }) },
  getVaultKey: { kind: "vaultKeys", call: (t, name) => t.auditor.getVaultKey({ name }) },
  getAuthorization: {
    kind: "authorizations",
    call: (t, value) => t.spend.getAuthorization({ lookup: { case: "name", value } }),
  },
  getAuthorizationAsOperator: {
    kind: "authorizations",
    call: (t, value) => t.operatorSpend.getAuthorization({ lookup: { case: "name", value } }),
  },
  getSpendStory: {
    kind: "authorizations",
    call: (t, value) => t.auditor.getSpendStory({ lookup: { case: "authorization", value } }),
  },
  getAuthorizationByReference: {
    kind: "references",
    call: (t, vendorReference) =>
      t.operatorSpend.getAuthorization({
        lookup: { case: "vendorReference", value: { vendor: "stripe", vendorReference } },
      }),
  },
};

/** Changes, which are only tried on what is not the caller's. */
const changes: Readonly<Record<string, Probe>> = {
  updateCap: {
    kind: "caps",
    call: (t, name) => t.operator.updateCap({ cap: { name, limit: usd("0") }, updateMask: { paths: ["limit"] } }),
  },
  archiveCap: { kind: "caps", call: (t, name) => t.operator.archiveCap({ name, reason }) },
  attachCap: {
    kind: "caps",
    call: (t, name) =>
      t.operator.updateVaultKey({
        vaultKey: { name: "vaultKeys/main", attachedCaps: [name] },
        updateMask: { paths: ["attached_caps"] },
      }),
  },
  updateVaultKey: {
    kind: "vaultKeys",
    call: (t, name) => t.operator.updateVaultKey({ vaultKey: { name }, updateMask: { paths: ["labels"] } }),
  },
  rotateVaultKey: { kind: "vaultKeys", call: (t, name) => t.operator.rotateVaultKey({ name }) },
  suspendVaultKey: { kind: "vaultKeys", call: (t, name) => t.operator.suspendVaultKey({ name }) },
  resumeVaultKey: { kind: "vaultKeys", call: (t, name) => t.operator.resumeVaultKey({ name }) },
  revokeVaultKey: { kind: "vaultKeys", call: (t, name) => t.operator.revokeVaultKey({ name }) },
  releaseKillSwitch: { kind: "killSwitches", call: (t, name) => t.operator.releaseKillSwitch({ name, reason }) },
  rotateOperator: { kind: "operators", call: (t, name) => t.operator.rotateOperator({ name }) },
  revokeOperator: { kind: "operators", call: (t, name) => t.operator.revokeOperator({ name, reason }) },
  closeContradiction: { kind: "contradictions", call: (t, name) => t.operator.closeContradiction({ name, reason }) },
  resolveAuthorization: {
    kind: "authorizations",
    call: (t, name) => t.operator.resolveAuthorization({ name, resolution, reason }),
  },
  commitSpend: {
    kind: "authorizations",
    call: (t, authorization) => t.spend.commitSpend({ authorization, amount: usd("10"), vendorReference: "pi_x" }),
  },
  commitSpendAsOperator: {
    kind: "authorizations",
    call: (t, authorization) =>
      t.operatorSpend.commitSpend({ authorization, amount: usd("10"), vendorReference: "pi_x" }),
  },
  voidSpend: {
    kind: "authorizations",
    call: (t, authorization) =>
      t.spend.voidSpend({ authorization, attemptId: attempt(), evidence, vendorReference: "pi_x" }),
  },
  reportUnknown: {
    kind: "authorizations",
    call: (t, authorization) => t.spend.reportUnknown({ authorization, attemptId: attempt() }),
  },
  bindVendorReference: {
    kind: "authorizations",
    call: (t, authorization) =>
      t.spend.bindVendorReference({ authorization, attemptId: attempt(), vendorReference: "pi_x" }),
  },
  increaseHold: {
    kind: "authorizations",
    call: (t, authorization) => t.spend.increaseHold({ authorization, amount: usd("11") }),
  },
  reportReconciliation: {
    kind: "authorizations",
    call: (t, authorization) =>
      t.spend.reportReconciliation({ authorization, finding: ReconciliationFinding.UNCLEAR, note: reason }),
  },
};

/** Lists, filtered by what is somebody else's. */
const lists: Readonly<Record<string, Probe>> = {
  listAuthorizationsOfKey: { kind: "vaultKeys", call: (t, vaultKey) => t.operator.listAuthorizations({ vaultKey }) },
  listAuthorizations: { kind: "authorizations", call: (t) => t.operator.listAuthorizations({ customerId: "shared" }) },
  listAuditOf: { kind: "authorizations", call: (t, authorization) => t.auditor.listAuditEvents({ authorization }) },
  listAudit: { kind: "caps", call: (t) => t.auditor.listAuditEvents({ newestFirst: true, pageSize: 20 }) },
  listCaps: { kind: "caps", call: (t) => t.operator.listCaps({}) },
  listVaultKeys: { kind: "vaultKeys", call: (t) => t.auditor.listVaultKeys({}) },
  listKillSwitches: { kind: "killSwitches", call: (t) => t.operator.listKillSwitches({ includeReleased: true }) },
  listOperators: { kind: "operators", call: (t) => t.auditor.listOperators({}) },
  listContradictions: { kind: "contradictions", call: (t) => t.operator.listContradictions({}) },
  listInDoubt: { kind: "authorizations", call: (t) => t.operator.listInDoubtAuthorizations({}) },
  listUnsettled: { kind: "authorizations", call: (t) => t.spend.listUnsettledAuthorizations({}) },
  listEvents: {
    kind: "authorizations",
    call: (t, authorization) => t.auditor.listAuditEvents({ authorization, newestFirst: true }),
  },
  listEventsOfKey: {
    kind: "vaultKeys",
    call: (t, vaultKey) => t.auditor.listAuditEvents({ vaultKey, newestFirst: true }),
  },
  listLeases: { kind: "leases", call: (t) => t.operator.listBillingLeases({ lease: "job" }) },
  otherPageToken: {
    kind: "vaultKeys",
    call: (t) => t.operator.listVaultKeys({ pageToken: other(t).pageToken, pageSize: 3 }),
  },
};

const other = (tenant: Tenant): Tenant => (tenant === tenants[0] ? tenants[1] : tenants[0]);
const registry = createRegistry(SpendControlService, AdminService);

/** Everything that a caller can learn of a call, with the name that it gave itself taken out. */
async function learned(call: Promise<Message>, name: string): Promise<string> {
  const text = await call.then(
    (message) => {
      const desc = registry.getMessage(message.$typeName);
      return desc === undefined ? message.$typeName : JSON.stringify(toJson(desc, message));
    },
    (cause: unknown) => {
      const error = ConnectError.from(cause);
      return JSON.stringify([error.code, error.rawMessage, error.findDetails(ErrorInfoSchema)]);
    },
  );
  return text.replaceAll(name, "<name>");
}

/** A name of the same form that nothing has. */
function never(kind: keyof Names): string {
  const hex = randomBytes(16).toString("hex");
  return {
    caps: `caps/mark${hex.slice(0, 12)}-0`,
    vaultKeys: `vaultKeys/mark${hex.slice(0, 12)}0`,
    authorizations: `authorizations/0000${hex}-1`,
    references: `pi_mark${hex.slice(0, 12)}_0`,
    killSwitches: `killSwitches/${hex}`,
    operators: `operators/mark${hex.slice(0, 12)}0`,
    contradictions: `contradictions/${hex}`,
    leases: "0",
  }[kind];
}

/** What an RPC answers about something that never was, by tenant and RPC; a foreign thing must look the same. */
const absent = new Map<string, string>();
let calls = 0;

async function probe(tenant: Tenant, op: string, of: Probe, whose: "own" | "foreign" | "never", at: number) {
  const names = (whose === "own" ? tenant : other(tenant)).names[of.kind];
  const name = whose === "never" ? never(of.kind) : (names[at % names.length] ?? "");
  let text = await learned(of.call(tenant, name), name);
  while (text.includes("DATABASE_UNAVAILABLE") || text.includes("QUEUE_FULL"))
    text = await learned(of.call(tenant, name), name);
  calls += 1;
  expect(text, `${op} of ${whose} ${name}`).not.toContain(other(tenant).mark);
  if (op in lists) return;
  if (whose === "own") {
    expect(text, `${op} of ${name}`).not.toMatch(/^\[/);
    return;
  }
  expect(text, `${op} of ${whose} ${name}`).toMatch(/^\[/);
  const key = `${tenant.workspace} ${op}`;
  const before = absent.get(key);
  if (before === undefined) absent.set(key, text);
  else expect(text, `${op} of ${whose} ${name}`).toBe(before);
}

const whoses = ["own", "foreign", "never"] as const;
const ops = Object.entries({ ...reads, ...changes, ...lists });

test("every RPC answers about another workspace's things as about things that never were", async () => {
  for (const tenant of tenants) {
    for (const [op, of] of ops) {
      await probe(tenant, op, of, "never", 0);
      for (let at = 0; at < 3; at += 1) await probe(tenant, op, of, "foreign", at);
      if (!(op in changes)) await probe(tenant, op, of, "own", 0);
    }
  }
}, 120_000);

const wanted = 100_000;
const inFlight = 40;
/** So long calls are made one by one; the rest goes in batches, of which every item is a call. */
const singlesMs = 10_000;
/** A machine that is too slow for all of them stops here, unless ISOLATION=full asks for every one. */
const allMs = process.env["ISOLATION"] === "full" ? 600_000 : 35_000;

test("up to 100,000 random calls across two workspaces leak nothing, not even that something exists", async () => {
  const snapshot = await Promise.all(tenants.map((tenant) => owned(tenant)));
  const random = fc.sample(fc.tuple(fc.nat(1), fc.nat(ops.length - 1), fc.nat(2), fc.nat(100)), {
    numRuns: 20_000,
    seed: 61,
  });
  const begun = performance.now();
  const until = begun + singlesMs;
  const single = async (): Promise<void> => {
    for (;;) {
      const next = random.pop();
      if (next === undefined || performance.now() > until) return;
      const [who, which, whose, at] = next;
      const [op, of] = ops[which] as (typeof ops)[number];
      const own = whoses[whose] ?? "never";
      await probe(tenants[who === 0 ? 0 : 1], op, of, op in changes && own === "own" ? "foreign" : own, at);
    }
  };
  await Promise.all(Array.from({ length: inFlight }, single));
  for (let round = 0; calls < wanted && performance.now() - begun < allMs; round += 1) {
    await Promise.all(tenants.map((tenant) => (round % 20 === 0 ? grants(tenant, round) : commits(tenant))));
  }
  process.stdout.write(`isolation: ${calls} calls\n`);
  expect(calls).toBeGreaterThan(1_000);
  expect(await Promise.all(tenants.map((tenant) => owned(tenant)))).toEqual(snapshot);
}, 900_000);

/** Commits of what is another workspace's, or nobody's. */
async function commits(tenant: Tenant): Promise<void> {
  const requests = Array.from({ length: 500 }, (_, n) => {
    const { authorizations, references } = other(tenant).names;
    const authorization = n % 2 === 0 ? authorizations[n % authorizations.length] : never("authorizations");
    return {
      authorization: authorization ?? "",
      amount: usd("10"),
      vendorReference: references[n % references.length] ?? "",
    };
  });
  const { results } = await tenant.spend.batchCommitSpend({ requests });
  const answers = results.map(({ result }) =>
    result.case === "error" ? `${result.value.reason} ${result.value.message}` : `${result.case}`,
  );
  // A machine that stalls is told to repeat, which says nothing about what exists.
  const told = answers.filter((answer) => !answer.startsWith("DATABASE_UNAVAILABLE "));
  expect([...new Set(told)].filter((answer) => !answer.startsWith("NOT_FOUND "))).toEqual([]);
  expect(new Set(told).size).toBeLessThanOrEqual(1);
  calls += told.length;
}

/** The very spends of the other workspace: here nobody has asked for them. */
async function grants(tenant: Tenant, round: number): Promise<void> {
  const requests = Array.from({ length: 500 }, (_, n) => asks("shared", `${other(tenant).mark}-r${round}-${n}`));
  const { results } = await tenant.spend.batchAuthorizeSpend({ requests });
  for (const { result } of results) {
    if (result.case === "response") {
      expect(result.value.disposition).toBe(Disposition.GRANTED);
      expect(result.value.mayHaveBeenSent).toBe(false);
      calls += 1;
    } else {
      expect(result.value?.reason).toBe("DATABASE_UNAVAILABLE");
    }
  }
}

/** The rows that the other workspace may have changed: everything but what this test itself grants and asks. */
async function owned(tenant: Tenant): Promise<unknown[]> {
  const { rows } = await server.database.pool.query<Record<string, unknown>>(
    `select 'cap' as kind, to_jsonb(c) as row from holdfast.caps c where workspace_id = $1
     union all select 'key', to_jsonb(k) from holdfast.vault_keys k where workspace_id = $1
     union all select 'operator', to_jsonb(o) from holdfast.operators o where workspace_id = $1
     union all select 'switch', to_jsonb(s) from holdfast.kill_switches s where workspace_id = $1
     union all select 'lease', to_jsonb(l) from holdfast.billing_leases l where workspace_id = $1
     union all select 'contradiction', to_jsonb(x) from holdfast.contradictions x where workspace_id = $1
     union all select 'authorization', to_jsonb(a) from holdfast.authorizations a
       where workspace_id = $1 and 'authorizations/' || spend_key || '-' || generation = any ($2::text[])
     order by 1, 2`,
    [tenant.workspace, tenant.names.authorizations],
  );
  return rows;
}
