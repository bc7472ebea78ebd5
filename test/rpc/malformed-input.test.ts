import { randomBytes } from "node:crypto";
import { Code, ConnectError } from "@connectrpc/connect";
import { ErrorInfoSchema } from "@holdfast/api/google/rpc/error_details_pb";
import { CapWindow } from "@holdfast/api/holdfast/v1/cap_pb";
import { Settlement } from "@holdfast/api/holdfast/v1/spend_pb";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { startTestServer, type TestServer } from "../support/server.ts";

let server: TestServer;
let vaultKey: string;

beforeAll(async () => {
  server = await startTestServer();
  vaultKey = await server.vaultKey("main");
  await server.cap("daily", "100", { window: CapWindow.DAY });
  await server.cap("total", "100");
});
afterAll(() => server.close());

/** The field that an INVALID_FIELD refusal names. */
async function refusedField(call: Promise<unknown>): Promise<string | undefined> {
  const error = await call.then(
    () => undefined,
    (cause: unknown) => cause,
  );
  if (!(error instanceof ConnectError)) throw new Error("the call was not refused", { cause: error });
  const [info] = error.findDetails(ErrorInfoSchema);
  expect(error.code).toBe(Code.InvalidArgument);
  expect(info?.reason).toBe("INVALID_FIELD");
  return info?.metadata["field"];
}

function authorize(fields: object) {
  return server.spend(vaultKey).authorizeSpend({
    spend: {
      customerId: "cust_1",
      billingPeriod: "2026-11",
      purpose: "subscription",
      amount: { currency: "usd", amount: "1" },
    },
    vendor: "stripe",
    endpoint: "POST /v1/payment_intents",
    attemptId: randomBytes(16).toString("hex"),
    ...fields,
  });
}

// The binary format carries durations and instants that JSON cannot say.
describe("a duration whose nanoseconds are no fraction of a second", () => {
  test.each([2_000_000_000, -1])("cannot stretch resend_safe_for over its limit: %i", async (nanos) => {
    const resendSafeFor = { seconds: 82_799n, nanos };
    const call = authorize({ settlement: Settlement.RESEND_SAFE, resendSafeFor });
    expect(await refusedField(call)).toBe("resend_safe_for");
  });

  test("cannot shorten a hold below its limit", async () => {
    expect(await refusedField(authorize({ holdDuration: { seconds: 6n, nanos: -2_000_000_000 } }))).toBe(
      "hold_duration",
    );
  });

  test("cannot make a billing lease that has run out before it began", async () => {
    const call = server.spend(vaultKey).acquireBillingLease({
      lease: "nightly",
      billingPeriod: "2026-11",
      holderId: "holder",
      ttl: { seconds: 2n, nanos: -2_100_000_000 },
    });
    expect(await refusedField(call)).toBe("ttl");
  });
});

test.each([
  { seconds: 9_000_000_000_000_000_000n, nanos: 0 },
  { seconds: -62_135_596_801n, nanos: 0 },
  { seconds: 0n, nanos: 1_000_000_000 },
])("an instant outside the years 1 to 9999 is refused: $seconds s, $nanos ns", async (expireTime) => {
  const call = server.admin.createVaultKey({ vaultKeyId: "odd", vaultKey: { vendor: "stripe", expireTime } });
  expect(await refusedField(call)).toBe("vault_key.expire_time");
});

test("a page token with a character that no id has is refused", async () => {
  const pageToken = Buffer.from(JSON.stringify(["\u0000"])).toString("base64url");
  expect(await refusedField(server.admin.listCaps({ pageToken }))).toBe("page_token");
  expect(await refusedField(server.admin.listVaultKeys({ pageToken }))).toBe("page_token");
});

test.each([
  ["caps/daily", "0000-01-01"],
  ["caps/daily", "2026-02-30"],
  ["caps/total", "2026-11-30"],
])("a window that %s cannot have is refused: %s", async (name, window) => {
  expect(await refusedField(server.admin.getCap({ name, window }))).toBe("window");
});
