import type { DescMethod } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import { ErrorInfoSchema } from "@holdfast/api/google/rpc/error_details_pb";
import { AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import { Role } from "@holdfast/api/holdfast/v1/roles_pb";
import { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { rolesOf } from "../../server/rpc/auth.ts";
import { startTestServer, type TestServer } from "../support/server.ts";

let server: TestServer;
let token: string;

beforeAll(async () => {
  server = await startTestServer({ protocol: "grpc" });
  token = await server.vaultKey("main");
});
afterAll(() => server.close());

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

describe("roles", () => {
  const methods = [...SpendControlService.methods, ...AdminService.methods];

  test("are named by every RPC, and by none is it open", () => {
    for (const method of methods) {
      expect(rolesOf(method).length, method.name).toBeGreaterThan(0);
      expect(rolesOf(method), method.name).not.toContain(Role.UNSPECIFIED);
    }
  });

  const callers = [
    ["a vault key", () => token, Role.VAULT_KEY],
    ["an operator", () => server.operatorToken, Role.OPERATOR],
    ["nobody", () => undefined, undefined],
  ] as const;
  const matrix = methods.flatMap((method) => callers.map((caller) => [method, ...caller] as const));

  test.each(matrix)("$0.name by %s", async (method: DescMethod, _caller, tokenOf, role) => {
    const transport = server.transport(tokenOf());
    const allowed = role !== undefined && rolesOf(method).includes(role);
    const [code, reason] = await outcome(transport.unary(method as never, undefined, 5000, undefined, {}));
    if (allowed) {
      expect([Code.Unauthenticated, Code.PermissionDenied, Code.Unimplemented, Code.Internal]).not.toContain(code);
    } else if (role === undefined) {
      expect([code, reason]).toEqual([Code.Unauthenticated, "INVALID_TOKEN"]);
    } else {
      expect([code, reason]).toEqual([Code.PermissionDenied, "ROLE_NOT_ALLOWED"]);
    }
  });
});
