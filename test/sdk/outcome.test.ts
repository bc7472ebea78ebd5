import { classifyOutcome, type Outcome, type VendorSignal } from "@holdfast/sdk";
import { describe, expect, it } from "vitest";

function answer(status: number, more: Partial<Extract<VendorSignal, { kind: "answer" }>> = {}): VendorSignal {
  const errorType = status >= 300 ? "invalid_request_error" : undefined;
  return { kind: "answer", status, readable: true, replayed: false, errorType, ...more };
}

// Signal, then what it says on a first send and on a replay.
const TABLE: readonly (readonly [string, VendorSignal, Outcome, Outcome])[] = [
  ["the guard's own denial", { kind: "denied" }, "not_charged", "unknown"],
  ["connection never made", { kind: "not_sent" }, "not_charged", "unknown"],
  ["reset, timeout, abort or cut body", { kind: "lost" }, "unknown", "unknown"],
  ["2xx", answer(200), "charged", "charged"],
  ["2xx replayed", answer(200, { replayed: true }), "charged", "charged"],
  ["200 that is no JSON", answer(200, { readable: false }), "unknown", "unknown"],
  ["200 with an error in it", answer(200, { errorType: "api_error" }), "unknown", "unknown"],
  ["402 decline", answer(402, { errorType: "card_error" }), "not_charged", "not_charged"],
  ["402 that is no JSON", answer(402, { readable: false }), "unknown", "unknown"],
  ["400", answer(400), "not_charged", "unknown"],
  ["400 replayed", answer(400, { replayed: true }), "not_charged", "not_charged"],
  ["400 unexpected state", answer(400, { errorCode: "payment_intent_unexpected_state" }), "unknown", "unknown"],
  ["400 already captured", answer(400, { errorCode: "charge_already_captured" }), "unknown", "unknown"],
  ["400 already refunded", answer(400, { errorCode: "charge_already_refunded" }), "unknown", "unknown"],
  ["400 already paid", answer(400, { errorCode: "invoice_already_paid" }), "unknown", "unknown"],
  ["400 key misuse", answer(400, { errorType: "idempotency_error" }), "unknown", "unknown"],
  ["401", answer(401), "not_charged", "unknown"],
  ["403", answer(403), "not_charged", "unknown"],
  ["404", answer(404), "not_charged", "unknown"],
  ["409 key in use", answer(409, { errorCode: "idempotency_key_in_use" }), "unknown", "unknown"],
  ["424", answer(424), "unknown", "unknown"],
  ["429 with a reason", answer(429, { rateLimitedReason: "global-rate" }), "not_charged", "unknown"],
  ["429 lock timeout", answer(429, { errorCode: "lock_timeout" }), "unknown", "unknown"],
  ["500", answer(500), "unknown", "unknown"],
  ["500 replayed", answer(500, { replayed: true }), "unknown", "unknown"],
  ["502 that is no JSON", answer(502, { readable: false }), "unknown", "unknown"],
  ["503", answer(503), "unknown", "unknown"],
  ["504", answer(504), "unknown", "unknown"],
  ["a redirect", answer(302), "unknown", "unknown"],
  ["a status nobody has seen", answer(418), "unknown", "unknown"],
];

describe("did the charge happen?", () => {
  it.each(TABLE)("%s", (_, signal, first, replay) => {
    expect(classifyOutcome(signal, { replay: false })).toBe(first);
    expect(classifyOutcome(signal, { replay: true })).toBe(replay);
  });

  it("is answered for every status, and a replay never says more than a first send", () => {
    for (let status = 100; status <= 599; status += 1) {
      const first = classifyOutcome(answer(status), { replay: false });
      const replay = classifyOutcome(answer(status), { replay: true });
      expect(["charged", "not_charged", "unknown"]).toContain(first);
      expect([first, "unknown"]).toContain(replay);
    }
  });
});
