import { create, type DescMessage, fromBinary, toBinary } from "@bufbuild/protobuf";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { BadRequestSchema, ErrorInfoSchema } from "@holdfast/api/google/rpc/error_details_pb";
import { AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import { Disposition } from "@holdfast/api/holdfast/v1/spend_pb";
import {
  AuthorizeSpendRequestSchema,
  BatchAuthorizeSpendRequestSchema,
  GetAuthorizationRequestSchema,
  SpendControlService,
  VoidSpendRequestSchema,
} from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { InvalidRequestError, toRequestError } from "@holdfast/server/rpc/errors";
import { validateMessage, warmUpValidation } from "@holdfast/server/rpc/validate";
import { remedyOfPattern } from "@holdfast/server/rpc/validate-remedies";
import { readdirSync, readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";
import { startStubServer, validRequest } from "./stub-server.ts";

function violationsOf<Desc extends DescMessage>(schema: Desc, message: Parameters<typeof validateMessage<Desc>>[1]) {
  try {
    validateMessage(schema, message);
  } catch (error) {
    if (error instanceof InvalidRequestError)
      return Object.fromEntries(error.violations.map((one) => [one.field, one.description]));
    throw error;
  }
  return {};
}

/** Work and not time: a stalled machine costs nothing. */
function processorMs(work: () => void): number {
  const before = process.threadCpuUsage();
  work();
  const { user, system } = process.threadCpuUsage(before);
  return (user + system) / 1000;
}

describe("a refused field", () => {
  test("is named by its path, with what is allowed", () => {
    const bad = validRequest();
    bad.spend!.customerId = "cust:1";
    bad.spend!.amount!.amount = "4,90";
    bad.attemptId = "ABC";
    bad.settlement = 99 as never;
    bad.retryAfterGeneration = -1;
    expect(violationsOf(AuthorizeSpendRequestSchema, bad)).toEqual({
      "spend.customer_id": "must be 1–128 visible ASCII characters without spaces and without ':'.",
      "spend.amount.amount":
        'must be a decimal string with at most 6 decimals and at most 13 digits before the point, for example "49.90".',
      attempt_id: "must be 32 lower-case hex digits: 128 random bits, made once per logical call.",
      settlement: "must be one of SETTLEMENT_TWO_STEP, SETTLEMENT_RESEND_SAFE, SETTLEMENT_SEND_ONCE.",
      retry_after_generation: "must be greater than or equal to 0 and less than or equal to 1000000.",
    });
  });

  test("that is missing is called required", () => {
    expect(violationsOf(AuthorizeSpendRequestSchema, create(AuthorizeSpendRequestSchema))).toMatchObject({
      spend: "is required.",
    });
    expect(violationsOf(GetAuthorizationRequestSchema, create(GetAuthorizationRequestSchema))).toEqual({
      lookup: "is required: set one of name, vendor_reference.",
    });
    expect(violationsOf(VoidSpendRequestSchema, create(VoidSpendRequestSchema))["evidence"]).toMatch(
      /^must be one of VOID_EVIDENCE_NEVER_SENT, /,
    );
  });

  test("a valid request and a negative amount pass: the sign is judged by the domain", () => {
    const request = validRequest();
    expect(violationsOf(AuthorizeSpendRequestSchema, request)).toEqual({});
    request.spend!.amount!.amount = "-1";
    expect(violationsOf(AuthorizeSpendRequestSchema, request)).toEqual({});
  });

  test("control characters, spaces and lone surrogates do not pass as identity", () => {
    for (const customerId of ["a\u0000", "a\n", "a b", "é", "\ud800", "", "a".repeat(129)]) {
      const request = validRequest();
      request.spend!.customerId = customerId;
      expect(violationsOf(AuthorizeSpendRequestSchema, request), JSON.stringify(customerId)).toHaveProperty([
        "spend.customer_id",
      ]);
    }
  });

  test("hostile strings of 64 KB cost no time", () => {
    for (const text of ["/a".repeat(32_000), "a".repeat(64_000), `POST ${"/a".repeat(32_000)} `, "1".repeat(64_000)]) {
      const request = validRequest();
      request.endpoint = text;
      request.spend!.amount!.amount = text;
      // Quadratic work on that many characters takes seconds of the processor; this takes 10 ms.
      expect(processorMs(() => violationsOf(AuthorizeSpendRequestSchema, request))).toBeLessThan(500);
    }
  });
});

test("every pattern of the contract has words", () => {
  const folder = new URL("../../proto/holdfast/v1/", import.meta.url);
  const patterns = new Set<string>();
  for (const file of readdirSync(folder)) {
    for (const [, pattern] of readFileSync(new URL(file, folder), "utf8").matchAll(
      /pattern\s*[=:]\s*("(?:[^"\\]|\\.)*")/g,
    )) {
      patterns.add(JSON.parse(pattern as string) as string);
    }
  }
  expect(patterns.size).toBeGreaterThan(10);
  for (const pattern of patterns) expect(remedyOfPattern, pattern).toHaveProperty([pattern]);
  for (const pattern of Object.keys(remedyOfPattern)) expect(patterns, pattern).toContain(pattern);
});

test("warming up reaches every request of the services", () => {
  warmUpValidation([SpendControlService, AdminService]);
  const methods = [SpendControlService, AdminService].flatMap((service) => service.methods);
  // 10 ms, and 250 ms if the rules have to be compiled first.
  const ms = processorMs(() => {
    for (const { input } of methods) violationsOf(input, create(input));
  });
  expect(ms).toBeLessThan(100);
});

describe("unknown binary fields", () => {
  // Field 4095, a varint.
  const unknown = Uint8Array.from([0xf8, 0xff, 0x01, 0x01]);

  test("are refused by number, at any depth", () => {
    const outer = fromBinary(
      AuthorizeSpendRequestSchema,
      Buffer.concat([toBinary(AuthorizeSpendRequestSchema, validRequest()), unknown]),
    );
    expect(violationsOf(AuthorizeSpendRequestSchema, outer)["4095"]).toContain(
      "AuthorizeSpendRequest has no field with number 4095",
    );
    const inner = validRequest();
    inner.spend!.amount!.$unknown = [{ no: 9, wireType: 0, data: Uint8Array.of(1) }];
    expect(Object.keys(violationsOf(AuthorizeSpendRequestSchema, inner))).toEqual(["spend.amount.9"]);
    const chosen = create(GetAuthorizationRequestSchema, {
      lookup: { case: "vendorReference", value: { vendor: "stripe", vendorReference: "pi_1" } },
    });
    if (chosen.lookup.case === "vendorReference")
      chosen.lookup.value.$unknown = [{ no: 8, wireType: 0, data: Uint8Array.of(1) }];
    expect(Object.keys(violationsOf(GetAuthorizationRequestSchema, chosen))).toEqual(["vendor_reference.8"]);
  });

  test("of one item are left to the item, so that its neighbours are not refused", () => {
    const bad = validRequest();
    bad.$unknown = [{ no: 77, wireType: 0, data: Uint8Array.of(1) }];
    const batch = create(BatchAuthorizeSpendRequestSchema, { requests: [validRequest(), bad] });
    expect(violationsOf(BatchAuthorizeSpendRequestSchema, batch)).toEqual({});
    expect(Object.keys(violationsOf(AuthorizeSpendRequestSchema, bad))).toEqual(["77"]);
  });
});

describe("over the wire", () => {
  test("a refusal names the first field and details all", async () => {
    const server = await startStubServer();
    const client = createClient(SpendControlService, createGrpcTransport({ baseUrl: server.url }));
    const headers = { authorization: `Bearer ${server.vaultKeyToken}` };
    const error = await client.authorizeSpend({ ...validRequest(), vendor: "Stripe", attemptId: "" }, { headers }).then(
      () => expect.fail("the call was not refused"),
      (reason: unknown) => ConnectError.from(reason),
    );
    expect(error.code).toBe(Code.InvalidArgument);
    expect(error.rawMessage).toMatch(/^vendor: must be a vendor name like "stripe"/);
    expect(error.findDetails(ErrorInfoSchema)).toMatchObject([
      { reason: "INVALID_FIELD", metadata: { field: "vendor" } },
    ]);
    expect(error.findDetails(BadRequestSchema)[0]?.fieldViolations.map((one) => one.field)).toEqual([
      "vendor",
      "attempt_id",
    ]);
    expect(server.handled()).toBe(0);
    await server.close(1_000);
  });

  test("one bad item does not refuse a batch, an empty batch is refused", async () => {
    const server = await startStubServer({
      spend: {
        batchAuthorizeSpend: ({ requests }) => ({
          results: requests.map((item) => {
            try {
              validateMessage(AuthorizeSpendRequestSchema, item);
              return { result: { case: "response", value: { disposition: Disposition.GRANTED } } };
            } catch (error) {
              return { result: { case: "error", value: toRequestError(error, { error: () => {} }) } };
            }
          }),
        }),
      },
    });
    const client = createClient(SpendControlService, createGrpcTransport({ baseUrl: server.url }));
    const headers = { authorization: `Bearer ${server.vaultKeyToken}` };
    const answer = await client.batchAuthorizeSpend({ requests: [validRequest(), {}, validRequest()] }, { headers });
    expect(answer.results.map((one) => one.result.case)).toEqual(["response", "error", "response"]);
    expect(answer.results[1]?.result.value).toMatchObject({
      code: 3,
      reason: "INVALID_FIELD",
      metadata: { field: "spend" },
    });
    await expect(client.batchAuthorizeSpend({}, { headers })).rejects.toMatchObject({ code: Code.InvalidArgument });
    await server.close(1_000);
  });
});
