import { Code, ConnectError, createClient, createHandlerContext } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-node";
import { ErrorInfoSchema } from "@holdfast/api/google/rpc/error_details_pb";
import { Health } from "@holdfast/api/grpc/health/v1/health_pb";
import { AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import {
  type AuthOptions,
  authGate,
  createToken,
  type Principal,
  principalKey,
  rolesOf,
  tokenHash,
  type TokenOwner,
} from "@holdfast/server/rpc/auth";
import type { DescMethod } from "@bufbuild/protobuf";
import { describe, expect, test } from "vitest";
import { startStubServer, validRequest } from "./stub-server.ts";

const log = { error: () => {} };
const authorize = SpendControlService.method.authorizeSpend;

async function pass(
  gate: ReturnType<typeof authGate>,
  authorization: string | undefined,
  method: DescMethod = authorize,
): Promise<Principal | undefined> {
  const context = createHandlerContext({
    service: method.parent,
    method,
    protocolName: "grpc",
    requestMethod: "POST",
    url: "http://localhost/",
    requestHeader: authorization === undefined ? {} : { authorization },
  });
  await gate(context);
  return context.values.get(principalKey);
}

async function refusal(call: Promise<unknown>): Promise<ConnectError> {
  return await call.then(
    () => expect.fail("the call was not refused"),
    (error: unknown) => ConnectError.from(error),
  );
}

function owner(kind: string, tokens: readonly string[], role: TokenOwner["role"] = "operator"): TokenOwner {
  const secrets = tokens.map((token) => ({ sha256: tokenHash(token), validForMs: undefined }));
  return { role: kind === "vk" ? "vault_key" : role, secrets };
}

function lookup(tokens: Record<string, readonly string[]>): AuthOptions["lookupToken"] & { calls: string[] } {
  const calls: string[] = [];
  const fn = (kind: string, workspace: string, id: string) => {
    calls.push(`${kind}_${workspace}_${id}`);
    return Promise.resolve(owner(kind, tokens[`${kind}_${workspace}_${id}`] ?? []));
  };
  return Object.assign(fn, { calls });
}

describe("a token", () => {
  test("has its kind, workspace, id and 43 characters of secret", () => {
    expect(createToken("vk", "acme", "billing")).toMatch(/^vk_acme_billing_[A-Za-z0-9]{43}$/);
    expect(createToken("op", "a1", "b2")).toMatch(/^op_a1_b2_[A-Za-z0-9]{43}$/);
    const many = new Set(Array.from({ length: 1_000 }, () => createToken("vk", "a", "b")));
    expect(many.size).toBe(1_000);
  });

  test("uses every character equally and drops the bytes that would not be", () => {
    let next = 0;
    const bytes = (size: number) => Uint8Array.from({ length: size }, () => next++ % 256);
    const counts = new Map<string, number>();
    for (let index = 0; index < 62 * 4; index += 1) {
      for (const character of createToken("vk", "a", "b", bytes).slice("vk_a_b_".length)) {
        counts.set(character, (counts.get(character) ?? 0) + 1);
      }
    }
    expect(counts.size).toBe(62);
    expect(Math.max(...counts.values()) / Math.min(...counts.values())).toBeLessThan(1.2);
  });

  test("is not made for an id that the grammar does not allow", () => {
    for (const id of ["", "a_b", "A", "ü", "a".repeat(33)]) {
      expect(() => createToken("vk", "acme", id)).toThrow(RangeError);
      expect(() => createToken("vk", id, "billing")).toThrow(RangeError);
    }
  });
});

describe("the gate", () => {
  const token = createToken("vk", "acme", "billing");
  const operator = createToken("op", "acme", "alice");
  const tokens = { vk_acme_billing: [token], op_acme_alice: [operator] };

  test("sets the principal", async () => {
    const gate = authGate({ lookupToken: lookup(tokens), log });
    expect(await pass(gate, `Bearer ${token}`)).toEqual({ role: "vault_key", workspace: "acme", id: "billing" });
    expect(await pass(gate, `bearer  ${token}`)).toMatchObject({ id: "billing" });
    expect(await pass(gate, `Bearer ${operator}`, AdminService.method.listCaps)).toEqual({
      role: "operator",
      workspace: "acme",
      id: "alice",
    });
  });

  test("answers every wrong token alike", async () => {
    const find = lookup(tokens);
    const gate = authGate({ lookupToken: find, log });
    const wrong = [
      undefined,
      "",
      "Bearer",
      "Bearer ",
      `Basic ${token}`,
      token,
      `Bearer ${token}${"x".repeat(100)}`,
      `Bearer ${token.slice(0, -20)}`,
      `Bearer ${token}, Bearer ${token}`,
      `Bearer ${token} ${token}`,
      `Bearer ${createToken("vk", "acme", "billing")}`,
      `Bearer ${createToken("vk", "acme", "nobody")}`,
      `Bearer ${createToken("vk", "other", "billing")}`,
      `Bearer ${token.replace("vk_", "op_")}`,
      `Bearer ${token.replace("acme", "ACME")}`,
      `Bearer vk_acme_billing_x' OR pg_sleep(8)--`,
      `Bearer vk_acme_billing_${"é".repeat(43)}`,
    ];
    const seen = new Set<string>();
    for (const authorization of wrong) {
      const error = await refusal(pass(gate, authorization));
      expect(error.code, authorization).toBe(Code.Unauthenticated);
      seen.add(
        JSON.stringify([error.rawMessage, error.details.map((detail) => ("value" in detail ? detail.value : detail))]),
      );
    }
    expect(seen.size).toBe(1);
    // What is malformed never becomes a query.
    expect(find.calls).toEqual(["vk_acme_billing", "vk_acme_nobody", "vk_other_billing", "op_acme_billing"]);
  });

  test("accepts both secrets while a rotation overlaps", async () => {
    const second = createToken("vk", "acme", "billing");
    const gate = authGate({ lookupToken: lookup({ vk_acme_billing: [token, second] }), log });
    expect(await pass(gate, `Bearer ${token}`)).toBeDefined();
    expect(await pass(gate, `Bearer ${second}`)).toBeDefined();
  });

  test("remembers a right token for 10 s and a wrong one not at all", async () => {
    let now = 0;
    const known: Record<string, string[]> = {};
    const find = lookup(known);
    const gate = authGate({ lookupToken: find, log, now: () => now });
    await refusal(pass(gate, `Bearer ${token}`));
    known["vk_acme_billing"] = [token];
    await pass(gate, `Bearer ${token}`);
    delete known["vk_acme_billing"];
    now = 9_999;
    expect(await pass(gate, `Bearer ${token}`)).toBeDefined();
    now = 10_000;
    expect((await refusal(pass(gate, `Bearer ${token}`))).code).toBe(Code.Unauthenticated);
    expect(find.calls).toHaveLength(3);
  });

  test("forgets a secret of before a rotation when its overlap ends, counted from before it was read", async () => {
    let now = 0;
    let asked = 0;
    const secrets = [{ sha256: tokenHash(token), validForMs: 3000 }];
    const gate = authGate({
      lookupToken: () => {
        asked += 1;
        now += 1000; // The database took a second to answer.
        return Promise.resolve({ role: "vault_key", secrets });
      },
      log,
      now: () => now,
    });
    await pass(gate, `Bearer ${token}`);
    now = 2999;
    await pass(gate, `Bearer ${token}`);
    expect(asked).toBe(1);
    now = 3000;
    secrets.length = 0;
    expect((await refusal(pass(gate, `Bearer ${token}`))).code).toBe(Code.Unauthenticated);
    expect(asked).toBe(2);
  });

  test("asks about an operator's token with every call, and never answers one call with another's question", async () => {
    const answers: ((one: TokenOwner | undefined) => void)[] = [];
    const gate = authGate({ lookupToken: () => new Promise((resolve) => answers.push(resolve)), log });
    const early = pass(gate, `Bearer ${operator}`, AdminService.method.listCaps);
    const late = refusal(pass(gate, `Bearer ${operator}`, AdminService.method.listCaps));
    expect(answers).toHaveLength(2);
    answers[0]?.(owner("op", [operator]));
    answers[1]?.(undefined);
    expect(await early).toMatchObject({ id: "alice" });
    expect((await late).code).toBe(Code.Unauthenticated);
  });

  test("of one token asks once for all calls that wait, whatever the answer is", async () => {
    for (const right of [true, false]) {
      const answer = Promise.withResolvers<TokenOwner>();
      let asked = 0;
      const gate = authGate({
        lookupToken: () => {
          asked += 1;
          return answer.promise;
        },
        log,
      });
      const calls = Promise.allSettled([1, 2, 3].map(() => pass(gate, `Bearer ${token}`)));
      answer.resolve(owner("vk", right ? [token] : []));
      const status = right ? "fulfilled" : "rejected";
      expect((await calls).map((one) => one.status)).toEqual([status, status, status]);
      expect(asked).toBe(1);
      await pass(gate, `Bearer ${token}`).catch(() => {});
      expect(asked).toBe(right ? 1 : 2);
    }
  });

  test("remembers at most 10,000 tokens", async () => {
    const many = Array.from({ length: 10_001 }, () => createToken("vk", "acme", "billing"));
    let asked = 0;
    const gate = authGate({
      lookupToken: () => {
        asked += 1;
        return Promise.resolve(owner("vk", many.slice(asked - 1, asked)));
      },
      log,
      now: () => 0,
    });
    for (const one of many) await pass(gate, `Bearer ${one}`);
    expect(asked).toBe(10_001);
    await pass(gate, `Bearer ${many.at(-1)}`);
    expect(asked).toBe(10_001);
    await refusal(pass(gate, `Bearer ${many[0]}`));
    expect(asked).toBe(10_002);
  });

  test("a defect of the lookup is an internal error, not a refusal", async () => {
    const gate = authGate({ lookupToken: () => Promise.reject(new Error("boom")), log });
    const error = await refusal(pass(gate, `Bearer ${token}`));
    expect(error.code).toBe(Code.Internal);
    expect(error.rawMessage).toBe("internal error");
  });

  test("lets health through without a token", async () => {
    const gate = authGate({ lookupToken: lookup({}), log });
    expect(await pass(gate, undefined, Health.method.check)).toBeUndefined();
  });

  test("lets every token call exactly the RPCs that name its role", async () => {
    const auditor = createToken("op", "acme", "eve");
    const gate = authGate({
      lookupToken: (kind, _workspace, id) =>
        Promise.resolve(
          id === "eve" ? owner(kind, [auditor], "auditor") : owner(kind, kind === "vk" ? [token] : [operator]),
        ),
      log,
    });
    for (const service of [SpendControlService, AdminService]) {
      for (const method of service.methods) {
        const named = rolesOf(method);
        expect(named.length, `${method.name} names its roles`).toBeGreaterThan(0);
        for (const [role, authorization] of [
          [1, `Bearer ${token}`],
          [2, `Bearer ${operator}`],
          [3, `Bearer ${auditor}`],
        ] as const) {
          const call = pass(gate, authorization, method);
          if (named.includes(role)) await expect(call, method.name).resolves.toBeDefined();
          else {
            const error = await refusal(call);
            expect(error.code, method.name).toBe(Code.PermissionDenied);
            expect(error.findDetails(ErrorInfoSchema)).toMatchObject([{ reason: "ROLE_NOT_ALLOWED" }]);
            expect(error.rawMessage).toContain(method.name);
          }
        }
      }
    }
  });

  test("denies an RPC that names no roles", async () => {
    const gate = authGate({ lookupToken: lookup(tokens), log });
    const { proto } = authorize;
    const nameless = { ...authorize, proto: { ...proto, options: undefined } } as unknown as DescMethod;
    expect((await refusal(pass(gate, `Bearer ${token}`, nameless))).code).toBe(Code.PermissionDenied);
  });
});

describe("over the wire", () => {
  test("a call without a token is refused before its body is read", async () => {
    const server = await startStubServer();
    const response = await fetch(`${server.url}/holdfast.v1.SpendControlService/AuthorizeSpend`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: "this is not JSON",
    });
    expect(response.status).toBe(401);
    expect(await response.json()).toMatchObject({ code: "unauthenticated" });
    const client = createClient(SpendControlService, createConnectTransport({ baseUrl: server.url, httpVersion: "2" }));
    const error = await refusal(client.authorizeSpend(validRequest()));
    expect(error.findDetails(ErrorInfoSchema)).toMatchObject([{ reason: "INVALID_TOKEN", domain: "holdfast" }]);
    expect(server.handled()).toBe(0);
    await server.close(1_000);
  });
});
