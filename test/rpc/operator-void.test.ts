import { randomBytes } from "node:crypto";
import { ConnectError } from "@connectrpc/connect";
import { ErrorInfoSchema } from "@holdfast/api/google/rpc/error_details_pb";
import { AuthorizationState, Disposition, Settlement, VoidEvidence } from "@holdfast/api/holdfast/v1/spend_pb";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { startTestServer, type TestServer } from "../support/server.ts";

let server: TestServer;
let vaultKey: string;

beforeAll(async () => {
  server = await startTestServer();
  vaultKey = await server.vaultKey("main");
});
afterAll(() => server.close());

async function grant(customerId: string, settlement = Settlement.SEND_ONCE) {
  const answer = await server.spend(vaultKey).authorizeSpend({
    spend: {
      customerId,
      billingPeriod: "2026-11",
      purpose: "subscription",
      amount: { currency: "usd", amount: "10" },
    },
    vendor: "stripe",
    endpoint: "POST /v1/payment_intents",
    attemptId: randomBytes(16).toString("hex"),
    settlement,
  });
  return { disposition: answer.disposition, name: answer.authorization?.name ?? "" };
}

async function reasonOf(call: Promise<unknown>): Promise<string | undefined> {
  const error = await call.then(
    () => undefined,
    (cause: unknown) => cause,
  );
  return error instanceof ConnectError ? error.findDetails(ErrorInfoSchema)[0]?.reason : undefined;
}

describe("an operator's void", () => {
  // The attempt may be sending right now: a void would free the spend for a second key at once.
  test.each([
    ["never_sent", { evidence: VoidEvidence.NEVER_SENT }],
    ["refused", { evidence: VoidEvidence.VENDOR_REFUSED, vendorStatus: 402 }],
  ] as const)("proves nothing with what only the holding attempt knows: %s", async (customerId, proof) => {
    const { name } = await grant(customerId);
    const operator = server.spend(server.operatorToken);
    expect(await reasonOf(operator.voidSpend({ authorization: name, ...proof }))).toBe("EVIDENCE_INSUFFICIENT");
    const again = await grant(customerId);
    expect(again.disposition).toBe(Disposition.IN_DOUBT);
    expect(again.name).toBe(name);
  });

  test("without a reason is refused before anything changes", async () => {
    const { name } = await grant("no_reason");
    const operator = server.spend(server.operatorToken);
    const bare = operator.voidSpend({ authorization: name, evidence: VoidEvidence.OPERATOR });
    expect(await reasonOf(bare)).toBe("INVALID_FIELD");
    const { authorization } = await operator.getAuthorization({ lookup: { case: "name", value: name } });
    expect(authorization?.state).toBe(AuthorizationState.HELD);
  });

  test("waits for an attempt in the middle of its call", async () => {
    const { name } = await grant("mid_call");
    const operator = server.spend(server.operatorToken);
    const early = operator.voidSpend({ authorization: name, evidence: VoidEvidence.OPERATOR, reason: "seen" });
    const refused = await early.catch((cause: unknown) => cause);
    expect(await reasonOf(early)).toBe("STATE_NOT_ALLOWED");
    expect((refused as Error).message).toMatch(/at most \d+ s/);
    expect((await grant("mid_call")).disposition).toBe(Disposition.IN_PROGRESS);
  });

  test("proves with a reason, or with the bound object seen cancelled", async () => {
    const operator = server.spend(server.operatorToken);
    const first = await grant("reason");
    await server.clock.advance(600_000);
    const voided = await operator.voidSpend({
      authorization: first.name,
      evidence: VoidEvidence.OPERATOR,
      reason: "the vendor has confirmed by phone that there is no charge",
    });
    expect(voided.authorization?.state).toBe(AuthorizationState.VOIDED);
    expect((await grant("reason")).disposition).toBe(Disposition.ALREADY_FAILED);

    const attemptId = randomBytes(16).toString("hex");
    const { authorization } = await server.spend(vaultKey).authorizeSpend({
      spend: {
        customerId: "tombstone",
        billingPeriod: "2026-11",
        purpose: "subscription",
        amount: { currency: "usd", amount: "10" },
      },
      vendor: "stripe",
      endpoint: "POST /v1/payment_intents",
      attemptId,
      settlement: Settlement.TWO_STEP,
    });
    const name = authorization?.name ?? "";
    await server.spend(vaultKey).bindVendorReference({ authorization: name, attemptId, vendorReference: "pi_1" });
    const buried = await operator.voidSpend({
      authorization: name,
      evidence: VoidEvidence.TOMBSTONE,
      vendorReference: "pi_1",
    });
    expect(buried.authorization?.voidEvidence).toBe(VoidEvidence.TOMBSTONE);
  });
});
