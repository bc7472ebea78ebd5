import { createHash } from "node:crypto";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { durationFromMs, durationMs, timestampFromMs, timestampMs } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError } from "@connectrpc/connect";
import { ErrorInfoSchema } from "@holdfast/api/google/rpc/error_details_pb";
import type {
  AuthorizeSpendRequest,
  AuthorizeSpendResponseSchema,
  BindVendorReferenceRequest,
  CommitSpendRequest,
  GetAuthorizationRequest,
  IncreaseHoldRequest,
  Look,
  ReportReconciliationRequest,
  ReportUnknownRequest,
  VoidSpendRequest,
} from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import {
  type Authorization,
  AuthorizationSchema,
  AuthorizationState,
  DenialRule,
  Disposition,
  type LeaseFence,
  ReconciliationFinding,
  ReconciliationSchema,
  Settlement,
  VoidEvidence,
} from "@holdfast/api/holdfast/v1/spend_pb";
import { authorizationName } from "../../sdk/stable-key.ts";

type AuthorizeAnswer = MessageInitShape<typeof AuthorizeSpendResponseSchema>;

interface Entry {
  readonly authorization: Authorization;
  readonly resendSafeForMs: number;
  attemptId: string;
  fingerprint: string;
  credential: string;
  toldSent: boolean;
  /** The account that was told first. */
  account: string;
  /** Looks that began before say nothing. */
  looksAfter: number;
}

export interface FakeSpendSettings {
  readonly now: () => number;
  readonly holdsLease: (fence: LeaseFence) => boolean;
  readonly capMajor: () => number;
  readonly deny: () => keyof typeof DenialRule | undefined;
}

const FENCED = {
  disposition: Disposition.DENIED,
  denial: { rule: DenialRule.FENCING_TOKEN, message: "The billing lease is not held." },
};

/** An error as the server makes it. */
export function failure(code: Code, reason: string, metadata: Record<string, string> = {}): ConnectError {
  return new ConnectError(reason, code, undefined, [
    { desc: ErrorInfoSchema, value: { reason, domain: "holdfast", metadata } },
  ]);
}

function precondition(reason: string, metadata: Record<string, string> = {}): ConnectError {
  return failure(Code.FailedPrecondition, reason, metadata);
}

function lookTime(look: Look | undefined): number {
  const [, time] = /^at (\d+)/.exec(Buffer.from(look?.token ?? "", "base64url").toString("utf8")) ?? [];
  return Number(time ?? Number.NaN);
}

function hash(text: string): string {
  return createHash("sha256").update(text).digest("hex").slice(0, 32);
}

function isOpen({ state }: Authorization): boolean {
  return state === AuthorizationState.HELD || state === AuthorizationState.IN_DOUBT;
}

const RESTARTS: ReadonlySet<VoidEvidence> = new Set([
  VoidEvidence.NEVER_SENT,
  VoidEvidence.NEVER_BOUND,
  VoidEvidence.NOT_EXECUTED,
]);

/** The rules about spends in memory, for one vault key, written apart from the server. */
export class FakeSpends {
  readonly #generations = new Map<string, Entry[]>();
  readonly #settings: FakeSpendSettings;

  constructor(settings: FakeSpendSettings) {
    this.#settings = settings;
  }

  all(): Authorization[] {
    return [...this.#generations.values()].flatMap((entries) => entries.map(({ authorization }) => authorization));
  }

  last(index: number): Authorization {
    const entry = [...this.#generations.values()][index]?.at(-1);
    if (entry === undefined) throw new Error(`no spend ${index}`);
    return entry.authorization;
  }

  authorize(request: AuthorizeSpendRequest): AuthorizeAnswer {
    const { spend } = request;
    if (spend?.amount === undefined) throw failure(Code.InvalidArgument, "INVALID_FIELD", { field: "spend" });
    const rule = this.#settings.deny();
    if (rule !== undefined) {
      return { disposition: Disposition.DENIED, denial: { rule: DenialRule[rule], message: "Denied by the test." } };
    }
    const text = `${spend.customerId}:${spend.billingPeriod}:${spend.purpose}`;
    const entries = this.#generations.get(text) ?? [];
    const entry = entries.at(-1);
    const answer = entry === undefined ? undefined : this.#repeat(request, entry);
    if (answer !== undefined) return answer;
    if (this.#isStale(request)) return FENCED;
    if (Number(spend.amount.amount) > this.#settings.capMajor()) {
      return { disposition: Disposition.DENIED, denial: this.#denial(spend.amount) };
    }
    const generation = entries.length + 1;
    const granted: Entry = {
      authorization: create(AuthorizationSchema, {
        name: authorizationName(spend, generation),
        spend,
        state: AuthorizationState.HELD,
        generation,
        idempotencyKey: generation === 1 ? hash(text) : hash(`${text}\ng${generation}`),
        vendor: request.vendor,
        vendorAccount: request.vendorAccount,
        endpoint: request.endpoint,
        settlement: request.settlement,
        direction: request.direction,
        refundOf: request.refundOf,
        heldAmount: spend.amount,
        grantTime: timestampFromMs(this.#settings.now()),
      }),
      attemptId: request.attemptId,
      fingerprint: request.bodyFingerprint,
      credential: request.credentialFingerprint,
      resendSafeForMs: request.resendSafeFor === undefined ? 0 : durationMs(request.resendSafeFor),
      toldSent: false,
      account: "",
      looksAfter: 0,
    };
    this.#generations.set(text, [...entries, granted]);
    return this.#grant(request, granted, false);
  }

  commit(request: CommitSpendRequest): Authorization {
    const { authorization } = this.#find(request.authorization);
    if (authorization.state === AuthorizationState.VOIDED) throw precondition("ALREADY_VOIDED");
    if (authorization.state === AuthorizationState.COMMITTED) {
      if (authorization.vendorReference !== request.vendorReference) throw precondition("COMMIT_CONTRADICTS");
      return authorization;
    }
    authorization.state = AuthorizationState.COMMITTED;
    authorization.vendorReference = request.vendorReference;
    authorization.vendorState = "";
    if (request.amount !== undefined) authorization.committedAmount = request.amount;
    return authorization;
  }

  void(request: VoidSpendRequest): Authorization {
    const entry = this.#find(request.authorization);
    const { authorization } = entry;
    if (authorization.state === AuthorizationState.VOIDED) return authorization;
    if (authorization.state === AuthorizationState.COMMITTED) throw precondition("ALREADY_COMMITTED");
    const absent = request.evidence === VoidEvidence.ABSENT_AFTER_QUARANTINE;
    if (absent && !this.#isAbsent(entry, request.look)) throw precondition("EVIDENCE_INSUFFICIENT");
    const tombstone = request.evidence === VoidEvidence.TOMBSTONE;
    if (!tombstone && !absent && entry.attemptId !== request.attemptId) throw precondition("ATTEMPT_SUPERSEDED");
    if (!this.#proves(request, entry)) {
      authorization.state = AuthorizationState.IN_DOUBT;
      throw precondition("EVIDENCE_INSUFFICIENT");
    }
    authorization.state = AuthorizationState.VOIDED;
    authorization.voidEvidence = request.evidence;
    authorization.vendorState = "";
    return authorization;
  }

  #isAbsent(entry: Entry, look: Look | undefined): boolean {
    const { reconciliation } = entry.authorization;
    if (reconciliation?.absentSinceTime === undefined || !this.#counts(entry, look)) return false;
    return (
      lookTime(look) - timestampMs(reconciliation.absentSinceTime) >= 5 * 60_000 &&
      look?.vendorAccountId === entry.account
    );
  }

  /** A look that began when everything that may have been sent had arrived. */
  #counts({ authorization, looksAfter }: Entry, look: Look | undefined): boolean {
    const { holdExpireTime } = authorization;
    if (holdExpireTime === undefined) return false;
    const time = lookTime(look);
    return time - timestampMs(holdExpireTime) >= 25 * 3_600_000 && time > looksAfter;
  }

  #proves(
    { evidence, vendorStatus: status, vendorReplayed, vendorReference }: VoidSpendRequest,
    entry: Entry,
  ): boolean {
    const { authorization, toldSent } = entry;
    if (authorization.vendorReference !== "") {
      return evidence === VoidEvidence.TOMBSTONE && vendorReference === authorization.vendorReference;
    }
    switch (evidence) {
      case VoidEvidence.ABSENT_AFTER_QUARANTINE:
        return true;
      case VoidEvidence.NEVER_SENT:
        return !toldSent;
      case VoidEvidence.NOT_EXECUTED:
        return !toldSent && [401, 403, 429].includes(status);
      case VoidEvidence.VENDOR_REFUSED:
        if (status === 402 || (status === 400 && vendorReplayed)) return true;
        return !toldSent && status >= 400 && status < 500 && ![408, 409, 424].includes(status);
      default:
        return false;
    }
  }

  reportUnknown(request: ReportUnknownRequest): Authorization {
    const entry = this.#find(request.authorization);
    if (entry.attemptId !== request.attemptId) throw precondition("ATTEMPT_SUPERSEDED");
    entry.toldSent = true;
    if (entry.authorization.state === AuthorizationState.HELD) {
      entry.authorization.state = AuthorizationState.IN_DOUBT;
      entry.authorization.vendorState = "";
    }
    return entry.authorization;
  }

  bind(request: BindVendorReferenceRequest): Authorization {
    const { authorization, attemptId } = this.#find(request.authorization);
    if (!isOpen(authorization)) throw precondition("STATE_NOT_ALLOWED");
    if (authorization.settlement !== Settlement.TWO_STEP && request.vendorState === "") {
      throw precondition("STATE_NOT_ALLOWED");
    }
    if (authorization.vendorReference !== "" && authorization.vendorReference !== request.vendorReference) {
      throw precondition("ALREADY_BOUND", { vendor_reference: authorization.vendorReference });
    }
    if (attemptId !== request.attemptId) throw precondition("ATTEMPT_SUPERSEDED");
    const owner = this.all().find(
      (other) =>
        other.name !== authorization.name &&
        other.vendorReference === request.vendorReference &&
        other.state !== AuthorizationState.VOIDED,
    );
    if (owner !== undefined) throw precondition("REFERENCE_BOUND_ELSEWHERE");
    authorization.vendorReference = request.vendorReference;
    authorization.vendorState = request.vendorState;
    if (request.vendorState !== "") authorization.state = AuthorizationState.HELD;
    return authorization;
  }

  /** Everything that is not settled, due or not. */
  unsettled(): { authorizations: Authorization[]; nextPageToken: string; lookToken: string } {
    const due = this.all().filter(
      ({ state, vendorState }) =>
        state === AuthorizationState.IN_DOUBT || (state === AuthorizationState.HELD && vendorState !== ""),
    );
    const lookToken = Buffer.from(`at ${this.#settings.now()}`).toString("base64url");
    return { authorizations: due, nextPageToken: "", lookToken };
  }

  committed(): { authorizations: Authorization[]; nextPageToken: string } {
    const done = this.all().filter(({ state }) => state === AuthorizationState.COMMITTED);
    return { authorizations: done, nextPageToken: "" };
  }

  reconciled(request: ReportReconciliationRequest): Authorization {
    const entry = this.#find(request.authorization);
    const { authorization } = entry;
    if (!isOpen(authorization)) throw precondition("STATE_NOT_ALLOWED");
    if (entry.account === "") entry.account = request.look?.vendorAccountId ?? "";
    const elsewhere = request.look?.vendorAccountId !== entry.account;
    const finding =
      request.finding === ReconciliationFinding.ABSENT && elsewhere ? ReconciliationFinding.UNCLEAR : request.finding;
    const counts = this.#counts(entry, request.look);
    const before = authorization.reconciliation;
    const stillAbsent = before?.finding === ReconciliationFinding.ABSENT ? before.absentSinceTime : undefined;
    const now = timestampFromMs(this.#settings.now());
    if (finding !== ReconciliationFinding.ABSENT) entry.looksAfter = this.#settings.now();
    const absentSince = stillAbsent ?? (counts ? timestampFromMs(lookTime(request.look)) : undefined);
    authorization.reconciliation = create(ReconciliationSchema, {
      finding,
      lastTime: now,
      count: (before?.count ?? 0) + 1,
      note: request.note,
      ...(finding === ReconciliationFinding.ABSENT && absentSince !== undefined
        ? { absentSinceTime: absentSince }
        : {}),
    });
    if (finding === ReconciliationFinding.OPEN) {
      authorization.vendorReference = request.vendorReference;
      authorization.vendorState = request.vendorState;
      authorization.state = AuthorizationState.HELD;
    }
    return authorization;
  }

  increaseHold(request: IncreaseHoldRequest) {
    const { authorization, attemptId } = this.#find(request.authorization);
    if (!isOpen(authorization)) throw precondition("STATE_NOT_ALLOWED");
    const named = request.attemptId;
    if (named !== attemptId && (named !== "" || authorization.vendorReference === "")) {
      throw precondition("ATTEMPT_SUPERSEDED");
    }
    if (this.#isStale(request)) return { ...FENCED, authorization };
    const { amount } = request;
    const { heldAmount } = authorization;
    if (amount === undefined || amount.currency !== heldAmount?.currency) {
      throw precondition("SPEND_MISMATCH", { fields: "amount.currency" });
    }
    if (Number(amount.amount) > this.#settings.capMajor()) {
      return { disposition: Disposition.DENIED, authorization, denial: this.#denial(amount) };
    }
    if (Number(amount.amount) > Number(heldAmount.amount)) authorization.heldAmount = amount;
    return { disposition: Disposition.GRANTED, authorization };
  }

  get({ lookup }: GetAuthorizationRequest): Authorization {
    if (lookup.case === "name") return this.#find(lookup.value).authorization;
    const wanted = lookup.value;
    const found = this.all().find(
      ({ vendorReference, vendorAccount }) =>
        vendorReference === wanted?.vendorReference && vendorAccount === wanted.vendorAccount,
    );
    if (found === undefined) throw failure(Code.NotFound, "NOT_FOUND");
    return found;
  }

  #isStale({ leaseFence }: { readonly leaseFence?: LeaseFence | undefined }): boolean {
    return leaseFence !== undefined && !this.#settings.holdsLease(leaseFence);
  }

  #find(name: string): Entry {
    for (const entries of this.#generations.values()) {
      const entry = entries.find(({ authorization }) => authorization.name === name);
      if (entry !== undefined) return entry;
    }
    throw failure(Code.NotFound, "NOT_FOUND");
  }

  #denial(amount: { currency: string; amount: string }) {
    const capMajor = this.#settings.capMajor();
    const money = (value: number) => ({ currency: amount.currency, amount: String(value) });
    return {
      rule: DenialRule.CAP_HEADROOM,
      message: "The cap has too little headroom.",
      cap: "caps/daily",
      limit: money(capMajor),
      committed: money(0),
      held: money(0),
      headroom: money(capMajor),
      shortBy: money(Number(amount.amount) - capMajor),
      window: "2026-11-30",
      windowEndTime: timestampFromMs(1_796_083_200_000),
    };
  }

  #grant(request: AuthorizeSpendRequest, entry: Entry, mayHaveBeenSent: boolean): AuthorizeAnswer {
    const { authorization } = entry;
    authorization.state = AuthorizationState.HELD;
    authorization.vendorState = "";
    entry.attemptId = request.attemptId;
    if (mayHaveBeenSent) entry.toldSent = true;
    const holdMs = request.holdDuration === undefined ? 600_000 : durationMs(request.holdDuration);
    authorization.holdExpireTime = timestampFromMs(this.#settings.now() + holdMs);
    return { disposition: Disposition.GRANTED, authorization, mayHaveBeenSent };
  }

  #repeat(request: AuthorizeSpendRequest, entry: Entry): AuthorizeAnswer | undefined {
    const { authorization } = entry;
    const { generation } = authorization;
    const differs = authorization.spend?.amount?.amount !== request.spend?.amount?.amount;
    if (authorization.state === AuthorizationState.COMMITTED) {
      const differingFields = differs ? ["spend.amount.amount"] : [];
      return { disposition: Disposition.ALREADY_COMMITTED, authorization, differingFields };
    }
    if (authorization.state === AuthorizationState.VOIDED) {
      if (RESTARTS.has(authorization.voidEvidence) || request.retryAfterGeneration === generation) return undefined;
      return { disposition: Disposition.ALREADY_FAILED, authorization, failedGeneration: generation };
    }
    if (differs) throw precondition("SPEND_MISMATCH", { fields: "spend.amount.amount" });
    const { vendorReference, vendorState } = authorization;
    const known = vendorState !== "" || authorization.state === AuthorizationState.IN_DOUBT;
    if (known && vendorReference !== "" && request.continueVendorReference === vendorReference) {
      return this.#grant(request, entry, true);
    }
    const expires = authorization.holdExpireTime === undefined ? 0 : timestampMs(authorization.holdExpireTime);
    const running = expires > this.#settings.now() || vendorState !== "";
    if (authorization.state === AuthorizationState.HELD && running) {
      if (vendorState === "" && entry.attemptId === request.attemptId) {
        entry.toldSent = true;
        return { disposition: Disposition.GRANTED, authorization, mayHaveBeenSent: true };
      }
      return { disposition: Disposition.IN_PROGRESS, authorization, retryAfter: durationFromMs(10) };
    }
    return this.#takeOver(request, entry);
  }

  #takeOver(request: AuthorizeSpendRequest, entry: Entry): AuthorizeAnswer {
    const { authorization } = entry;
    if (authorization.settlement === Settlement.TWO_STEP) return this.#grant(request, entry, true);
    const grantedAt = authorization.grantTime === undefined ? 0 : timestampMs(authorization.grantTime);
    const safe =
      authorization.settlement === Settlement.RESEND_SAFE &&
      authorization.vendorReference === "" &&
      this.#settings.now() - grantedAt < entry.resendSafeForMs;
    if (!safe) return { disposition: Disposition.IN_DOUBT, authorization };
    const differingFields = [
      ...(entry.fingerprint === request.bodyFingerprint ? [] : ["body_fingerprint"]),
      ...(entry.credential === request.credentialFingerprint ? [] : ["credential_fingerprint"]),
    ];
    if (differingFields.length > 0) return { disposition: Disposition.IN_DOUBT, authorization, differingFields };
    return this.#grant(request, entry, true);
  }
}
