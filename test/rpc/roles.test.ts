import type { DescMethod } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import { ErrorInfoSchema } from "@holdfast/api/google/rpc/error_details_pb";
import { AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import { OperatorRole } from "@holdfast/api/holdfast/v1/operator_pb";
import { Role } from "@holdfast/api/holdfast/v1/roles_pb";
import { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { createToken, rolesOf, tokenHash } from "../../server/rpc/auth.ts";
import { insertOperator } from "../../server/store/operator.ts";
import { ensureWorkspace } from "../../server/store/workspace.ts";
import { startTestServer, type TestServer } from "../support/server.ts";
import { firstAnswer } from "./first-answer.ts";

let server: TestServer;
/** A token of each kind of caller. */
const tokens = new Map<string, string>();

beforeAll(async () => {
  server = await startTestServer({ protocol: "grpc" });
  tokens.set("a vault key", await server.vaultKey("main"));
  tokens.set("a suspended vault key", await server.vaultKey("suspended"));
  await server.admin.suspendVaultKey({ name: "vaultKeys/suspended" });
  tokens.set("a revoked vault key", await server.vaultKey("revoked"));
  await server.admin.revokeVaultKey({ name: "vaultKeys/revoked" });
  tokens.set("an operator", server.operatorToken);
  const make = async (operatorId: string, role: OperatorRole) =>
    (await server.admin.createOperator({ operatorId, role })).token;
  tokens.set("an auditor", await make("auditor", OperatorRole.AUDITOR));
  for (const [what, role] of [
    ["a revoked operator", OperatorRole.OPERATOR],
    ["a revoked auditor", OperatorRole.AUDITOR],
  ] as const) {
    const operatorId = what.replaceAll(" ", "");
    tokens.set(what, await make(operatorId, role));
    await server.admin.revokeOperator({ name: `operators/${operatorId}`, reason: "test" });
  }
  const own = createToken("op", "other", "root");
  await ensureWorkspace(server.database.pool, "other");
  await insertOperator(server.database.pool, "other", {
    operatorId: "root",
    role: "OPERATOR",
    secretSha256: tokenHash(own),
  });
  tokens.set("an operator of another workspace", own);
  // The names are another workspace's, the secrets are right for this one.
  tokens.set("an operator's secret under another workspace", server.operatorToken.replace("_default_", "_other_"));
  const key = tokens.get("a vault key") ?? "";
  tokens.set("a vault key's secret under another workspace", key.replace("_default_", "_other_"));
  tokens.set("a vault key's secret as an operator's", key.replace("vk_", "op_"));
});
afterAll(() => server.close());

/** The role that each caller has; null has none, whatever its token says. */
const callers: Readonly<Record<string, Role | null>> = {
  "a vault key": Role.VAULT_KEY,
  // It settles and reads what it was granted; the judgement denies it the rest.
  "a suspended vault key": Role.VAULT_KEY,
  "a revoked vault key": Role.VAULT_KEY,
  "an operator": Role.OPERATOR,
  "an operator of another workspace": Role.OPERATOR,
  "an auditor": Role.AUDITOR,
  nobody: null,
  "a revoked operator": null,
  "a revoked auditor": null,
  "an operator's secret under another workspace": null,
  "a vault key's secret under another workspace": null,
  "a vault key's secret as an operator's": null,
};

/** Code and reason of a refusal; both undefined if the call went through. */
async function outcome(call: Promise<unknown>): Promise<readonly [Code | undefined, string | undefined]> {
  try {
    await call;
    return [undefined, undefined];
  } catch (error) {
    const refused = ConnectError.from(error);
    return [refused.code, refused.findDetails(ErrorInfoSchema)[0]?.reason];
  }
}

const methods = [...SpendControlService.methods, ...AdminService.methods];

describe("the roles of an RPC", () => {
  test("are named by every one, and by none is it open", () => {
    for (const method of methods) {
      expect(rolesOf(method).length, method.name).toBeGreaterThan(0);
      expect(rolesOf(method), method.name).not.toContain(Role.UNSPECIFIED);
      expect(new Set(rolesOf(method)).size, method.name).toBe(rolesOf(method).length);
    }
  });

  test("let auditors into everything that only reads, and into nothing else", () => {
    const reads = methods.filter((method) => /^(Get|List|Watch|Verify|Export|Explain)[A-Z]/.test(method.name));
    // What a vault key lists of its own is in ListInDoubtAuthorizations and ListAuthorizations.
    const own = new Set(["ListUnsettledAuthorizations", "ListCommittedAuthorizations"]);
    const expected = reads.map((method) => method.name).filter((name) => !own.has(name));
    const named = methods.filter((method) => rolesOf(method).includes(Role.AUDITOR)).map((method) => method.name);
    expect(named.toSorted()).toEqual(expected.toSorted());
  });

  test("let vault keys into nothing of the operators'", () => {
    expect(AdminService.methods.filter((method) => rolesOf(method).includes(Role.VAULT_KEY))).toEqual([]);
  });
});

const matrix = methods.flatMap((method) =>
  Object.entries(callers).map(([caller, role]) => [method.name, caller, method, role] as const),
);

test.each(matrix)("%s by %s", async (_name, caller, method: DescMethod, role) => {
  const transport = server.transport(tokens.get(caller));
  const [code, reason] = await outcome(firstAnswer(transport, method, {}));
  if (role === null) {
    expect([code, reason]).toEqual([Code.Unauthenticated, "INVALID_TOKEN"]);
  } else if (rolesOf(method).includes(role)) {
    // An RPC that nothing serves yet has passed the gate all the same.
    expect([Code.Unauthenticated, Code.PermissionDenied, Code.Internal]).not.toContain(code);
  } else {
    expect([code, reason]).toEqual([Code.PermissionDenied, "ROLE_NOT_ALLOWED"]);
  }
});
