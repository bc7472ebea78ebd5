import { HoldfastError } from "../domain/errors.ts";
import type { EngagedKillSwitch } from "../domain/kill-switch.ts";
import { spendKeyOf } from "../domain/spend.ts";
import type { Authenticate } from "../rpc/auth.ts";
import { currentTraceId } from "../rpc/trace.ts";
import type { CredentialCipher } from "../store/credential-cipher.ts";
import type { Database } from "../store/database.ts";
import { GroupCommit } from "../store/group-commit.ts";
import {
  openProxiedRequest,
  type ProxyEvent,
  proxyKeyState,
  type ProxyKeyRule,
  type ProxyKeyState,
  recordProxyEvents,
} from "../store/proxy.ts";
import type { LastLook } from "./carry-out.ts";
import type { ProxyKey } from "./policy-check.ts";
import type { ProxyParts } from "./proxy.ts";
import { createProxyMemory } from "./proxy-memory.ts";
import { createRefusalBudget } from "./refusal-budget.ts";
import { refuse, type ProxyRefusal } from "./refusal.ts";
import type { ProxiedVendor } from "./vendor.ts";

export interface PartsOptions {
  readonly vendor: ProxiedVendor;
  readonly database: Database;
  readonly cipher: CredentialCipher;
  readonly authenticate: Authenticate;
  /** 32 random hex digits. */
  readonly random: () => string;
  /** A monotonic clock, in milliseconds. */
  readonly nowMs: () => number;
  readonly onError: (error: unknown) => void;
}

/** How many refusals of one key are written into the audit per second; the others are counted with the next one. */
const refusalsPerSecond = 10;

/** The proxy's parts on a database. */
export function createProxyParts(options: PartsOptions): ProxyParts {
  const { vendor, database, cipher, authenticate, random, nowMs, onError } = options;
  const vendorName = vendor.dialect.name;
  const records = recordQueue(database);
  const budget = createRefusalBudget({ perSecond: refusalsPerSecond, nowMs });

  function lookAt(workspace: string, { rule, killSwitch, credential }: ProxyKeyState): LastLook {
    return {
      dead: rule === undefined ? undefined : deadKey(rule, killSwitch, vendorName),
      secret: credential === undefined ? undefined : secretOf(cipher, workspace, vendorName, credential),
    };
  }

  return {
    vendor,
    random,
    onError,
    memory: createProxyMemory({ database, cipher, random }),
    async open(token) {
      const { role, workspace, id: vaultKeyId } = await authenticate(token).catch(refuseToken);
      if (role !== "vault_key") throw invalidToken();
      const opened = await openProxiedRequest(database, workspace, { vaultKeyId, vendor: vendorName });
      if (opened === undefined) throw invalidToken();
      const { rule, killSwitch, credential, ...policy } = opened;
      return { key: { workspace, vaultKeyId, ...policy }, ...lookAt(workspace, { rule, killSwitch, credential }) };
    },
    async lastLook({ workspace, vaultKeyId }, customerId) {
      const asked = { vaultKeyId, vendor: vendorName, customerId };
      return lookAt(workspace, await proxyKeyState(database, workspace, asked));
    },
    async record(request) {
      const { key, requestId, disposition, reason, endpoint, account, status, spend } = request;
      const turn = disposition === "REFUSED" ? budget.take(budgetKey(key)) : { recorded: true as const, suppressed: 0 };
      if (!turn.recorded) return;
      const { suppressed } = turn;
      const detail = { endpoint, status, account, requestId, ...(suppressed > 0 ? { suppressed } : {}) };
      const event: ProxyEvent = {
        vaultKeyId: key.vaultKeyId,
        disposition,
        reason,
        traceId: currentTraceId() ?? "",
        spendKey: spend === undefined ? undefined : spendKeyOf(spend),
        detail: disposition === "HEALED" ? { ...detail, healed: true } : detail,
      };
      await records.submit(key.workspace, event, new AbortController().signal);
    },
    async recordRest() {
      const rest = [...budget.rest()].map(([name, suppressed]) => {
        const [workspace = "", vaultKeyId = ""] = name.split("/");
        const detail = { endpoint: "", status: 0, account: "", requestId: `hf_${random()}`, suppressed };
        const what = { disposition: "REFUSED", reason: "refusals_not_recorded", traceId: "" } as const;
        const event: ProxyEvent = { ...what, vaultKeyId, spendKey: undefined, detail };
        return records.submit(workspace, event, new AbortController().signal);
      });
      await Promise.all(rest);
    },
  };
}

/** The events of requests that end at the same time go to the database together. */
function recordQueue(database: Database): GroupCommit<ProxyEvent, undefined> {
  return new GroupCommit({
    name: "proxy_record",
    run: async (workspace, events) => {
      await recordProxyEvents(database, workspace, events);
      return events.map(() => undefined);
    },
    // An event whose fate is unknown is not written twice; one that the database refuses spares its neighbours.
    classify: (error) => (error instanceof HoldfastError ? "fail" : "split"),
    translate: (error) => error,
    batchMax: 200,
    queueMax: 100_000,
  });
}

function secretOf(
  cipher: CredentialCipher,
  workspace: string,
  vendor: string,
  { vendorCredentialId, sealed }: NonNullable<ProxyKeyState["credential"]>,
): string | undefined {
  return cipher.open(sealed, { workspace, vendor, credentialId: vendorCredentialId });
}

function budgetKey({ workspace, vaultKeyId }: ProxyKey): string {
  return `${workspace}/${vaultKeyId}`;
}

function refuseToken(error: unknown): never {
  throw error instanceof HoldfastError && error.reason === "INVALID_TOKEN" ? invalidToken() : error;
}

/** The same words for a token of another kind: what it would open elsewhere is not said here. */
function invalidToken() {
  return refuse(401, "invalid_credentials", "The vault key is unknown: send its whole token.", "Authorization");
}

const dead: Readonly<Record<ProxyKeyRule, string>> = {
  VAULT_KEY_REVOKED: "The vault key is revoked, for ever. Ask an operator for another one.",
  VAULT_KEY_SUSPENDED: "The vault key is suspended. An operator can resume it.",
  VAULT_KEY_EXPIRED: "The vault key has expired. An operator can set another expiry.",
  KILL_SWITCH: "A kill switch is engaged, and nothing is sent. An operator can release it.",
};

/** Which kill switch it is, for an operator to release, but not its reason: that may be about other customers. */
function deadKey(rule: ProxyKeyRule, killSwitch: EngagedKillSwitch | undefined, vendor: string): ProxyRefusal {
  return {
    status: 401,
    code: rule.toLowerCase(),
    message: killSwitch === undefined ? dead[rule] : stoppedBy(killSwitch, vendor),
  };
}

function stoppedBy({ killSwitchId, targetKind }: EngagedKillSwitch, vendor: string): string {
  const stopped = {
    WORKSPACE: "every spend of the workspace",
    VENDOR: `every spend at ${vendor}`,
    CUSTOMER: "every spend of this customer",
  }[targetKind];
  return (
    `The kill switch killSwitches/${killSwitchId} stops ${stopped}, and nothing was sent. ` +
    "Ask an operator, who can release it, before you try again."
  );
}
