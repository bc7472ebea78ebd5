/**
 * What a history can do, and what a system answers: plain data, so that one history runs on the model, on a
 * broken model and on a server. Money is in micros of the named currency, times are milliseconds since 1970.
 */
export type Settlement = "TWO_STEP" | "RESEND_SAFE" | "SEND_ONCE";
export type State = "HELD" | "COMMITTED" | "VOIDED" | "IN_DOUBT";
export type Evidence =
  | "NEVER_SENT"
  | "NOT_EXECUTED"
  | "VENDOR_REFUSED"
  | "TOMBSTONE"
  | "ABSENT_AFTER_QUARANTINE"
  | "OPERATOR"
  | "NEVER_BOUND";

export type Finding = "OPEN" | "ABSENT" | "UNREADABLE" | "UNCLEAR";

export interface Identity {
  readonly customer: string;
  readonly period: string;
  readonly purpose: string;
}

export interface Fence {
  readonly lease: string;
  readonly period: string;
  readonly holder: string;
  readonly token: bigint;
}

export type Direction = "SPEND" | "REFUND";

export interface Authorize extends Identity {
  readonly op: "authorize";
  readonly key: string;
  readonly currency: string;
  readonly amount: bigint;
  readonly vendor: string;
  readonly vendorAccount: string;
  readonly endpoint: string;
  readonly direction: Direction;
  /** The charge that a refund gives back of, or empty. */
  readonly refundOf: string;
  readonly attempt: string;
  readonly settlement: Settlement;
  /** Null unless RESEND_SAFE. */
  readonly resendSafeForMs: number | null;
  readonly holdMs: number;
  readonly retryAfterGeneration: number;
  /** The bound object to go on with, or empty. */
  readonly continueReference: string;
  readonly fence: Fence | null;
  /** Of the body: empty or 64 hex digits. */
  readonly fingerprint: string;
  /** Empty or 32 hex digits. */
  readonly credential: string;
  readonly sameBodyRequired: boolean;
  readonly dryRun: boolean;
}

/** One call with several requests of one vault key. */
export interface AuthorizeBatch {
  readonly op: "authorizeBatch";
  readonly key: string;
  readonly requests: readonly Authorize[];
}

/** Names one generation of one spend. `key` is the calling vault key, or null for the operator. */
interface Settling {
  readonly key: string | null;
  readonly spend: Identity;
  readonly generation: number;
}

export interface Commit extends Settling {
  readonly op: "commit";
  readonly currency: string;
  readonly amount: bigint;
  readonly reference: string;
}

/** One call with several commits of one caller. */
export interface CommitBatch {
  readonly op: "commitBatch";
  readonly key: string | null;
  readonly requests: readonly Commit[];
}

/** A look at the vendor: when what is looked for was listed, and the account, or an empty one that is not known. */
export interface Look {
  readonly at: number;
  readonly account: string;
}

export interface Void extends Settling {
  readonly op: "void";
  readonly attempt: string;
  readonly evidence: Evidence;
  readonly vendorStatus: number;
  readonly replayed: boolean;
  readonly reference: string;
  /** With ABSENT_AFTER_QUARANTINE. */
  readonly look?: Look;
}

export interface ReportUnknown extends Settling {
  readonly op: "reportUnknown";
  readonly key: string;
  readonly attempt: string;
}

/** What asking the vendor has found. */
export interface Report extends Settling {
  readonly op: "report";
  readonly key: string;
  readonly finding: Finding;
  /** Of an OPEN object with its state; both empty otherwise. */
  readonly reference: string;
  readonly vendorState: string;
  readonly look: Look;
}

/** An operator's word about the vendor. */
export interface Resolve extends Settling {
  readonly op: "resolve";
  readonly key: null;
  /** What was charged, or that nothing was. */
  readonly committed: { readonly currency: string; readonly amount: bigint } | null;
  /** Of the charge, or of the object that was seen ended, or empty. */
  readonly reference: string;
}

export interface Bind extends Settling {
  readonly op: "bind";
  readonly key: string;
  readonly attempt: string;
  readonly reference: string;
  readonly vendorState: string;
  /** Null: the default. */
  readonly followForMs: number | null;
}

/** Raises what is held to `amount`. */
export interface Increase extends Settling {
  readonly op: "increase";
  readonly key: string;
  /** Empty where the bound object is changed without an attempt. */
  readonly attempt: string;
  readonly fence: Fence | null;
  readonly currency: string;
  readonly amount: bigint;
}

export interface AcquireLease {
  readonly op: "acquireLease";
  readonly key: string;
  readonly lease: string;
  readonly period: string;
  readonly holder: string;
  readonly ttlMs: number;
}

export interface RenewLease extends Fence {
  readonly op: "renewLease";
  readonly key: string;
  readonly ttlMs: number;
}

export interface ReleaseLease extends Fence {
  readonly op: "releaseLease";
  readonly key: string;
  readonly completed: boolean;
}

export type Window = "LIFETIME" | "DAY" | "WEEK" | "MONTH" | "YEAR" | "BILLING_PERIOD" | "FIXED";
export type Enforcement = "ENFORCE" | "SHADOW";

/** When the windows of a calendar begin; those that a window does not use do not count. */
export interface Calendar {
  readonly zone: string;
  readonly startHour: number;
  /** 1 is Monday. */
  readonly weekStart: number;
  readonly anchorDay: number;
  readonly anchorMonth: number;
}

export interface CreateCap {
  readonly op: "createCap";
  readonly cap: string;
  /** Null counts spends; the limit is then a number of them. */
  readonly currency: string | null;
  readonly limit: bigint;
  readonly maxPerSpend: bigint | null;
  readonly enforcement: Enforcement;
  readonly window: Window;
  readonly calendar: Calendar;
  /** Null unless FIXED. */
  readonly fixed: { readonly start: number; readonly end: number } | null;
  readonly attachedOnly: boolean;
  readonly perCustomer: boolean;
  readonly direction: Direction;
  readonly restores: boolean;
  readonly scope: {
    readonly key?: string;
    readonly vendor?: string;
    readonly endpoint?: string;
    readonly customer?: string;
    readonly purpose?: string;
  };
}

export interface UpdateCap {
  readonly op: "updateCap";
  readonly cap: string;
  /** Null leaves it. */
  readonly limit: bigint | null;
  readonly restores: boolean | null;
  readonly enforcement: Enforcement | null;
}

export interface ArchiveCap {
  readonly op: "archiveCap";
  readonly cap: string;
}

export interface CreateVaultKey {
  readonly op: "createVaultKey";
  readonly key: string;
  readonly vendor: string;
  readonly endpoints: readonly string[];
  /** Empty lists pin nothing. */
  readonly periods: readonly string[];
  readonly purposes: readonly string[];
  readonly customers: readonly string[];
  readonly maxPerSpend: { readonly currency: string; readonly amount: bigint } | null;
  readonly expireTime: number | null;
  readonly attachedCaps: readonly string[];
}

export interface SuspendVaultKey {
  readonly op: "suspendVaultKey" | "resumeVaultKey";
  readonly key: string;
}

export interface RevokeVaultKey {
  readonly op: "revokeVaultKey";
  readonly key: string;
}

/** Changes these two fields of a key's policy and nothing else. */
export interface UpdateVaultKey {
  readonly op: "updateVaultKey";
  readonly key: string;
  readonly purposes: readonly string[];
  readonly maxPerSpend: { readonly currency: string; readonly amount: bigint } | null;
}

/** A new secret; the system goes on with it. */
export interface RotateVaultKey {
  readonly op: "rotateVaultKey";
  readonly key: string;
}

/** What a kill switch stops; the workspace has no name. */
export interface SwitchTarget {
  readonly kind: "WORKSPACE" | "VENDOR" | "CUSTOMER";
  readonly name: string;
}

export interface EngageSwitch {
  readonly op: "engageSwitch";
  readonly target: SwitchTarget;
}

/** Releases the switch that was engaged last on a target. */
export interface ReleaseSwitch {
  readonly op: "releaseSwitch";
  readonly target: SwitchTarget;
}

export interface SetClock {
  readonly op: "setClock";
  readonly now: number;
}

/** Lets the server's own expiry of holds run once. */
export interface Sweep {
  readonly op: "sweep";
}

export type Command =
  | Authorize
  | AuthorizeBatch
  | Commit
  | CommitBatch
  | Void
  | ReportUnknown
  | Bind
  | Report
  | Resolve
  | Increase
  | AcquireLease
  | RenewLease
  | ReleaseLease
  | CreateCap
  | UpdateCap
  | ArchiveCap
  | CreateVaultKey
  | SuspendVaultKey
  | RevokeVaultKey
  | UpdateVaultKey
  | RotateVaultKey
  | EngageSwitch
  | ReleaseSwitch
  | SetClock
  | Sweep;

export type Figure = string | number | bigint | boolean | null;

/**
 * A flat answer. In an expected answer a missing figure is not compared and null must be absent. `error` is a
 * name of ErrorReason, or null where the call was answered.
 */
export type Answer = Readonly<Record<string, Figure>>;

/** A command has one answer, a batch one per request. */
export type Answers = readonly Answer[];

/** Whose counter: one cap, one window, one customer ('' unless per customer). */
export interface CounterName {
  readonly cap: string;
  readonly window: string;
  readonly customer: string;
}

/** Anything that a history can be run on. */
export interface System {
  apply(command: Command): Answers | Promise<Answers>;
  /** The figures of one counter: committed, held, headroom. */
  usage(counter: CounterName): Answer | Promise<Answer>;
  /** The figures of one generation, read by the operator. */
  authorization(spend: Identity, generation: number): Answer | Promise<Answer>;
}
