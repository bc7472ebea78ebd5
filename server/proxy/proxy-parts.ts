import { defaultProxyPolicy } from "../domain/proxy-policy.ts";
import { HoldfastError } from "../domain/errors.ts";
import type { Authenticate } from "../rpc/auth.ts";
import { currentTraceId } from "../rpc/trace.ts";
import type { CredentialCipher } from "../store/credential-cipher.ts";
import type { Database } from "../store/database.ts";
import { proxyKeyState, type ProxyKeyRule, recordProxyEvents } from "../store/proxy.ts";
import { getVaultKey } from "../store/vault-key.ts";
import { credentialOfVendor, openSecret } from "../store/vendor-credential.ts";
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
  const budget = createRefusalBudget({ perSecond: refusalsPerSecond, nowMs });
  return {
    vendor,
    random,
    onError,
    memory: createProxyMemory({ database, cipher, random }),
    async authenticate(token) {
      const { role, workspace, id } = await authenticate(token).catch(refuseToken);
      const key = role === "vault_key" ? await getVaultKey(database, workspace, id) : undefined;
      if (key === undefined) throw invalidToken();
      const { vaultKeyId, vendor: of, allowedEndpoints, billingPeriods, proxy = defaultProxyPolicy } = key;
      return { workspace, vaultKeyId, vendor: of, allowedEndpoints, billingPeriods, proxy };
    },
    async deadness({ workspace, vaultKeyId }, customerId) {
      const rule = await proxyKeyState(database, workspace, { vaultKeyId, vendor: vendorName, customerId });
      return rule === undefined ? undefined : deadKey(rule);
    },
    async secretOf({ workspace }) {
      const stored = await credentialOfVendor(database, workspace, vendorName);
      return stored === undefined ? undefined : openSecret(cipher, workspace, stored);
    },
    async record(request) {
      const { key, requestId, disposition, reason, endpoint, account, status, authorization } = request;
      const turn = disposition === "REFUSED" ? budget.take(budgetKey(key)) : { recorded: true as const, suppressed: 0 };
      if (!turn.recorded) return;
      const { suppressed } = turn;
      const detail = { endpoint, status, account, requestId, ...(suppressed > 0 ? { suppressed } : {}) };
      await recordProxyEvents(database, key.workspace, [
        {
          vaultKeyId: key.vaultKeyId,
          disposition,
          reason,
          traceId: currentTraceId() ?? "",
          authorization,
          detail: disposition === "HEALED" ? { ...detail, healed: true } : detail,
        },
      ]);
    },
  };
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

function deadKey(rule: ProxyKeyRule): ProxyRefusal {
  return { status: 401, code: rule.toLowerCase(), message: dead[rule] };
}
