import fc from "fast-check";
import type {
  CreateCap,
  CreateVaultKey,
  Direction,
  Enforcement,
  Evidence,
  Finding,
  Settlement,
  UpdateVaultKey,
} from "./command.ts";
import { capRule } from "./history-cap.ts";
import { mostly, often, small } from "./history-chance.ts";
import { capIds, customers, dollar, endpoints, keyIds, periods } from "./history-names.ts";

/** Days around which zones do something odd, and one on which none does. */
const starts = [
  "2026-11-30T22:00:00Z",
  "2026-03-08T02:00:00Z",
  "2018-11-04T00:30:00Z",
  "2011-12-30T08:00:00Z",
  "2026-11-01T02:00:00Z",
].map((text) => Date.parse(text));

/**
 * The steps of a random history are symbolic ("the holder's attempt", "one micro more than the headroom"): they
 * are resolved while the history runs, so that they stay meaningful when a failing history is made smaller.
 */
export type Amount =
  | { readonly kind: "fixed"; readonly amount: bigint }
  | { readonly kind: "edge"; readonly cap: number; readonly of: "headroom" | "max"; readonly delta: number };

export interface AuthorizeStep {
  readonly kind: "authorize";
  readonly key: number;
  readonly customer: number;
  readonly period: number;
  readonly purpose: number;
  /** Repeats the spend's last generation instead of using the fields below. */
  readonly like: boolean;
  readonly vary:
    | ""
    | "amount"
    | "currency"
    | "vendor"
    | "account"
    | "endpoint"
    | "settlement"
    | "resend"
    | "direction"
    | "key";
  readonly amount: Amount;
  readonly direction: Direction;
  /** The charge of a committed generation, the newest being 0, of nothing, or of nothing known. */
  readonly refundOf: number | "none" | "unknown";
  readonly settlement: Settlement;
  readonly resendSafeForMs: number;
  readonly holdMs: number;
  /** The holder's attempt, or one of a few. */
  readonly attempt: "holder" | number;
  readonly retry: "none" | "last" | "wrong";
  readonly continues: "none" | "bound" | "other";
  readonly fence: "none" | "current" | "stale" | "other";
  readonly fingerprint: number;
  readonly credential: number;
  readonly sameBodyRequired: boolean;
  readonly dryRun: boolean;
}

export type Action =
  | { readonly kind: "commit"; readonly amount: CommittedAmount; readonly reference: Reference }
  | {
      readonly kind: "void";
      readonly evidence: Evidence;
      readonly vendorStatus: number;
      readonly replayed: boolean;
      readonly reference: Reference;
      readonly look: LookStep;
    }
  | { readonly kind: "reportUnknown" }
  | {
      readonly kind: "increase";
      readonly amount: Raise;
      /** Without an attempt, as who changes the bound object. */
      readonly byObject: boolean;
      readonly fence: AuthorizeStep["fence"];
    }
  | {
      readonly kind: "report";
      readonly finding: Finding;
      readonly reference: Reference | "none";
      readonly look: LookStep;
    }
  | { readonly kind: "resolve"; readonly amount: CommittedAmount | "voided"; readonly reference: Reference | "none" }
  | {
      readonly kind: "bind";
      readonly reference: Reference;
      readonly vendorState: string;
      readonly followForMs: number | null;
    };

/** A look that began now, days ago, just before something else was found, as the last one that counts, or will begin. */
export interface LookStep {
  readonly began: "now" | "days" | "before" | "again" | "later";
  readonly account: string;
}

export type CommittedAmount = "held" | "less" | "more" | "zero";

/** The new total: what is held and a bit, what a cap still allows and a bit, or another currency. */
export type Raise = {
  readonly of: "held" | "headroom" | "max" | "currency";
  readonly hold: number;
  readonly delta: bigint;
};

export type Reference = "own" | "second" | "shared" | "bound";

export interface SettleStep {
  readonly kind: "settle";
  readonly pick: number;
  readonly missing: boolean;
  readonly by: "owner" | "other" | "operator";
  readonly attempt: "holder" | number;
  readonly action: Action;
}

export interface LeaseStep {
  readonly kind: "lease";
  readonly lease: number;
  readonly holder: number;
  readonly ttlMs: number;
  readonly action: "acquire" | "renew" | "release" | "complete";
  readonly token: "current" | "stale";
}

export interface ClockStep {
  readonly kind: "clock";
  readonly to: "soon" | "expiry" | "resend" | "follow" | "quarantine" | "absence" | "window" | "lease" | "keyExpiry";
  readonly pick: number;
  readonly delta: number;
}

export type Step =
  | AuthorizeStep
  | { readonly kind: "batch"; readonly items: readonly AuthorizeStep[] }
  | SettleStep
  | { readonly kind: "commitBatch"; readonly items: readonly SettleStep[] }
  | LeaseStep
  | ClockStep
  | { readonly kind: "repeat"; readonly back: number }
  | { readonly kind: "limit"; readonly cap: number; readonly dollars: number }
  | { readonly kind: "restores"; readonly cap: number; readonly restores: boolean }
  | { readonly kind: "enforce"; readonly cap: number; readonly enforcement: Enforcement }
  | { readonly kind: "archive"; readonly cap: number }
  | { readonly kind: "suspend" | "resume"; readonly key: number }
  | { readonly kind: "revoke"; readonly key: number }
  | { readonly kind: "rotate"; readonly key: number }
  | {
      readonly kind: "policy";
      readonly key: number;
      readonly purposes: readonly string[];
      readonly maxPerSpend: UpdateVaultKey["maxPerSpend"];
    }
  | { readonly kind: "engage"; readonly target: number }
  /** Of those that were engaged, the newest being 0. */
  | { readonly kind: "release"; readonly back: number }
  | { readonly kind: "sweep" }
  | { readonly kind: "admin"; readonly command: CreateCap | CreateVaultKey };

export interface History {
  readonly start: number;
  readonly setup: readonly (CreateCap | CreateVaultKey)[];
  readonly steps: readonly Step[];
}

const attempt = fc.oneof({ weight: 4, arbitrary: fc.constant("holder" as const) }, { weight: 1, arbitrary: small(4) });
const settlement = fc.constantFrom<Settlement>("TWO_STEP", "TWO_STEP", "RESEND_SAFE", "SEND_ONCE");
const reference = fc.constantFrom<Reference>("own", "own", "own", "own", "second", "shared", "shared", "bound");

const fixed = fc.constantFrom(1n, dollar / 2n, dollar, dollar, 2n * dollar);
const amount: fc.Arbitrary<Amount> = fc.oneof(
  { weight: 4, arbitrary: fixed.map((value) => ({ kind: "fixed" as const, amount: value })) },
  {
    weight: 1,
    arbitrary: fc.record({
      kind: fc.constant("edge" as const),
      cap: small(capIds.length),
      of: often<"headroom" | "max">("headroom", "max"),
      delta: fc.constantFrom(-1, 0, 1),
    }),
  },
);

const authorizeStep: fc.Arbitrary<AuthorizeStep> = fc.record({
  kind: fc.constant("authorize" as const),
  key: often(0, 1, 2),
  customer: small(customers.length),
  period: often(0, 1),
  purpose: often(0, 1),
  like: fc.integer({ min: 0, max: 9 }).map((n) => n < 7),
  vary: fc.oneof(
    { weight: 12, arbitrary: fc.constant("" as const) },
    {
      weight: 2,
      arbitrary: fc.constantFrom(
        ...([
          "amount",
          "currency",
          "vendor",
          "account",
          "endpoint",
          "settlement",
          "resend",
          "direction",
          "key",
        ] as const),
      ),
    },
  ),
  amount,
  direction: fc.constantFrom<Direction>("SPEND", "SPEND", "SPEND", "REFUND"),
  refundOf: fc.constantFrom<AuthorizeStep["refundOf"]>(0, 0, 1, 2, "none", "unknown"),
  settlement,
  resendSafeForMs: fc.constantFrom(30_000, 3_600_000, 82_800_000),
  holdMs: fc.constantFrom(5_000, 60_000, 600_000),
  attempt,
  retry: often<AuthorizeStep["retry"]>("none", "last", "wrong"),
  continues: fc.constantFrom<AuthorizeStep["continues"]>("none", "none", "none", "bound", "bound", "other"),
  fence: often<AuthorizeStep["fence"]>("none", "current", "stale", "other"),
  fingerprint: small(3),
  dryRun: often(false, true).chain((dry) => (dry ? fc.boolean() : fc.constant(false))),
  credential: small(2),
  sameBodyRequired: often(false, true),
});

const look: fc.Arbitrary<LookStep> = fc.record({
  began: often<LookStep["began"]>("now", "days", "before", "again", "later"),
  account: often("acct_1", "", "acct_2"),
});

const commitAction = fc.record({
  kind: fc.constant("commit" as const),
  amount: often<"held" | "less" | "more" | "zero">("held", "less", "more", "zero"),
  reference,
});

const action: fc.Arbitrary<Action> = fc.oneof(
  { weight: 4, arbitrary: commitAction },
  {
    weight: 3,
    arbitrary: fc.record({
      kind: fc.constant("void" as const),
      evidence: fc.constantFrom<Evidence>(
        ...(["NEVER_SENT", "VENDOR_REFUSED", "VENDOR_REFUSED", "TOMBSTONE", "TOMBSTONE"] as const),
        ...([
          "NOT_EXECUTED",
          "NOT_EXECUTED",
          "NOT_EXECUTED",
          "ABSENT_AFTER_QUARANTINE",
          "OPERATOR",
          "NEVER_BOUND",
        ] as const),
      ),
      vendorStatus: fc.constantFrom(400, 402, 429, 429, 500),
      replayed: fc.boolean(),
      reference: fc.constantFrom<Reference>("bound", "own", "second"),
      look,
    }),
  },
  { weight: 2, arbitrary: fc.constant({ kind: "reportUnknown" as const }) },
  {
    weight: 1,
    arbitrary: fc.record({
      kind: fc.constant("report" as const),
      finding: fc.constantFrom<Finding>("OPEN", "OPEN", "ABSENT", "ABSENT", "UNREADABLE", "UNCLEAR"),
      reference: fc.constantFrom<Reference | "none">("own", "bound", "second", "shared", "none"),
      look,
    }),
  },
  {
    weight: 1,
    arbitrary: fc.record({
      kind: fc.constant("resolve" as const),
      amount: fc.constantFrom<CommittedAmount | "voided">("held", "less", "more", "zero", "voided", "voided"),
      reference: fc.constantFrom<Reference | "none">("own", "own", "bound", "shared", "none"),
    }),
  },
  {
    weight: 3,
    arbitrary: fc.record({
      kind: fc.constant("increase" as const),
      amount: fc.record({
        of: fc.constantFrom<Raise["of"]>("held", "held", "headroom", "headroom", "max", "currency"),
        hold: small(3),
        delta: fc.constantFrom(-1n, 0n, 1n, dollar),
      }),
      byObject: mostly(false, true),
      fence: often<AuthorizeStep["fence"]>("none", "current", "stale", "other"),
    }),
  },
  {
    weight: 4,
    arbitrary: fc.record({
      kind: fc.constant("bind" as const),
      reference: fc.constantFrom<Reference>("own", "own", "second", "bound", "shared", "shared", "shared"),
      vendorState: fc.constantFrom("", "", "requires_action"),
      followForMs: fc.constantFrom(600_000, 3_600_000, null),
    }),
  },
);

const settleStep = settleWith(action);

function settleWith(what: fc.Arbitrary<Action>): fc.Arbitrary<SettleStep> {
  return fc.record({
    kind: fc.constant("settle" as const),
    pick: often(0, 1, 2, 5),
    missing: mostly(false, true),
    by: fc.oneof(
      { weight: 12, arbitrary: fc.constant("owner" as const) },
      { weight: 1, arbitrary: fc.constant("other" as const) },
      { weight: 1, arbitrary: fc.constant("operator" as const) },
    ),
    attempt,
    action: what,
  });
}

const leaseStep: fc.Arbitrary<LeaseStep> = fc.record({
  kind: fc.constant("lease" as const),
  lease: often(0, 1),
  holder: small(2),
  ttlMs: fc.constantFrom(1_000, 60_000, 3_600_000),
  action: fc.constantFrom<LeaseStep["action"]>(
    ...(["acquire", "acquire", "acquire", "acquire", "renew", "renew", "release", "complete"] as const),
  ),
  token: often<LeaseStep["token"]>("current", "stale"),
});

const clockStep: fc.Arbitrary<ClockStep> = fc.record({
  kind: fc.constant("clock" as const),
  to: fc.constantFrom<ClockStep["to"]>(
    ...(["soon", "expiry", "expiry", "resend", "follow", "absence", "window", "window", "lease", "keyExpiry"] as const),
  ),
  pick: small(6),
  delta: fc.constantFrom(-1, 0, 1),
});

/** Those of caps that are not made to be attached are left out when the history runs. */
const attached = fc.oneof(
  { weight: 2, arbitrary: fc.constant<readonly string[]>([...capIds]) },
  { weight: 1, arbitrary: fc.constant<readonly string[]>([]) },
);

const keyRule = (key: fc.Arbitrary<string>): fc.Arbitrary<CreateVaultKey> =>
  fc.record({
    op: fc.constant("createVaultKey" as const),
    key,
    vendor: mostly("stripe", "twilio"),
    endpoints: mostly<readonly string[]>(
      [endpoints[0], "POST /v1/payment_intents/:id/confirm"],
      [endpoints[0]],
      ["POST /v1/charges/:id"],
    ),
    periods: mostly<readonly string[]>([...periods], [], ["2026-11"]),
    purposes: mostly<readonly string[]>([], ["sub"]),
    customers: mostly<readonly string[]>([], ["c1", "c2"]),
    maxPerSpend: mostly<CreateVaultKey["maxPerSpend"]>(
      null,
      { currency: "usd", amount: 3n * dollar },
      { currency: "eur", amount: 3n * dollar },
    ),
    expireTime: mostly<number | null>(null, Date.parse("2026-12-01T12:00:00Z")),
    attachedCaps: attached,
  });

const byOwner = (what: Action): SettleStep => ({
  kind: "settle",
  pick: 0,
  missing: false,
  by: "owner",
  attempt: "holder",
  action: what,
});

const absent = (seen: LookStep): Action => ({ kind: "report", finding: "ABSENT", reference: "none", look: seen });
const voidAbsent = (seen: LookStep): Action => ({
  kind: "void",
  evidence: "ABSENT_AFTER_QUARANTINE",
  vendorStatus: 0,
  replayed: false,
  reference: "own",
  look: seen,
});

/** What has to come together before absence proves anything, with or without what spoils it. */
const absence: fc.Arbitrary<Step[]> = fc
  .record({
    fresh: fc.option(authorizeStep, { nil: undefined }),
    sent: fc.constantFrom<Step>(byOwner({ kind: "reportUnknown" }), { kind: "clock", to: "expiry", pick: 0, delta: 0 }),
    between: fc.option(fc.oneof(settleStep, authorizeStep), { nil: undefined }),
    early: fc.boolean(),
    quarantine: fc.constantFrom(-1, 0, 1),
    wait: fc.constantFrom(-1, 0, 1),
    first: look,
    second: look,
  })
  .map(({ fresh, sent, between, early, quarantine, wait, first, second }) => {
    const over: Step = { kind: "clock", to: "quarantine", pick: 0, delta: quarantine };
    const seen = byOwner(absent(first));
    const steps: (Step | undefined)[] = [
      fresh,
      sent,
      ...(early ? [seen, between, over] : [over, seen, between]),
      { kind: "clock", to: "absence", pick: 0, delta: wait },
      byOwner(voidAbsent(second)),
    ];
    return steps.filter((one) => one !== undefined);
  });

const step: fc.Arbitrary<Step> = fc.oneof(
  { weight: 40, arbitrary: authorizeStep },
  {
    weight: 5,
    arbitrary: fc.record({
      kind: fc.constant("batch" as const),
      items: fc.array(authorizeStep, { minLength: 2, maxLength: 6 }),
    }),
  },
  { weight: 30, arbitrary: settleStep },
  {
    weight: 3,
    arbitrary: fc.record({
      kind: fc.constant("commitBatch" as const),
      items: fc.array(settleWith(commitAction), { minLength: 2, maxLength: 5 }),
    }),
  },
  { weight: 8, arbitrary: leaseStep },
  { weight: 12, arbitrary: clockStep },
  { weight: 12, arbitrary: fc.record({ kind: fc.constant("repeat" as const), back: small(8) }) },
  {
    weight: 3,
    arbitrary: fc.record({
      kind: fc.constant("limit" as const),
      cap: small(capIds.length),
      dollars: fc.constantFrom(0, 4, 8, 20, 50),
    }),
  },
  {
    weight: 2,
    arbitrary: fc.record({ kind: fc.constant("restores" as const), cap: small(capIds.length), restores: fc.boolean() }),
  },
  {
    weight: 2,
    arbitrary: fc.record({
      kind: fc.constant("enforce" as const),
      cap: small(capIds.length),
      enforcement: fc.constantFrom<Enforcement>("ENFORCE", "SHADOW"),
    }),
  },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant("archive" as const), cap: small(capIds.length) }) },
  {
    weight: 2,
    arbitrary: fc.record({
      kind: fc.constantFrom("suspend" as const, "resume" as const, "resume" as const),
      key: small(keyIds.length),
    }),
  },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant("revoke" as const), key: small(keyIds.length) }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant("rotate" as const), key: small(keyIds.length) }) },
  {
    weight: 2,
    arbitrary: fc.record({
      kind: fc.constant("policy" as const),
      key: small(keyIds.length),
      purposes: fc.constantFrom<readonly string[]>([], [], ["sub"]),
      maxPerSpend: fc.constantFrom<UpdateVaultKey["maxPerSpend"]>(
        null,
        null,
        { currency: "usd", amount: dollar },
        { currency: "eur", amount: dollar },
      ),
    }),
  },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant("engage" as const), target: small(4) }) },
  { weight: 3, arbitrary: fc.record({ kind: fc.constant("release" as const), back: often(0, 1, 2) }) },
  { weight: 5, arbitrary: fc.constant({ kind: "sweep" as const }) },
  {
    weight: 2,
    arbitrary: fc
      .oneof(capRule(fc.constantFrom(...capIds)), keyRule(fc.constant("k2")))
      .map((command) => ({ kind: "admin" as const, command })),
  },
);

/** Random histories of up to `steps` steps, with two vault keys and two or three caps from the beginning. */
export function histories(steps: number): fc.Arbitrary<History> {
  return fc.record({
    start: fc.constantFrom(...starts),
    setup: fc
      .tuple(
        keyRule(fc.constant("k0")),
        keyRule(fc.constant("k1")),
        fc.uniqueArray(capRule(fc.constantFrom(...capIds)), {
          minLength: 1,
          maxLength: 3,
          selector: (rule) => rule.cap,
        }),
      )
      .map(([k0, k1, caps]) => [...caps, k0, k1]),
    steps: fc
      .array(fc.oneof({ weight: 80, arbitrary: step.map((one) => [one]) }, { weight: 1, arbitrary: absence }), {
        minLength: 1,
        maxLength: steps,
        size: "max",
      })
      .map((parts) => parts.flat()),
  });
}
