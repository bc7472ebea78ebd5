-- Every table begins its primary key with workspace_id, so that all of it can be distributed by workspace.
-- No triggers, sequences, enum types or advisory locks: decisions are made from returned rows.

-- The one source of time. A test or demo database may replace it; the server refuses a replaced one elsewhere.
create function holdfast.clock() returns timestamptz
language sql volatile parallel safe
as $$ select clock_timestamp() $$;

-- policy_version grows with every change that an authorization must see. The row is share-locked by every
-- granting transaction, so a change returns only after each grant that saw the old policy has ended.
create table holdfast.workspaces (
  workspace_id text not null,
  policy_version bigint not null default 1,
  create_time timestamptz not null,
  constraint workspaces_pkey primary key (workspace_id),
  constraint workspaces_id_check check (workspace_id ~ '^[a-z0-9]{1,32}$')
);

-- Row locks are not fair: while grants that overlap share the workspace row, a change that waits for it would wait
-- for ever. So a change announces itself here first, and grants that begin afterwards queue behind it. The time
-- bounds how long a server that has crashed between the two steps can slow down grants.
create table holdfast.policy_gates (
  workspace_id text not null,
  waiting integer not null,
  closed_until_time timestamptz not null,
  constraint policy_gates_pkey primary key (workspace_id),
  constraint policy_gates_workspace_fkey foreign key (workspace_id) references holdfast.workspaces (workspace_id),
  constraint policy_gates_waiting_check check (waiting >= 0)
);

-- Never deleted: the audit names them.
create table holdfast.operators (
  workspace_id text not null,
  operator_id text not null,
  role text not null,
  secret_sha256 bytea not null,
  -- The secret before the last rotation, which opens until then.
  previous_secret_sha256 bytea,
  previous_secret_expire_time timestamptz,
  request_id text,
  request_sha256 bytea,
  create_time timestamptz not null,
  rotate_time timestamptz,
  revoke_time timestamptz,
  revoke_reason text not null default '',
  constraint operators_pkey primary key (workspace_id, operator_id),
  constraint operators_workspace_fkey foreign key (workspace_id) references holdfast.workspaces (workspace_id),
  constraint operators_id_check check (operator_id ~ '^[a-z0-9]{1,32}$'),
  constraint operators_role_check check (role in ('OPERATOR', 'AUDITOR')),
  constraint operators_secret_check check (
    length(secret_sha256) = 32 and length(previous_secret_sha256) = 32
    and (previous_secret_sha256 is null) = (previous_secret_expire_time is null)
  ),
  constraint operators_request_check check (
    (request_id is null) = (request_sha256 is null) and request_id ~ '^[0-9a-f]{32}$' and length(request_sha256) = 32
  ),
  constraint operators_reason_check check (length(revoke_reason) <= 500)
);

create unique index operators_request_idx on holdfast.operators (workspace_id, request_id)
  where request_id is not null;

-- What was once an operator's secret and was replaced: the settings of a server that starts late do not put it back.
create table holdfast.retired_operator_secrets (
  workspace_id text not null,
  operator_id text not null,
  secret_sha256 bytea not null,
  constraint retired_operator_secrets_pkey primary key (workspace_id, operator_id, secret_sha256),
  constraint retired_operator_secrets_operator_fkey foreign key (workspace_id, operator_id)
    references holdfast.operators (workspace_id, operator_id),
  constraint retired_operator_secrets_secret_check check (length(secret_sha256) = 32)
);

-- A null list pins nothing; an empty allowed_endpoints list denies every endpoint.
create table holdfast.vault_keys (
  workspace_id text not null,
  vault_key_id text not null,
  secret_sha256 bytea not null,
  -- The secret before the last rotation, which opens until then.
  previous_secret_sha256 bytea,
  previous_secret_expire_time timestamptz,
  state text not null default 'ACTIVE',
  vendor text not null,
  allowed_endpoints text[] not null,
  billing_periods text[],
  purposes text[],
  customers text[],
  max_per_spend_micros bigint,
  max_per_spend_currency text,
  expire_time timestamptz,
  -- Ids of caps that count this key's spends beside those whose scope matches.
  attached_caps text[] not null default '{}',
  labels jsonb not null default '{}',
  version bigint not null default 1,
  request_id text,
  request_sha256 bytea,
  create_time timestamptz not null,
  update_time timestamptz not null,
  suspend_time timestamptz,
  revoke_time timestamptz,
  -- Why it is suspended or revoked.
  reason text not null default '',
  constraint vault_keys_pkey primary key (workspace_id, vault_key_id),
  constraint vault_keys_workspace_fkey foreign key (workspace_id) references holdfast.workspaces (workspace_id),
  constraint vault_keys_id_check check (vault_key_id ~ '^[a-z0-9]{1,32}$'),
  constraint vault_keys_secret_check check (
    length(secret_sha256) = 32 and length(previous_secret_sha256) = 32
    and (previous_secret_sha256 is null) = (previous_secret_expire_time is null)
  ),
  constraint vault_keys_state_check check (
    state in ('ACTIVE', 'SUSPENDED', 'REVOKED') and (state = 'SUSPENDED') = (suspend_time is not null)
  ),
  constraint vault_keys_labels_check check (jsonb_typeof(labels) = 'object' and length(labels::text) <= 20000),
  constraint vault_keys_request_check check (
    (request_id is null) = (request_sha256 is null) and request_id ~ '^[0-9a-f]{32}$' and length(request_sha256) = 32
  ),
  constraint vault_keys_reason_check check (length(reason) <= 500),
  constraint vault_keys_vendor_check check (vendor ~ '^[a-z][a-z0-9_]{0,31}$'),
  constraint vault_keys_max_check check (
    (max_per_spend_micros is null) = (max_per_spend_currency is null)
    and (max_per_spend_micros is null or max_per_spend_micros >= 0)
  ),
  constraint vault_keys_lists_check check (
    cardinality(allowed_endpoints) <= 100 and coalesce(cardinality(billing_periods), 0) <= 100
    and coalesce(cardinality(purposes), 0) <= 100 and coalesce(cardinality(customers), 0) <= 1000
    and cardinality(attached_caps) <= 16
  )
);

create unique index vault_keys_request_idx on holdfast.vault_keys (workspace_id, request_id)
  where request_id is not null;

-- What a cap counts, over what time and for whom never changes: its counters would mean something else. A cap counts
-- money of one currency, or, where it has none, spends of any.
create table holdfast.caps (
  workspace_id text not null,
  cap_id text not null,
  currency text,
  limit_micros bigint,
  limit_count bigint,
  max_per_spend_micros bigint,
  enforcement text not null default 'ENFORCE',
  cap_window text not null,
  time_zone text not null,
  -- When calendar windows begin: the hour; the day of a week, 1 for Monday; the day of a month or year; the month of a
  -- year.
  start_hour integer not null default 0,
  week_start integer not null default 1,
  anchor_day integer not null default 1,
  anchor_month integer not null default 1,
  -- Of a FIXED window.
  start_time timestamptz,
  end_time timestamptz,
  scope_vault_key_id text,
  scope_vendor text,
  scope_endpoint text,
  scope_customer_id text,
  scope_purpose text,
  -- Counts only spends of vault keys that name the cap.
  attached_only boolean not null default false,
  per_customer boolean not null,
  direction text not null,
  -- A refund of a charge that this cap counted gives the headroom back.
  refunds_restore_headroom boolean not null,
  version bigint not null default 1,
  request_id text,
  request_sha256 bytea,
  create_time timestamptz not null,
  update_time timestamptz not null,
  archive_time timestamptz,
  archive_reason text not null default '',
  constraint caps_pkey primary key (workspace_id, cap_id),
  constraint caps_workspace_fkey foreign key (workspace_id) references holdfast.workspaces (workspace_id),
  constraint caps_id_check check (cap_id ~ '^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$'),
  constraint caps_currency_check check (currency ~ '^[a-z]{3}$'),
  constraint caps_limit_check check (
    limit_micros between 0 and 1000000000000000000 and limit_count between 0 and 1000000000000
    and (limit_micros is null) = (currency is null) and (limit_count is null) = (currency is not null)
  ),
  constraint caps_max_check check (
    max_per_spend_micros between 0 and 1000000000000000000 and (max_per_spend_micros is null or currency is not null)
  ),
  constraint caps_enforcement_check check (enforcement in ('ENFORCE', 'SHADOW')),
  constraint caps_window_check check (
    cap_window in ('LIFETIME', 'DAY', 'WEEK', 'MONTH', 'YEAR', 'BILLING_PERIOD', 'FIXED')
    and (cap_window = 'FIXED') = (start_time is not null) and (cap_window = 'FIXED') = (end_time is not null)
    and start_time < end_time
  ),
  constraint caps_anchor_check check (
    start_hour between 0 and 23 and week_start between 1 and 7 and anchor_day between 1 and 31
    and anchor_month between 1 and 12
  ),
  constraint caps_direction_check check (
    direction in ('SPEND', 'REFUND')
    and (not refunds_restore_headroom or (direction = 'SPEND' and currency is not null))
  ),
  constraint caps_time_zone_check check (length(time_zone) between 1 and 64),
  constraint caps_request_check check (
    (request_id is null) = (request_sha256 is null) and request_id ~ '^[0-9a-f]{32}$' and length(request_sha256) = 32
  ),
  constraint caps_archive_check check (
    (archive_time is not null or archive_reason = '') and length(archive_reason) <= 500
  )
);

-- Where a grant looks for caps that every spend, its vault key or its customer draws on; those that keys name are found
-- by their ids.
create index caps_matching_idx on holdfast.caps
  (workspace_id, direction, coalesce(scope_vault_key_id, ''), coalesce(scope_customer_id, ''))
  where archive_time is null and not attached_only;

create index caps_attached_idx on holdfast.caps (workspace_id, cap_id) where archive_time is null and attached_only;

create unique index caps_request_idx on holdfast.caps (workspace_id, request_id) where request_id is not null;

-- One row per cap, window and subject (the customer of a per_customer cap, else ''), which never changes: what makes a
-- counter one. Only who inserts it makes the counter.
create table holdfast.counter_keys (
  workspace_id text not null,
  cap_id text not null,
  window_label text not null,
  subject text not null,
  constraint counter_keys_pkey primary key (workspace_id, cap_id, window_label, subject),
  constraint counter_keys_cap_fkey foreign key (workspace_id, cap_id) references holdfast.caps (workspace_id, cap_id),
  constraint counter_keys_label_check check (length(window_label) <= 128),
  constraint counter_keys_subject_check check (length(subject) <= 128)
);

-- One row per key. The row is locked while a grant is decided, and its totals are the only ones: nothing is ever summed up
-- from other rows. One amount fits 64 bits, the sum of ten does not, and a charge that is true must always be counted: so
-- the totals are numeric. Of a cap that counts spends only the counts move, of any other one only the amounts.
--
-- No row is written more often, and while some transaction keeps its snapshot none of its old versions can go. A unique
-- index looks at all of them with each new version, so it is the keys' table that has one. What has no primary key says
-- itself what its rows are known by where changes are replicated.
create table holdfast.counters (
  workspace_id text not null,
  cap_id text not null,
  window_label text not null,
  subject text not null,
  committed_micros numeric(38, 0) not null default 0,
  held_micros numeric(38, 0) not null default 0,
  committed_count bigint not null default 0,
  held_count bigint not null default 0,
  constraint counters_committed_check check (committed_micros >= 0),
  constraint counters_held_check check (held_micros >= 0),
  constraint counters_counts_check check (committed_count >= 0 and held_count >= 0)
) with (fillfactor = 70);

alter table holdfast.counters replica identity full;

create index counters_key_idx on holdfast.counters (workspace_id, cap_id, window_label, subject);

-- One row per generation of a spend, for ever: it is the guard against a second charge. spend_key is the
-- stable key of generation 1, so the primary key is the spend's identity.
-- No foreign key to its workspace, which is never deleted: who grants has locked that row, and does not look at it again
-- for each authorization.
create table holdfast.authorizations (
  workspace_id text not null,
  spend_key text not null,
  generation integer not null,
  customer_id text not null,
  billing_period text not null,
  purpose text not null,
  idempotency_key text not null,
  vault_key_id text not null,
  vendor text not null,
  vendor_account text not null,
  endpoint text not null,
  currency text not null,
  -- What repeats are compared with. What is held may be more: an increase raises it, nothing lowers it.
  amount_micros bigint not null,
  held_micros bigint not null,
  direction text not null,
  refund_of text not null default '',
  settlement text not null,
  resend_safe_for interval,
  state text not null,
  attempt_id text not null,
  -- What the holding attempt was told last; evidence NEVER_SENT needs false.
  told_may_have_been_sent boolean not null,
  -- Of the first send: what is asked of the vendor, and as whom.
  body_fingerprint text not null,
  credential_fingerprint text not null default '',
  grant_time timestamptz not null,
  hold_expire_time timestamptz not null,
  -- The latest that any attempt of this generation was told: until then a request of it may leave.
  latest_hold_expire_time timestamptz not null,
  in_doubt_time timestamptz,
  vendor_reference text,
  bind_time timestamptz,
  vendor_state text not null default '',
  follow_until_time timestamptz,
  committed_micros bigint,
  committed_currency text,
  commit_time timestamptz,
  -- What later refunds gave back, in the committed currency.
  refunded_micros numeric(38, 0) not null default 0,
  void_evidence text,
  void_reason text,
  void_time timestamptz,
  lease text,
  fencing_token bigint,
  trace_id text not null default '',
  -- What asking the vendor has found since the last attempt ended. A time without a finding: when to ask first.
  reconciliation_finding text,
  reconciliation_first_time timestamptz,
  reconciliation_time timestamptz,
  reconciliation_next_time timestamptz,
  reconciliation_count integer not null default 0,
  reconciliation_note text not null default '',
  -- When the first look began that counts: after the last moment at which something could be sent and arrive.
  absent_since_time timestamptz,
  -- A look that began before says nothing about absence: something else was found or told then.
  look_from_time timestamptz,
  -- Four hex digits of the billing period, then those of the stable key: what is billed now lies together in every index,
  -- apart from what has been billed in years, and no new row touches those leaves.
  -- Hex digits. A pattern says the same at five times the cost: for two keys, a fortieth of a grant.
  constraint authorizations_spend_key_check check (
    length(spend_key) = 36 and octet_length(decode(spend_key, 'hex')) = 18 and lower(spend_key) = spend_key
  ),
  constraint authorizations_idempotency_key_check check (
    length(idempotency_key) = 32 and octet_length(decode(idempotency_key, 'hex')) = 16
      and lower(idempotency_key) = idempotency_key
  ),
  constraint authorizations_generation_check check (generation >= 1),
  constraint authorizations_identity_check check (
    length(customer_id) between 1 and 128 and length(billing_period) between 1 and 128
    and length(purpose) between 1 and 128
    and position(':' in customer_id) = 0 and position(':' in billing_period) = 0
  ),
  constraint authorizations_amount_check check (amount_micros between 1 and 1000000000000000000),
  constraint authorizations_held_check check (held_micros between amount_micros and 1000000000000000000),
  constraint authorizations_direction_check check (
    direction in ('SPEND', 'REFUND') and (direction = 'REFUND' or refund_of = '')
  ),
  constraint authorizations_refunded_check check (refunded_micros >= 0 and (refunded_micros = 0 or state = 'COMMITTED')),
  constraint authorizations_settlement_check check (
    settlement in ('TWO_STEP', 'RESEND_SAFE', 'SEND_ONCE')
    and (settlement = 'RESEND_SAFE') = (resend_safe_for is not null)
    and (resend_safe_for is null or resend_safe_for <= interval '23 hours')
  ),
  constraint authorizations_state_check check (
    state in ('HELD', 'COMMITTED', 'VOIDED', 'IN_DOUBT')
    and (state = 'COMMITTED') = (commit_time is not null)
    and (state = 'COMMITTED') = (committed_micros is not null)
    and (state = 'COMMITTED') = (committed_currency is not null)
    and (state = 'VOIDED') = (void_time is not null)
    and (state = 'VOIDED') = (void_evidence is not null)
    and (state <> 'COMMITTED' or vendor_reference is not null)
    and (state = 'IN_DOUBT') = (in_doubt_time is not null)
  ),
  constraint authorizations_latest_hold_check check (latest_hold_expire_time >= hold_expire_time),
  constraint authorizations_reconciliation_check check (
    reconciliation_finding in ('OPEN', 'ABSENT', 'UNREADABLE', 'UNCLEAR')
    and (reconciliation_finding is null) = (reconciliation_count = 0)
    and (reconciliation_finding is null) = (reconciliation_time is null)
    and (reconciliation_finding is null) = (reconciliation_first_time is null)
    and (absent_since_time is null or reconciliation_finding = 'ABSENT')
    and length(reconciliation_note) <= 500
  ),
  constraint authorizations_evidence_check check (
    void_evidence in (
      'NEVER_SENT', 'NOT_EXECUTED', 'VENDOR_REFUSED', 'TOMBSTONE', 'ABSENT_AFTER_QUARANTINE', 'OPERATOR', 'NEVER_BOUND'
    )
  ),
  constraint authorizations_committed_check check (committed_micros >= 0),
  constraint authorizations_lengths_check check (
    length(attempt_id) = 32 and length(vendor) <= 32 and length(vendor_account) <= 128 and length(endpoint) <= 256
    and length(body_fingerprint) <= 64 and length(credential_fingerprint) <= 32 and length(vendor_reference) <= 255 and length(refund_of) <= 255 and length(vendor_state) <= 64
    and length(void_reason) <= 500 and length(lease) <= 128 and length(trace_id) <= 32
  )
) with (fillfactor = 85);

-- The open holds, for the expiry sweep and for the exposure of a revoked key. Settled rows are not in it.
create index authorizations_open_idx on holdfast.authorizations (workspace_id, hold_expire_time)
  where state in ('HELD', 'IN_DOUBT');

-- What the vendor may be asked about. A hold that runs is not in it, so that a grant does not pay for it; one that has
-- run out is found by its time, until the sweep has written it down.
create index authorizations_unsettled_idx
  on holdfast.authorizations (workspace_id, vault_key_id, grant_time, spend_key, generation)
  where state = 'IN_DOUBT' or (state = 'HELD' and vendor_state <> '');

create index authorizations_grant_time_idx
  on holdfast.authorizations (workspace_id, grant_time desc, spend_key, generation);

-- One object of a vendor belongs to one spend that is not settled: its money cannot pay for two. What it has settled is
-- in vendor_charges. A vendor's id names one object, whichever account it was reached through: the account is no part of
-- the claim, for the platform's own may be named by its id or not at all.
create unique index authorizations_bound_idx on holdfast.authorizations (workspace_id, vendor, vendor_reference)
  where state in ('HELD', 'IN_DOUBT') and vendor_reference is not null;

create index authorizations_vendor_reference_idx on holdfast.authorizations (workspace_id, vendor, vendor_reference)
  where vendor_reference is not null;

-- Last: of indexes that look alike to it, as all do of an empty table, the planner takes the newest, and keeps it while
-- the table grows. One of the others would read the whole workspace for one spend.
alter table holdfast.authorizations
  add constraint authorizations_pkey primary key (workspace_id, spend_key, generation);

-- What one authorization takes from one cap, in the window in which it was granted: an amount, which an increase raises,
-- or one place. No foreign key: it is written in one statement with its authorization, which stays for ever, and the check
-- would lock and write that row again.
create table holdfast.holds (
  workspace_id text not null,
  spend_key text not null,
  generation integer not null,
  cap_id text not null,
  window_label text not null,
  subject text not null,
  amount_micros bigint not null,
  spend_count integer not null default 0,
  -- What refunds gave back of what was committed for it.
  returned_micros bigint not null default 0,
  constraint holds_pkey primary key (workspace_id, spend_key, generation, cap_id),
  constraint holds_amount_check check (
    (amount_micros > 0 and spend_count = 0) or (amount_micros = 0 and spend_count = 1)
  ),
  constraint holds_returned_check check (returned_micros >= 0)
);

-- A refund that was committed, against the committed authorization of the charge that it refunds. One refund adjusts
-- one authorization, once; the committed amount of that one never changes.
create table holdfast.adjustments (
  workspace_id text not null,
  refund_spend_key text not null,
  refund_generation integer not null,
  spend_key text not null,
  generation integer not null,
  amount_micros bigint not null,
  currency text not null,
  create_time timestamptz not null,
  constraint adjustments_pkey primary key (workspace_id, refund_spend_key, refund_generation),
  constraint adjustments_refund_fkey foreign key (workspace_id, refund_spend_key, refund_generation)
    references holdfast.authorizations (workspace_id, spend_key, generation),
  constraint adjustments_authorization_fkey foreign key (workspace_id, spend_key, generation)
    references holdfast.authorizations (workspace_id, spend_key, generation),
  constraint adjustments_amount_check check (amount_micros >= 0)
);

create index adjustments_authorization_idx on holdfast.adjustments (workspace_id, spend_key, generation);

-- Which authorization a vendor's charge settles. One charge settles one authorization.
create table holdfast.vendor_charges (
  workspace_id text not null,
  vendor text not null,
  vendor_reference text not null,
  spend_key text not null,
  generation integer not null,
  constraint vendor_charges_pkey primary key (workspace_id, vendor, vendor_reference)
);

-- A second truth: a charge that the state of its authorization does not allow. It is counted, never dropped.
create table holdfast.contradictions (
  workspace_id text not null,
  spend_key text not null,
  generation integer not null,
  vendor text not null,
  vendor_account text not null,
  vendor_reference text not null,
  kind text not null,
  amount_micros bigint not null,
  currency text not null,
  counted_micros bigint not null,
  -- The places that it takes from caps that count spends: one if it is a charge of its own.
  counted_spends integer not null default 0,
  attempt_id text not null,
  create_time timestamptz not null,
  -- The primary key in one name.
  contradiction_id text not null,
  close_time timestamptz,
  close_reason text,
  constraint contradictions_pkey primary key (workspace_id, vendor, vendor_reference, spend_key, generation),
  constraint contradictions_id_check check (contradiction_id ~ '^[0-9a-f]{32}$'),
  constraint contradictions_close_check check (
    (close_time is null) = (close_reason is null) and length(close_reason) between 1 and 500
  ),
  constraint contradictions_kind_check check (
    kind in ('COMMIT_AFTER_VOID', 'OTHER_REFERENCE', 'OTHER_AMOUNT', 'REFERENCE_OF_ANOTHER_SPEND')
  ),
  constraint contradictions_amount_check check (
    amount_micros >= 0 and counted_micros >= 0 and counted_spends between 0 and 1
  )
);

-- What a counter counts of a charge that contradicts, and of no spend that it settles. One charge may be told of several
-- authorizations; a counter counts it once, whichever of them it belongs to. Changed only with the counter locked.
create table holdfast.contradiction_counts (
  workspace_id text not null,
  vendor text not null,
  vendor_reference text not null,
  cap_id text not null,
  window_label text not null,
  subject text not null,
  counted_micros bigint not null default 0,
  counted_spends integer not null default 0,
  constraint contradiction_counts_pkey primary key
    (workspace_id, vendor, vendor_reference, cap_id, window_label, subject),
  constraint contradiction_counts_counter_fkey foreign key (workspace_id, cap_id, window_label, subject)
    references holdfast.counter_keys (workspace_id, cap_id, window_label, subject),
  constraint contradiction_counts_amount_check check (counted_micros >= 0 and counted_spends between 0 and 1)
);

create unique index contradictions_id_idx on holdfast.contradictions (workspace_id, contradiction_id);

create index contradictions_create_time_idx
  on holdfast.contradictions (workspace_id, create_time desc, contradiction_id desc);

create index contradictions_open_idx
  on holdfast.contradictions (workspace_id, create_time desc, contradiction_id desc) where close_time is null;

-- Never deleted: the fencing token must grow for ever.
create table holdfast.billing_leases (
  workspace_id text not null,
  lease text not null,
  billing_period text not null,
  holder_id text not null,
  fencing_token bigint not null,
  expire_time timestamptz not null,
  completed boolean not null default false,
  create_time timestamptz not null,
  constraint billing_leases_pkey primary key (workspace_id, lease, billing_period),
  constraint billing_leases_workspace_fkey foreign key (workspace_id) references holdfast.workspaces (workspace_id),
  constraint billing_leases_lengths_check check (
    length(lease) between 1 and 128 and length(billing_period) between 1 and 128 and length(holder_id) between 1 and 128
  ),
  constraint billing_leases_token_check check (fencing_token >= 0)
);

-- Append-only. The position (xid, n) is safe to page by: a reader that stops at pg_snapshot_xmin misses nothing. It is
-- partitioned by position, which grows with time: so a partition that no running transaction can reach any more never
-- changes again, and readers, who go by position too, go from one partition to the next.
create table holdfast.audit_events (
  workspace_id text not null,
  xid xid8 not null,
  n integer not null,
  event_time timestamptz not null,
  kind text not null,
  actor_kind text not null,
  actor_id text not null,
  spend_key text,
  generation integer,
  customer_id text,
  billing_period text,
  purpose text,
  attempt_id text,
  currency text,
  amount_micros bigint,
  disposition text,
  reason text,
  trace_id text not null default '',
  detail jsonb not null default '{}',
  -- Whom it is about, also where somebody else did it.
  vault_key_id text,
  -- What identical denials and refused calls have in common, and for how many of them this event stands.
  fold bytea,
  count bigint not null default 1,
  constraint audit_events_pkey primary key (workspace_id, xid, n),
  constraint audit_events_fold_check check (count >= 1 and length(fold) = 32 and (count = 1 or fold is not null)),
  constraint audit_events_kind_check check (length(kind) between 1 and 64),
  constraint audit_events_actor_check check (
    actor_kind in ('vault_key', 'operator', 'server') and length(actor_id) <= 128
  )
) partition by range (xid);

create index audit_events_spend_idx on holdfast.audit_events (workspace_id, spend_key) where spend_key is not null;

-- To the planner a workspace is everything: what it has not seen yet may have a million rows by now, and a plan that reads
-- all of them because it expects none would be kept.
alter table holdfast.authorizations alter column workspace_id set (n_distinct = 1);
alter table holdfast.holds alter column workspace_id set (n_distinct = 1);
alter table holdfast.counters alter column workspace_id set (n_distinct = 1);
alter table holdfast.counter_keys alter column workspace_id set (n_distinct = 1);
alter table holdfast.caps alter column workspace_id set (n_distinct = 1);
alter table holdfast.vendor_charges alter column workspace_id set (n_distinct = 1);
alter table holdfast.audit_events alter column workspace_id set (n_distinct = 1, n_distinct_inherited = 1);

-- Makes the counters that do not exist yet: all of a call before it locks any, for who waits here for another call's must
-- hold none that it waits for.
create function holdfast.make_counters(p_workspace text, p_caps text[], p_labels text[], p_subjects text[]) returns void
language plpgsql volatile
set plan_cache_mode = force_generic_plan
as $$
begin
  with made as (
    insert into holdfast.counter_keys (workspace_id, cap_id, window_label, subject)
      select distinct p_workspace, k.cap_id, k.label, k.subject
      from unnest(p_caps, p_labels, p_subjects) as k (cap_id, label, subject)
      order by k.cap_id, k.label, k.subject
      on conflict (workspace_id, cap_id, window_label, subject) do nothing
      returning cap_id, window_label, subject
  )
  insert into holdfast.counters (workspace_id, cap_id, window_label, subject)
    select p_workspace, m.cap_id, m.window_label, m.subject from made m;
end
$$;

-- Locks counters in the order of their keys, each named once or more, and gives them as they are then; nothing for one
-- that does not exist.
--
-- A counter is looked up backwards wherever a decision is made: of versions that cannot go yet the newest stands last, as
-- long as new ones go to later pages. Where they do not, it is found as well, only later.
create function holdfast.lock_counters(p_workspace text, p_caps text[], p_labels text[], p_subjects text[])
returns setof holdfast.counters
language plpgsql volatile
set plan_cache_mode = force_generic_plan
-- A plan that is made while the table is small is used when it has grown.
set enable_seqscan = off
as $$
begin
  return query
    select n.*
    from (
      select distinct k.cap_id, k.label, k.subject
      from unnest(p_caps, p_labels, p_subjects) as k (cap_id, label, subject)
      order by k.cap_id, k.label, k.subject
    ) k
    cross join lateral (
      select n.* from holdfast.counters n
      where n.workspace_id = p_workspace and n.cap_id = k.cap_id and n.window_label = k.label
        and n.subject between k.subject and k.subject
      order by n.subject desc limit 1
      for update
    ) n;
end
$$;

-- Adds to counters that the caller has locked; what is named more than once is added up first. An amount below 0 is taken
-- away.
create function holdfast.move_counters(
  p_workspace text, p_caps text[], p_labels text[], p_subjects text[], p_held_micros numeric[],
  p_committed_micros numeric[], p_held_count bigint[], p_committed_count bigint[]
) returns void
language plpgsql volatile
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
-- Every place is looked at once.
set enable_memoize = off
as $$
declare
  v_lost bigint;
begin
  with change as materialized (
    select k.cap_id, k.label, k.subject, sum(k.held_micros) as held_micros, sum(k.committed_micros) as committed_micros,
      sum(k.held_count) as held_count, sum(k.committed_count) as committed_count
    from unnest(
      p_caps, p_labels, p_subjects, p_held_micros, p_committed_micros, p_held_count, p_committed_count
    ) as k (cap_id, label, subject, held_micros, committed_micros, held_count, committed_count)
    group by k.cap_id, k.label, k.subject
  ), changed as (
    -- By its place: with its key alone, a plan might read them all. The workspace is no more than a check.
    update holdfast.counters n set
        held_micros = n.held_micros + k.held_micros, committed_micros = n.committed_micros + k.committed_micros,
        held_count = n.held_count + k.held_count, committed_count = n.committed_count + k.committed_count
      from change k
      cross join lateral (
        select n.ctid as place from holdfast.counters n
        where n.workspace_id = p_workspace and n.cap_id = k.cap_id and n.window_label = k.label
          and n.subject between k.subject and k.subject
        order by n.subject desc limit 1
      ) l
      where (n.workspace_id = p_workspace) is true and n.ctid = l.place
      returning 1
  )
  select (select count(*) from change) - (select count(*) from changed) into v_lost;
  if v_lost > 0 then
    raise exception '% counters were not there to be moved', v_lost using errcode = 'data_corrupted';
  end if;
end
$$;

-- The first of so many numbers for events of this transaction, which are all its own. They are counted in a setting that
-- ends with the transaction, and goes back with a savepoint as the events do: to look for the last one among the events
-- would open every partition there is, in each batch.
create function holdfast.take_audit_numbers(p_count integer) returns integer
language plpgsql volatile
as $$
declare
  v_first integer := coalesce(nullif(current_setting('holdfast.audit_numbers', true), ''), '0')::integer;
begin
  perform set_config('holdfast.audit_numbers', (v_first + p_count)::text, true);
  return v_first;
end
$$;

-- Appends one event with the next free position of this transaction.
create function holdfast.append_audit(
  p_workspace text, p_time timestamptz, p_kind text, p_actor_kind text, p_actor_id text, p_trace_id text,
  p_detail jsonb, p_authorization holdfast.authorizations default null, p_disposition text default null,
  p_reason text default null, p_fold bytea default null, p_count bigint default 1
) returns void
language plpgsql volatile
as $$
declare
  v_n integer := holdfast.take_audit_numbers(1);
begin
  insert into holdfast.audit_events (
    workspace_id, xid, n, event_time, kind, actor_kind, actor_id, spend_key, generation, customer_id, billing_period,
    purpose, attempt_id, currency, amount_micros, disposition, reason, trace_id, detail, vault_key_id, fold, count
  )
  select p_workspace, pg_current_xact_id(), v_n,
    p_time, p_kind, p_actor_kind, p_actor_id, p_authorization.spend_key, p_authorization.generation,
    p_authorization.customer_id, p_authorization.billing_period, p_authorization.purpose, p_authorization.attempt_id,
    p_authorization.currency, p_authorization.amount_micros, p_disposition, p_reason, p_trace_id, p_detail,
    coalesce(p_authorization.vault_key_id, p_detail ->> 'vault_key', case p_actor_kind when 'vault_key' then p_actor_id end),
    p_fold, p_count;
end
$$;

-- The vendor key of one generation. Generation 1 is the formula that callers in other languages use.
create function holdfast.idempotency_key(p_customer text, p_period text, p_purpose text, p_generation integer)
returns text
language sql immutable parallel safe
as $$
  select left(encode(sha256(convert_to(
    p_customer || ':' || p_period || ':' || p_purpose
      || case when p_generation = 1 then '' else chr(10) || 'g' || p_generation end, 'UTF8')), 'hex'), 32)
$$;

-- The name of a contradiction. No part of its key contains a line feed.
create function holdfast.contradiction_id(
  p_workspace text, p_vendor text, p_vendor_account text, p_vendor_reference text, p_spend_key text,
  p_generation integer
) returns text
language sql immutable parallel safe
as $$
  select left(encode(sha256(convert_to(
    p_workspace || chr(10) || p_vendor || chr(10) || p_vendor_account || chr(10) || p_vendor_reference || chr(10)
      || p_spend_key || chr(10) || p_generation, 'UTF8')), 'hex'), 32)
$$;

-- When a held authorization ends to be an attempt's or followed. A one-call object with a state of the vendor has been
-- sent: only how long it is followed counts.
create function holdfast.hold_end(p_row holdfast.authorizations) returns timestamptz
language sql immutable parallel safe
as $$
  select case
    when p_row.vendor_state = '' then p_row.hold_expire_time
    when p_row.settlement = 'TWO_STEP' then greatest(p_row.hold_expire_time, p_row.follow_until_time)
    else p_row.follow_until_time
  end
$$;

-- Since when the outcome of an authorization is unknown, null where it is known or an attempt may still be at it. Also
-- where only the clock has decided it yet, so that nothing depends on when the sweep came by. A two-step that was never
-- bound is void then, and not in doubt.
create function holdfast.in_doubt_since(p_row holdfast.authorizations, p_now timestamptz) returns timestamptz
language sql immutable parallel safe
as $$
  select case
    when p_row.state = 'IN_DOUBT' then p_row.in_doubt_time
    when p_row.state <> 'HELD' or (p_row.settlement = 'TWO_STEP' and p_row.vendor_reference is null) then null
    when holdfast.hold_end(p_row) <= p_now then holdfast.hold_end(p_row)
  end
$$;

-- Whether a policy's template allows an endpoint: same method, same number of segments, each equal or matched
-- by a segment that begins with ':'. Whole segments only, so '/v1/charges' never allows '/v1/charges/x'.
create function holdfast.endpoint_allowed(p_templates text[], p_endpoint text) returns boolean
language sql immutable parallel safe
as $$
  select p_endpoint = any (p_templates) or exists (
    select from unnest(p_templates) as t (template)
    where position(':' in template) > 0
      and cardinality(string_to_array(template, '/')) = cardinality(string_to_array(p_endpoint, '/'))
      and not exists (
        select from unnest(string_to_array(template, '/'), string_to_array(p_endpoint, '/')) as s (wanted, given)
        where wanted <> given and (not starts_with(wanted, ':') or given = '' or starts_with(given, '.'))
      )
  )
$$;

-- The first rule of a vault key's policy that denies a spend, null if none does. A key that is not there denies.
create function holdfast.key_denial(
  p_key holdfast.vault_keys, p_now timestamptz, p_vendor text, p_endpoint text, p_period text, p_purpose text,
  p_customer text, p_currency text, p_amount_micros bigint
) returns text
language sql immutable parallel safe
as $$
  select case
    when p_key.vault_key_id is null or p_key.state = 'REVOKED' then 'VAULT_KEY_REVOKED'
    when p_key.state <> 'ACTIVE' then 'VAULT_KEY_SUSPENDED'
    when p_key.expire_time <= p_now then 'VAULT_KEY_EXPIRED'
    when p_key.vendor <> p_vendor then 'VENDOR'
    when not (p_endpoint = any (p_key.allowed_endpoints))
      and not holdfast.endpoint_allowed(p_key.allowed_endpoints, p_endpoint) then 'ENDPOINT'
    when p_period <> all (p_key.billing_periods) then 'BILLING_PERIOD'
    when p_purpose <> all (p_key.purposes) then 'PURPOSE'
    when p_customer <> all (p_key.customers) then 'CUSTOMER'
    when p_key.max_per_spend_currency <> p_currency then 'CURRENCY'
    when p_amount_micros > p_key.max_per_spend_micros then 'MAX_PER_SPEND'
  end
$$;

-- Takes the workspace's policy for the rest of the transaction: it cannot change before the caller has ended. Where
-- a change has announced itself, the caller queues behind it.
create function holdfast.share_policy(p_workspace text) returns void
language plpgsql volatile
as $$
begin
  if exists (
    select from holdfast.policy_gates g
    where g.workspace_id = p_workspace and g.waiting > 0 and g.closed_until_time > holdfast.clock()
  ) then
    perform from holdfast.policy_gates g where g.workspace_id = p_workspace for update;
  end if;
  perform from holdfast.workspaces w where w.workspace_id = p_workspace for share;
  if not found then
    raise exception 'workspace % does not exist', p_workspace using errcode = 'no_data_found';
  end if;
end
$$;

-- A day of the month that begins at p_first: its last one where it does not have that many.
create function holdfast.day_of_month(p_first timestamp, p_day integer) returns timestamp
language sql immutable parallel safe
as $$
  select least(p_first + make_interval(days => p_day - 1), p_first + interval '1 month - 1 day')
$$;

-- When the calendar window with a label begins by the clocks of its zone; or the one that many windows later.
create function holdfast.window_local_start(p_cap holdfast.caps, p_label text, p_later integer) returns timestamp
language sql stable parallel safe
as $$
  select make_interval(hours => p_cap.start_hour) + case p_cap.cap_window
    when 'DAY' then (p_label::date + p_later)::timestamp
    when 'WEEK' then (p_label::date + 7 * p_later)::timestamp
    when 'MONTH' then holdfast.day_of_month(
      (p_label || '-01')::timestamp + make_interval(months => p_later), p_cap.anchor_day)
    when 'YEAR' then holdfast.day_of_month(
      (p_label || '-01-01')::timestamp + make_interval(years => p_later, months => p_cap.anchor_month - 1),
      p_cap.anchor_day)
  end
$$;

-- The first instant at which the clocks of a zone show a local time or a later one: of a time that comes twice the first,
-- of one that is skipped the end of the gap. Postgres itself means the second one, and an instant after the gap. Assumes
-- that the clocks are not changed twice within two days.
create function holdfast.first_instant(p_local timestamp, p_time_zone text) returns timestamptz
language plpgsql stable parallel safe
as $$
declare
  v_guess timestamptz := p_local at time zone p_time_zone;
  -- By the clocks of the day before, and by those of the day after.
  v_before timestamptz := p_local at time zone 'UTC'
    - ((v_guess - interval '1 day') at time zone p_time_zone - (v_guess - interval '1 day') at time zone 'UTC');
  v_after timestamptz;
  v_middle timestamptz;
begin
  if v_before at time zone p_time_zone = p_local then
    return v_before;
  end if;
  v_after := p_local at time zone 'UTC'
    - ((v_guess + interval '1 day') at time zone p_time_zone - (v_guess + interval '1 day') at time zone 'UTC');
  if v_after at time zone p_time_zone = p_local then
    return v_after;
  end if;
  -- In the gap: the clocks are changed at a whole second after v_after and not after v_before.
  while v_before - v_after > interval '1 second' loop
    v_middle := v_after + date_trunc('second', (v_before - v_after) / 2);
    if v_middle at time zone p_time_zone >= p_local then
      v_before := v_middle;
    else
      v_after := v_middle;
    end if;
  end loop;
  return v_before;
end
$$;

-- The label of the calendar window that contains an instant. Where clocks that go back repeat the hours before a window
-- that has begun, it goes on.
create function holdfast.calendar_label(p_cap holdfast.caps, p_now timestamptz) returns text
language plpgsql stable parallel safe
as $$
declare
  v_shown timestamp := p_now at time zone p_cap.time_zone;
  -- By clocks that strike midnight when the window begins.
  v_local timestamp := v_shown - make_interval(hours => p_cap.start_hour);
  v_first timestamp;
  v_label text;
  v_next timestamp;
begin
  case p_cap.cap_window
    when 'DAY' then
      v_label := to_char(v_local, 'YYYY-MM-DD');
    when 'WEEK' then
      v_label := to_char(
        v_local::date - ((extract(isodow from v_local)::integer - p_cap.week_start + 7) % 7), 'YYYY-MM-DD');
    when 'MONTH' then
      v_first := date_trunc('month', v_local);
      if v_local < holdfast.day_of_month(v_first, p_cap.anchor_day) then
        v_first := v_first - interval '1 month';
      end if;
      v_label := to_char(v_first, 'YYYY-MM');
    when 'YEAR' then
      v_first := date_trunc('year', v_local);
      if v_local < holdfast.day_of_month(
        v_first + make_interval(months => p_cap.anchor_month - 1), p_cap.anchor_day
      ) then
        v_first := v_first - interval '1 year';
      end if;
      v_label := to_char(v_first, 'YYYY');
  end case;
  v_next := holdfast.window_local_start(p_cap, v_label, 1);
  -- Clocks go back by a day at most.
  if v_next - v_shown <= interval '1 day' and holdfast.first_instant(v_next, p_cap.time_zone) <= p_now then
    return to_char(
      v_next, case p_cap.cap_window when 'MONTH' then 'YYYY-MM' when 'YEAR' then 'YYYY' else 'YYYY-MM-DD' end);
  end if;
  return v_label;
end
$$;

-- The label of the window in which a cap counts what is granted at an instant.
create function holdfast.window_label(p_cap holdfast.caps, p_billing_period text, p_now timestamptz) returns text
language sql stable parallel safe
as $$
  select case
    when p_cap.cap_window in ('LIFETIME', 'FIXED') then ''
    when p_cap.cap_window = 'BILLING_PERIOD' then p_billing_period
    else holdfast.calendar_label(p_cap, p_now)
  end
$$;

-- The first instant of a window, null where it has no beginning.
create function holdfast.window_start(p_cap holdfast.caps, p_label text) returns timestamptz
language sql stable parallel safe
as $$
  select case
    when p_cap.cap_window = 'FIXED' then p_cap.start_time
    when p_cap.cap_window in ('DAY', 'WEEK', 'MONTH', 'YEAR')
      then holdfast.first_instant(holdfast.window_local_start(p_cap, p_label, 0), p_cap.time_zone)
  end
$$;

-- The first instant after a window, null where it has no end.
create function holdfast.window_end(p_cap holdfast.caps, p_label text) returns timestamptz
language sql stable parallel safe
as $$
  select case
    when p_cap.cap_window = 'FIXED' then p_cap.end_time
    when p_cap.cap_window in ('DAY', 'WEEK', 'MONTH', 'YEAR')
      then holdfast.first_instant(holdfast.window_local_start(p_cap, p_label, 1), p_cap.time_zone)
  end
$$;
