import { attempt, endpoint, otherSecret, secret, type Things } from "./world.ts";

type Json = { readonly [key: string]: unknown };

const usd = { currency: "usd", amount: "10" };
const fence = { lease: "nightly", billing_period: "2026-11", holder_id: "holder" };
const soon = "2099-01-01T00:00:00Z";

function asks(more: Json = {}): Json {
  const spend = { customer_id: `cust_${attempt()}`, billing_period: "2026-11", purpose: "sub", amount: usd };
  return { spend, vendor: "stripe", endpoint, attempt_id: attempt(), ...more };
}

const look = { token: Buffer.from("look-1").toString("base64url"), vendor_account_id: "acct_1" };

const keyless = "POST /v1/payouts";
const config = "POST /v1/accounts/:id";
const proxy = {
  identities: [{ endpoint, customer: "body.customer", purpose: "fixed:sub" }],
  retry_declined_after: "3600s",
  keyless_endpoints: [keyless],
  api_versions: ["2026-01-28.clover"],
  connected_accounts: ["acct_1"],
  object_access: "OBJECT_ACCESS_ANY",
  unguarded_endpoints: [config],
};

const fixed = { window: "CAP_WINDOW_FIXED", start_time: "2026-01-01T00:00:00Z", end_time: "2099-01-01T00:00:00Z" };
const yearly = { window: "CAP_WINDOW_YEAR", time_zone: "Europe/Berlin", start_hour: 3, anchor_day: 1, anchor_month: 2 };
const scope = { vendor: "stripe", endpoint, customer_id: "c", purpose: "p" };

function cap(more: Json = {}): Json {
  return {
    limit: usd,
    max_per_spend: usd,
    window: "CAP_WINDOW_LIFETIME",
    enforcement: "CAP_ENFORCEMENT_SHADOW",
    ...more,
  };
}

/**
 * Requests that are valid, by RPC. The first is the one to spoil; others are there where the fields of one exclude those
 * of another. Every one is accepted once by the test.
 */
export function validRequests(things: Things): Readonly<Record<string, readonly Json[]>> {
  const { held, doubted, fencingToken } = things;
  const first = { page_size: 2 };
  return {
    AuthorizeSpend: [
      asks({
        settlement: "SETTLEMENT_RESEND_SAFE",
        resend_safe_for: "60s",
        hold_duration: "60s",
        lease_fence: { ...fence, fencing_token: fencingToken },
        direction: "DIRECTION_REFUND",
        refund_of: "ch_1",
      }),
      asks(),
    ],
    BatchAuthorizeSpend: [{ requests: [asks({ lease_fence: { ...fence, fencing_token: fencingToken } })] }],
    CommitSpend: [
      { authorization: held.commit.name, amount: usd, vendor_reference: "pi_a", attempt_id: held.commit.attempt },
    ],
    BatchCommitSpend: [
      {
        requests: [
          { authorization: held.batch.name, amount: usd, vendor_reference: "pi_b", attempt_id: held.batch.attempt },
        ],
      },
    ],
    VoidSpend: [
      { authorization: held.void.name, attempt_id: held.void.attempt, evidence: "VOID_EVIDENCE_NEVER_SENT", look },
    ],
    ReportUnknown: [{ authorization: held.unknown.name, attempt_id: held.unknown.attempt, reason: "timed out" }],
    IncreaseHold: [
      {
        authorization: held.increase.name,
        amount: { ...usd, amount: "20" },
        attempt_id: held.increase.attempt,
        lease_fence: { ...fence, fencing_token: fencingToken },
      },
    ],
    BindVendorReference: [
      {
        authorization: held.bind.name,
        attempt_id: held.bind.attempt,
        vendor_reference: "pi_c",
        vendor_state: "requires_action",
        follow_for: "60s",
      },
    ],
    GetAuthorization: [
      { name: held.commit.name },
      { vendor_reference: { vendor: "stripe", vendor_reference: "pi_first" } },
    ],
    ListUnsettledAuthorizations: [first],
    ReportReconciliation: [
      { authorization: doubted.finding.name, finding: "RECONCILIATION_FINDING_ABSENT", note: "n", look },
    ],
    ListCommittedAuthorizations: [{ ...first, start_time: "2026-01-01T00:00:00Z" }],
    AcquireBillingLease: [{ ...fence, lease: "other", ttl: "60s" }],
    RenewBillingLease: [{ ...fence, fencing_token: fencingToken, ttl: "60s" }],
    ReleaseBillingLease: [{ ...fence, fencing_token: fencingToken, outcome: "LEASE_OUTCOME_INCOMPLETE" }],
    CreateCap: [
      { cap_id: "made", cap: cap({ ...yearly, scope, direction: "DIRECTION_SPEND" }) },
      { cap_id: "made-fixed", cap: cap(fixed) },
      {
        cap_id: "made-count",
        cap: { spend_count_limit: 5, window: "CAP_WINDOW_WEEK", week_start: "DAY_OF_WEEK_SUNDAY" },
      },
    ],
    GetCap: [{ name: "caps/daily", customer_id: "c" }],
    UpdateCap: [
      {
        cap: {
          name: "caps/changed",
          limit: { ...usd, amount: "5000" },
          max_per_spend: usd,
          enforcement: "CAP_ENFORCEMENT_SHADOW",
          scope: {},
        },
        update_mask: "limit,maxPerSpend,enforcement,refundsRestoreHeadroom",
      },
    ],
    ListCaps: [first],
    ArchiveCap: [{ name: "caps/archived" }],
    CreateVaultKey: [
      {
        vault_key_id: "made",
        vault_key: {
          vendor: "stripe",
          allowed_endpoints: [endpoint, keyless, config],
          proxy,
          billing_periods: ["2026-11"],
          purposes: ["sub"],
          customers: ["c"],
          max_per_spend: usd,
          expire_time: soon,
          attached_caps: ["caps/attachable"],
          labels: { team: "billing" },
        },
        caps: [{ cap_id: "made-with-key", cap: cap({ scope: { customer_id: "c" } }) }],
      },
    ],
    GetVaultKey: [{ name: "vaultKeys/main" }],
    ListVaultKeys: [{ ...first, labels: { team: "billing" } }],
    RevokeVaultKey: [{ name: "vaultKeys/revoked" }],
    ResolveAuthorization: [
      { name: doubted.committed.name, committed: { amount: usd, vendor_reference: "pi_d" }, reason: "it was seen" },
      { name: doubted.voided.name, voided: {}, reason: "it was not there" },
    ],
    ListInDoubtAuthorizations: [first],
    ListContradictions: [first],
    CloseContradiction: [{ name: things.contradiction, reason: "given back" }],
    ListAuthorizations: [{ ...first, states: ["AUTHORIZATION_STATE_HELD"] }],
    CreateVendorCredential: [{ vendor_credential_id: "other", vendor: "stripe", secret: otherSecret }],
    RotateVendorCredential: [{ name: "vendorCredentials/stripe", secret }],
    TestVendorCredential: [{ name: "vendorCredentials/stripe" }],
    GetVendorCredential: [{ name: "vendorCredentials/stripe" }],
    ListVendorCredentials: [first],
    DeleteVendorCredential: [{ name: "vendorCredentials/stripe" }],
    StartReconciliationRun: [{ vendor: "stripe", start_time: "2026-11-01T00:00:00Z" }],
    GetReconciliationRun: [{ name: things.run }],
    ListReconciliationRuns: [first],
    ListReconciliationDifferences: [{ parent: things.run, ...first }],
    UpdateVaultKey: [
      {
        vault_key: {
          name: "vaultKeys/updated",
          allowed_endpoints: [endpoint, keyless, config],
          proxy,
          billing_periods: ["2026-11"],
          purposes: ["sub"],
          customers: ["c"],
          max_per_spend: usd,
          expire_time: soon,
          attached_caps: ["caps/attachable"],
          labels: { team: "billing" },
        },
        update_mask:
          "allowedEndpoints,billingPeriods,purposes,customers,maxPerSpend,expireTime,attachedCaps,labels,proxy",
      },
    ],
    RotateVaultKey: [{ name: "vaultKeys/rotated", overlap: "60s" }],
    SuspendVaultKey: [{ name: "vaultKeys/suspended" }],
    ResumeVaultKey: [{ name: "vaultKeys/resumed" }],
    CreateBillingPeriodKey: [
      {
        vault_key_id: "period",
        billing_period: "2026-12",
        vendor: "stripe",
        allowed_endpoints: [endpoint],
        expected_total: usd,
        margin: "0.1",
        expire_time: soon,
        purposes: ["sub"],
        max_per_spend: usd,
      },
    ],
    EngageKillSwitch: [
      { target: { customer_id: "nobody" }, reason: "for a reason" },
      { target: { vendor: "nobody" }, reason: "for a reason" },
    ],
    ReleaseKillSwitch: [{ name: things.killSwitch, reason: "it is over" }],
    ListKillSwitches: [first],
    CreateOperator: [{ operator_id: "made", role: "OPERATOR_ROLE_AUDITOR" }],
    RotateOperator: [{ name: "operators/rotated" }],
    RevokeOperator: [{ name: "operators/revoked", reason: "left" }],
    ListOperators: [first],
    ListBillingLeases: [first],
    ReopenBillingLease: [{ lease: "done", billing_period: "2026-11", reason: "late customers" }],
    ListAuditEvents: [first],
    WatchAuditEvents: [{}],
    GetSpendStory: [
      { authorization: held.commit.name, ...first },
      { spend: { customer_id: things.customer, billing_period: "2026-11", purpose: "sub" } },
    ],
  };
}
