import { randomBytes } from "node:crypto";
import type { Client } from "@connectrpc/connect";
import type { AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import { CapWindow } from "@holdfast/api/holdfast/v1/cap_pb";
import { OperatorRole } from "@holdfast/api/holdfast/v1/operator_pb";
import type { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { Settlement, VoidEvidence } from "@holdfast/api/holdfast/v1/spend_pb";
import { createToken, tokenHash } from "../../server/rpc/auth.ts";
import { insertOperator } from "../../server/store/operator.ts";
import { ensureWorkspace } from "../../server/store/workspace.ts";
import type { TestServer } from "../support/server.ts";

export type Admin = Client<typeof AdminService>;
export type Spend = Client<typeof SpendControlService>;

/** The names of everything of one kind that one workspace has. */
export interface Names {
  readonly caps: string[];
  readonly vaultKeys: string[];
  readonly authorizations: string[];
  readonly references: string[];
  readonly killSwitches: string[];
  readonly operators: string[];
  readonly contradictions: string[];
  readonly leases: string[];
}

export interface Tenant {
  readonly workspace: string;
  /** Stands in everything that only this workspace may be shown. */
  readonly mark: string;
  readonly operator: Admin;
  readonly operatorSpend: Spend;
  readonly auditor: Admin;
  readonly spend: Spend;
  readonly names: Names;
  readonly pageToken: string;
}

export const attempt = (): string => randomBytes(16).toString("hex");
export const endpoint = "POST /v1/payment_intents";
export const usd = (amount: string) => ({ currency: "usd", amount });

export function asks(customerId: string, purpose: string) {
  const spend = { customerId, billingPeriod: "2026-11", purpose, amount: usd("10") };
  return { spend, vendor: "stripe", endpoint, attemptId: attempt(), settlement: Settlement.SEND_ONCE };
}

const count = 12;

/**
 * A workspace with something of every kind. Both workspaces use the same customers, purposes, periods and leases, and
 * some of the same ids; what is their own carries their mark.
 */
export async function openTenant(server: TestServer, workspace: string): Promise<Tenant> {
  await ensureWorkspace(server.database.pool, workspace);
  const token = createToken("op", workspace, "root");
  await insertOperator(server.database.pool, workspace, {
    operatorId: "root",
    role: "OPERATOR",
    secretSha256: tokenHash(token),
  });
  const operator = server.adminAs(token);
  const mark = `mark${randomBytes(6).toString("hex")}`;
  const policy = { vendor: "stripe", allowedEndpoints: [endpoint], labels: { mark } };
  const made = await operator.createVaultKey({ vaultKeyId: "main", vaultKey: policy });
  const spend = server.spend(made.token);
  const role = OperatorRole.AUDITOR;
  const auditor = server.adminAs((await operator.createOperator({ operatorId: "eve", role })).token);
  const names: Names = {
    caps: [],
    vaultKeys: [],
    authorizations: [],
    references: [],
    killSwitches: [],
    operators: [],
    contradictions: [],
    leases: [],
  };
  for (let n = 0; n < count; n += 1) await fill(operator, spend, { mark, n, names, policy });
  const { contradictions } = await operator.listContradictions({});
  names.contradictions.push(...contradictions.map((one) => one.name));
  const { nextPageToken } = await operator.listVaultKeys({ pageSize: 2 });
  return {
    workspace,
    mark,
    operator,
    operatorSpend: server.spend(token),
    auditor,
    spend,
    names,
    pageToken: nextPageToken,
  };
}

interface Filling {
  readonly mark: string;
  readonly n: number;
  readonly names: Names;
  readonly policy: object;
}

async function fill(operator: Admin, spend: Spend, { mark, n, names, policy }: Filling): Promise<void> {
  const capId = `${mark}-${n}`;
  const cap = { limit: usd("1000000"), window: CapWindow.LIFETIME, scope: { customerId: `${mark}${n}` } };
  await operator.createCap({ capId, cap });
  names.caps.push(`caps/${capId}`);
  const vaultKeyId = `${mark}${n}`;
  await operator.createVaultKey({ vaultKeyId, vaultKey: policy as never });
  names.vaultKeys.push(`vaultKeys/${vaultKeyId}`);
  await operator.createOperator({ operatorId: vaultKeyId, role: OperatorRole.AUDITOR });
  names.operators.push(`operators/${vaultKeyId}`);
  const target = { target: { case: "customerId" as const, value: `${mark}${n}` } };
  const { killSwitch } = await operator.engageKillSwitch({ target, reason: mark });
  names.killSwitches.push(killSwitch?.name ?? "");
  await spend.acquireBillingLease({ lease: "job", billingPeriod: `${n}`, holderId: mark, ttl: { seconds: 3000n } });
  names.leases.push(`${n}`);
  // The same customers and purposes in both workspaces have the same stable keys, so their own have a mark.
  const request = { ...asks("shared", `${mark}-${n}`), settlement: Settlement.TWO_STEP };
  const { authorization } = await spend.authorizeSpend(request);
  const name = authorization?.name ?? "";
  names.authorizations.push(name);
  const vendorReference = `pi_${mark}_${n}`;
  names.references.push(vendorReference);
  await spend.bindVendorReference({ authorization: name, attemptId: request.attemptId, vendorReference });
  if (n % 3 === 1) await spend.commitSpend({ authorization: name, amount: usd("10"), vendorReference });
  if (n % 3 === 2) {
    const evidence = VoidEvidence.TOMBSTONE;
    await spend.voidSpend({ authorization: name, attemptId: request.attemptId, evidence, vendorReference });
    // A charge that comes after a void is kept as a contradiction.
    await spend.commitSpend({ authorization: name, amount: usd("10"), vendorReference }).catch(() => {});
  }
}
