import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { durationFromMs, type Timestamp, timestampFromMs, timestampMs } from "@bufbuild/protobuf/wkt";
import {
  type CapDraw,
  CapEnforcement,
  CapSchema,
  CapScopeSchema,
  type CapUsage,
  CapWindow,
  DayOfWeek,
} from "@holdfast/api/holdfast/v1/cap_pb";
import { VaultKeySchema } from "@holdfast/api/holdfast/v1/vault_key_pb";
import type { Money } from "@holdfast/api/holdfast/v1/money_pb";
import {
  type Authorization,
  AuthorizationState,
  DenialRule,
  Direction,
  Disposition,
  type LeaseFenceSchema,
  ReconciliationFinding,
  type RequestError,
  Settlement,
  VoidEvidence,
} from "@holdfast/api/holdfast/v1/spend_pb";
import {
  type AuthorizeSpendRequestSchema,
  type AuthorizeSpendResponse,
  type BillingLease,
  type CommitSpendRequestSchema,
  LeaseAnswer,
} from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import type {
  Answer,
  Authorize,
  Commit,
  CreateCap,
  CreateVaultKey,
  Fence,
  Identity,
  Look,
  SwitchTarget,
} from "./command.ts";
import { isCalendar } from "./model-window.ts";
import { authorizationName } from "./model-world.ts";

/** Micros as the decimal string of the wire. */
export function money(currency: string, micros: bigint): { currency: string; amount: string } {
  const digits = micros.toString().padStart(7, "0");
  const fraction = digits.slice(-6).replace(/0+$/, "");
  return { currency, amount: fraction === "" ? digits.slice(0, -6) : `${digits.slice(0, -6)}.${fraction}` };
}

export function micros(message: Money | undefined): bigint | null {
  if (message === undefined) return null;
  const [, sign = "", whole = "0", fraction = ""] = /^(-?)(\d+)(?:\.(\d{1,6}))?$/.exec(message.amount) ?? [];
  const value = BigInt(whole + fraction.padEnd(6, "0"));
  return sign === "-" ? -value : value;
}

const time = (message: Timestamp | undefined): number | null => (message === undefined ? null : timestampMs(message));
const nameOf = (names: Readonly<Record<string, number>>, value: number): string =>
  Object.keys(names).find((name) => names[name] === value) ?? `unknown ${value}`;
const text = (value: string): string | null => (value === "" ? null : value);

export function leaseFence(fence: Fence | null): { leaseFence?: MessageInitShape<typeof LeaseFenceSchema> } {
  if (fence === null) return {};
  const { lease, period, holder, token } = fence;
  return { leaseFence: { lease, billingPeriod: period, holderId: holder, fencingToken: token } };
}

export function authorizeMessage(request: Authorize): MessageInitShape<typeof AuthorizeSpendRequestSchema> {
  return {
    spend: {
      customerId: request.customer,
      billingPeriod: request.period,
      purpose: request.purpose,
      amount: money(request.currency, request.amount),
    },
    vendor: request.vendor,
    endpoint: request.endpoint,
    direction: Direction[request.direction],
    refundOf: request.refundOf,
    attemptId: request.attempt,
    settlement: Settlement[request.settlement],
    ...(request.resendSafeForMs === null ? {} : { resendSafeFor: durationFromMs(request.resendSafeForMs) }),
    holdDuration: durationFromMs(request.holdMs),
    retryAfterGeneration: request.retryAfterGeneration,
    continueVendorReference: request.continueReference,
    ...leaseFence(request.fence),
    vendorAccount: request.vendorAccount,
    bodyFingerprint: request.fingerprint,
    credentialFingerprint: request.credential,
    sameBodyRequired: request.sameBodyRequired,
    dryRun: request.dryRun,
  };
}

export function commitMessage(request: Commit): MessageInitShape<typeof CommitSpendRequestSchema> {
  return {
    authorization: authorizationOf(request),
    amount: money(request.currency, request.amount),
    vendorReference: request.reference,
  };
}

export function lookMessage({ at, account }: Look) {
  return { token: Buffer.from(`look-${at}000`).toString("base64url"), vendorAccountId: account };
}

export const authorizationOf = (request: { readonly spend: Identity; readonly generation: number }): string =>
  authorizationName(request.spend, request.generation);

export function capMessage(rule: CreateCap) {
  const { key, vendor, endpoint, customer, purpose } = rule.scope;
  const { currency, calendar, window, fixed, maxPerSpend } = rule;
  const begins = isCalendar(rule) ? { timeZone: calendar.zone, startHour: calendar.startHour } : {};
  return create(CapSchema, {
    ...(currency === null ? { spendCountLimit: rule.limit } : { limit: money(currency, rule.limit) }),
    enforcement: CapEnforcement[rule.enforcement],
    window: CapWindow[window],
    ...begins,
    // The numbers of the days are the same.
    weekStart: window === "WEEK" ? (calendar.weekStart as DayOfWeek) : DayOfWeek.UNSPECIFIED,
    anchorDay: window === "MONTH" || window === "YEAR" ? calendar.anchorDay : 0,
    anchorMonth: window === "YEAR" ? calendar.anchorMonth : 0,
    ...(fixed === null ? {} : { startTime: timestampFromMs(fixed.start), endTime: timestampFromMs(fixed.end) }),
    attachedOnly: rule.attachedOnly,
    perCustomer: rule.perCustomer,
    direction: Direction[rule.direction],
    refundsRestoreHeadroom: rule.restores,
    scope: create(CapScopeSchema, {
      vaultKey: key === undefined ? "" : `vaultKeys/${key}`,
      vendor: vendor ?? "",
      endpoint: endpoint ?? "",
      customerId: customer ?? "",
      purpose: purpose ?? "",
    }),
    ...(maxPerSpend === null || currency === null ? {} : { maxPerSpend: money(currency, maxPerSpend) }),
  });
}

export function vaultKeyMessage(policy: CreateVaultKey) {
  const { maxPerSpend, expireTime } = policy;
  return create(VaultKeySchema, {
    vendor: policy.vendor,
    allowedEndpoints: [...policy.endpoints],
    billingPeriods: [...policy.periods],
    purposes: [...policy.purposes],
    customers: [...policy.customers],
    attachedCaps: policy.attachedCaps.map((cap) => `caps/${cap}`),
    ...(maxPerSpend === null ? {} : { maxPerSpend: money(maxPerSpend.currency, maxPerSpend.amount) }),
    ...(expireTime === null ? {} : { expireTime: timestampFromMs(expireTime) }),
  });
}

export function targetMessage({ kind, name }: SwitchTarget) {
  switch (kind) {
    case "WORKSPACE":
      return { target: { case: "workspace" as const, value: true } };
    case "VENDOR":
      return { target: { case: "vendor" as const, value: name } };
    case "CUSTOMER":
      return { target: { case: "customerId" as const, value: name } };
  }
}

export function authorizationAnswer(message: Authorization | undefined): Answer {
  if (message === undefined) return { error: null, name: null };
  return {
    error: null,
    name: message.name,
    state: nameOf(AuthorizationState, message.state),
    generation: message.generation,
    idempotencyKey: message.idempotencyKey,
    vaultKey: message.vaultKey.replace("vaultKeys/", ""),
    amount: micros(message.spend?.amount),
    heldAmount: micros(message.heldAmount),
    grantTime: time(message.grantTime),
    holdExpireTime: time(message.holdExpireTime),
    reference: text(message.vendorReference),
    vendorState: message.vendorState,
    followUntil: time(message.followUntilTime),
    inDoubtTime: time(message.inDoubtTime),
    finding:
      message.reconciliation === undefined ? null : nameOf(ReconciliationFinding, message.reconciliation.finding),
    askedTime: time(message.reconciliation?.lastTime),
    askedCount: message.reconciliation?.count ?? null,
    absentSince: time(message.reconciliation?.absentSinceTime),
    committedAmount: micros(message.committedAmount),
    refundedAmount: micros(message.refundedAmount),
    direction: nameOf(Direction, message.direction),
    refundOf: text(message.refundOf),
    evidence: message.voidEvidence === VoidEvidence.UNSPECIFIED ? null : nameOf(VoidEvidence, message.voidEvidence),
  };
}

export function authorizeAnswer(response: AuthorizeSpendResponse): Answer {
  return {
    ...authorizationAnswer(response.authorization),
    ...denialAnswer(response),
    mayHaveBeenSent: response.mayHaveBeenSent,
    waits: response.retryAfter !== undefined && (response.retryAfter.seconds > 0n || response.retryAfter.nanos > 0),
    fields: fieldNames(response.differingFields),
    draws: response.draws.map(drawText).join("; "),
    failedGeneration: response.failedGeneration,
  };
}

/** The figures of a counter, whatever it counts. */
export function usageAnswer(usage: CapUsage | undefined): Answer {
  return {
    error: null,
    committed: micros(usage?.committed) ?? usage?.committedCount ?? null,
    held: micros(usage?.held) ?? usage?.heldCount ?? null,
    headroom: micros(usage?.headroom) ?? usage?.headroomCount ?? null,
  };
}

function drawText(draw: CapDraw): string {
  const { usage } = draw;
  const { committed = null, held = null, headroom = null } = usageAnswer(usage);
  const rule = draw.fits ? "fits" : nameOf(DenialRule, draw.rule);
  const limit = micros(draw.limit) ?? draw.spendCountLimit ?? null;
  const where = [usage?.window, usage?.customerId, time(usage?.windowStartTime), time(usage?.windowEndTime)];
  const figures = [limit, committed, held, headroom, micros(draw.amount) ?? draw.count ?? ""];
  return [draw.cap.replace("caps/", ""), nameOf(CapEnforcement, draw.enforcement), rule, ...where, ...figures].join(
    " ",
  );
}

/** The disposition, with every figure of a denial. */
export function denialAnswer(response: Pick<AuthorizeSpendResponse, "denial" | "disposition">): Answer {
  const { denial } = response;
  return {
    disposition: nameOf(Disposition, response.disposition),
    ...(denial === undefined
      ? {}
      : {
          rule: nameOf(DenialRule, denial.rule),
          cap: text(denial.cap.replace("caps/", "")),
          limit: micros(denial.limit) ?? denial.limitCount ?? null,
          committed: micros(denial.committed) ?? denial.committedCount ?? null,
          held: micros(denial.held) ?? denial.heldCount ?? null,
          headroom: micros(denial.headroom) ?? denial.headroomCount ?? null,
          shortBy: micros(denial.shortBy) ?? denial.shortByCount ?? null,
          window: denial.window,
          windowStart: time(denial.windowStartTime),
          windowEnd: time(denial.windowEndTime),
        }),
  };
}

/** Amount and currency are one figure here. */
function fieldNames(fields: readonly string[]): string {
  const names = fields.map((field) => (field.startsWith("spend.amount") ? "spend.amount" : field));
  return [...new Set(names)].toSorted().join();
}

export function leaseAnswer(message: BillingLease | undefined): Answer {
  if (message === undefined) return { error: null };
  return {
    error: null,
    holder: message.holderId,
    token: message.fencingToken,
    completed: message.completed,
    expireTime: time(message.expireTime),
  };
}

export const leaseAnswerName = (answer: LeaseAnswer): string => nameOf(LeaseAnswer, answer);

/** A refusal, of a call or of one request of a batch. */
export function refusalAnswer(error: Pick<RequestError, "reason" | "metadata">): Answer {
  const { fields, vendor_reference: winner } = error.metadata;
  return { error: error.reason, fields: fieldNames(fields?.split(/, ?/) ?? []), winner: winner ?? null };
}
