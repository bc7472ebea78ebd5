import { createHash } from "node:crypto";
import { expect, test } from "vitest";
import { check } from "./checker.ts";
import type { AnswerLine, AuthorizationRow, Evidence, LedgerMovement, PlannedSpend } from "./evidence.ts";
import { tableOf } from "./report.ts";

const spend: PlannedSpend = {
  id: "s1.1",
  spendClass: "charge",
  customerId: "customer-1",
  billingPeriod: "2026-11",
  purpose: "faults:s1.1",
  currency: "usd",
  amountMax: 500,
  kinds: ["charge"],
  isObligation: false,
};
const idempotency_key = createHash("sha256").update("customer-1:2026-11:faults:s1.1").digest("hex").slice(0, 32);
// Four digits of the period before it.
const spend_key = `05e0${idempotency_key}`;

const row: AuthorizationRow = {
  spend_key,
  generation: 1,
  customer_id: "customer-1",
  billing_period: "2026-11",
  purpose: "faults:s1.1",
  idempotency_key,
  endpoint: "POST /v1/charges",
  settlement: "RESEND_SAFE",
  direction: "SPEND",
  state: "COMMITTED",
  vendor_reference: "ch_1",
  vendor_state: "",
  is_followed: false,
  held_micros: "5000000",
  committed_micros: "5000000",
  committed_currency: "usd",
  void_evidence: null,
  void_reason: null,
};
const voided = { ...row, state: "VOIDED", committed_micros: null, committed_currency: null, vendor_reference: null };
const inDoubt = { ...voided, state: "IN_DOUBT" };

const movement: LedgerMovement = {
  at: 1_500,
  kind: "charge",
  id: "ch_1",
  amount: 500,
  currency: "usd",
  idempotency_key,
  metadata: { faults_spend: "s1.1" },
};

const line: AnswerLine = {
  operation: 1,
  spend: "s1.1",
  worker: "1",
  call: "charges.create",
  start: 1_000,
  end: 2_000,
  answer: { kind: "ok", id: "ch_1", status: "succeeded", claimsMoved: true },
};

function answered(name: string, code: string, more: { retryAfterGeneration?: number } = {}): AnswerLine {
  return { ...line, answer: { kind: "error", name, code, message: "", ...more } };
}

const hold = { spend_key, generation: 1, cap_id: "day", window_label: "2026-11-01", subject: "" };
const counter = {
  cap_id: "day",
  window_label: "2026-11-01",
  subject: "",
  committed_micros: "5000000",
  held_micros: "0",
  limit_micros: "9000000",
};

const good: Evidence = {
  spends: [spend],
  movements: [movement],
  authorizations: [row],
  contradictions: [],
  holds: [hold],
  counters: [counter],
  excesses: [],
  answers: [line],
  faulted: [],
  disturbances: [],
  // What the vendor cannot answer; of what is settled, nobody asks.
  reconciled: [{ authorization: `authorizations/${spend_key}-1`, outcome: "unreadable" }],
  defects: [],
  vendorDeadlineMs: 2_000,
};

const nothingHeld = { ...counter, committed_micros: "0" };
const held = { ...nothingHeld, held_micros: "5000000" };
const denied = answered("SpendDeniedError", "holdfast_spend_denied");
const lateRequest = { at: 0, method: "POST", path: "/v1/charges", key: idempotency_key, executed: true, status: null };

test("one charge that everybody knows of differs in nothing", () => {
  const verdict = check(good);
  expect(verdict).toEqual({ differences: [], open: [] });
  expect(tableOf(good, verdict)).toMatch(/^charge +1 +1 +1 +1 +0 +0 +0 +0$/m);
});

test.each<[string, Partial<Evidence>]>([
  [
    "a spend that was denied and left nothing",
    { movements: [], authorizations: [], holds: [], counters: [], answers: [denied] },
  ],
  [
    "a doubt with a charge, after a lost process",
    { authorizations: [inDoubt], counters: [held], answers: [{ ...line, answer: { kind: "lost" } }] },
  ],
  [
    "a doubt without a charge, after a fault",
    {
      authorizations: [inDoubt],
      counters: [held],
      movements: [],
      answers: [answered("SpendInDoubtError", "holdfast_spend_in_doubt")],
      faulted: [{ ...lateRequest, fault: "error_500_before" }],
    },
  ],
  [
    "a denial beside a charge by a request that was long under way",
    { answers: [denied], faulted: [{ ...lateRequest, fault: "hold" }] },
  ],
  [
    "a second generation after a void",
    { authorizations: [voided, { ...row, generation: 2 }], holds: [{ ...hold, generation: 2 }] },
  ],
  [
    "a page that was paid in a browser while nobody could bind it",
    {
      authorizations: [inDoubt],
      counters: [held],
      movements: [
        {
          ...movement,
          idempotency_key: null,
          metadata: { ...movement.metadata, holdfast_authorization: `${spend_key}-1` },
        },
      ],
      answers: [{ ...line, answer: { kind: "lost" } }],
    },
  ],
  [
    "a doubt about an object that was followed for a week",
    {
      authorizations: [{ ...inDoubt, vendor_reference: "ch_1" }],
      counters: [held],
      disturbances: [{ kind: "days_pass", start: 3_000, end: 3_001, movedMs: 7 * 86_400_000 }],
    },
  ],
  [
    "a cap above its limit by what a contradiction counts",
    {
      counters: [{ ...counter, committed_micros: "10000000" }],
      contradictions: [
        {
          spend_key,
          generation: 1,
          kind: "OTHER_REFERENCE",
          vendor_reference: "x",
          amount_micros: "5000000",
          counted_micros: "5000000",
        },
      ],
    },
  ],
])("%s is as it should be", (_, changed) => {
  expect(check({ ...good, ...changed }).differences).toEqual([]);
});

test.each<[string, Partial<Evidence>, RegExp]>([
  ["a second charge", { movements: [movement, { ...movement, id: "ch_2" }] }, /moved 2 times/],
  [
    "a charge of nobody",
    { movements: [movement, { ...movement, id: "x", idempotency_key: null, metadata: {} }] },
    /nobody asked for charge/,
  ],
  [
    "a charge under a random key",
    { movements: [{ ...movement, id: "ch_2", idempotency_key: "random" }] },
    /has no authorization/,
  ],
  [
    "a charge of another spend's key",
    {
      movements: [{ ...movement, metadata: { faults_spend: "s2.1" } }],
      spends: [spend, { ...spend, id: "s2.1", purpose: "other" }],
    },
    /belongs to several spends/,
  ],
  ["a charge above what was asked", { movements: [{ ...movement, amount: 501 }] }, /is more than 500/],
  ["another kind of movement", { movements: [{ ...movement, kind: "payout" }] }, /is no charge/],
  ["a commit without a charge", { movements: [] }, /is committed at 5000000 usd, and nothing moved/],
  [
    "a commit of another amount",
    { movements: [{ ...movement, amount: 499 }] },
    /is committed at 5000000 usd, and charge 499/,
  ],
  ["a void with a charge", { authorizations: [voided], counters: [nothingHeld] }, /belongs to a voided generation 1/],
  [
    "a doubt for no reason",
    {
      authorizations: [inDoubt],
      counters: [held],
      answers: [answered("SpendInDoubtError", "holdfast_spend_in_doubt")].map((one) => ({ ...one, end: 1_900 })),
    },
    /is IN_DOUBT for no reason/,
  ],
  [
    "a doubt that the vendor could have settled",
    {
      authorizations: [inDoubt],
      counters: [held],
      answers: [{ ...line, answer: { kind: "lost" } }],
      reconciled: [{ authorization: `authorizations/${spend_key}-1`, outcome: "absent" }],
    },
    /is in doubt, and the last reconciliation said absent/,
  ],
  [
    "a later generation without a void",
    { authorizations: [inDoubt, { ...row, generation: 2 }] },
    /is IN_DOUBT, and there is a later one/,
  ],
  [
    "an authorization of nobody",
    { authorizations: [row, { ...voided, spend_key: "0".repeat(36), idempotency_key: "0" }] },
    /nobody asked for the authorization/,
  ],
  [
    "a counter that is wrong",
    { counters: [{ ...counter, committed_micros: "4000000" }] },
    /it should be 5000000 and 0/,
  ],
  ["a cap above its limit", { counters: [{ ...counter, limit_micros: "4000000" }] }, /is above its limit/],
  [
    "a cap that was above its limit for a while",
    { excesses: [{ ...counter, held_micros: "9000000" }] },
    /is above its limit/,
  ],
  [
    "a customer charged above the cap",
    { counters: [counter, { ...counter, cap_id: "customer", subject: "customer-1", limit_micros: "4000000" }] },
    /customer-1 was charged 5000000 micros/,
  ],
  [
    "more given back than was paid",
    { spends: [{ ...spend, base: "ch_0", kinds: ["charge"] }] },
    /500 were given back of ch_0, which is 0/,
  ],
  [
    "a success that is none",
    { answers: [line, { ...line, answer: { kind: "ok", id: "ch_x", status: "succeeded", claimsMoved: true } }] },
    /answered ch_x succeeded, and nothing moved/,
  ],
  [
    "a denial and a charge by that call",
    { answers: [denied] },
    /although every call then said that it did not move it/,
  ],
  [
    "a failure for certain that is none",
    {
      answers: [
        line,
        answered("SpendAlreadyFailedError", "holdfast_spend_already_failed", { retryAfterGeneration: 1 }),
      ],
    },
    /that generation is COMMITTED/,
  ],
  ["an exception that escaped", { defects: ["TypeError: no"] }, /TypeError: no/],
])("%s is a difference", (_, changed, difference) => {
  const { differences } = check({ ...good, ...changed });
  expect(differences.map(({ what }) => what).join("\n")).toMatch(difference);
});
