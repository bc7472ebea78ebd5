-- Printed from a migrated database by npm run generate.

create table holdfast.adjustments (
  workspace_id text not null,
  refund_spend_key text not null,
  refund_generation integer not null,
  spend_key text not null,
  generation integer not null,
  amount_micros bigint not null,
  currency text not null,
  create_time timestamp with time zone not null,
  constraint adjustments_amount_check CHECK ((amount_micros >= 0)),
  constraint adjustments_authorization_fkey FOREIGN KEY (workspace_id, spend_key, generation) REFERENCES authorizations(workspace_id, spend_key, generation),
  constraint adjustments_pkey PRIMARY KEY (workspace_id, refund_spend_key, refund_generation),
  constraint adjustments_refund_fkey FOREIGN KEY (workspace_id, refund_spend_key, refund_generation) REFERENCES authorizations(workspace_id, spend_key, generation)
);

create table holdfast.audit_events (
  workspace_id text not null,
  xid xid8 not null,
  n integer not null,
  event_time timestamp with time zone not null,
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
  trace_id text default ''::text not null,
  detail jsonb default '{}'::jsonb not null,
  vault_key_id text,
  fold bytea,
  count bigint default 1 not null,
  constraint audit_events_actor_check CHECK (((actor_kind = ANY (ARRAY['vault_key'::text, 'operator'::text, 'server'::text])) AND (length(actor_id) <= 128))),
  constraint audit_events_fold_check CHECK (((count >= 1) AND (length(fold) = 32) AND ((count = 1) OR (fold IS NOT NULL)))),
  constraint audit_events_kind_check CHECK (((length(kind) >= 1) AND (length(kind) <= 64))),
  constraint audit_events_pkey PRIMARY KEY (workspace_id, xid, n)
) partition by RANGE (xid);

create table holdfast.audit_folds (
  workspace_id text not null,
  fold bytea not null,
  xid xid8 not null,
  fold_time timestamp with time zone not null,
  count bigint not null,
  constraint audit_folds_count_check CHECK (((count >= 1) AND (length(fold) = 32))),
  constraint audit_folds_pkey PRIMARY KEY (workspace_id, fold, xid)
);

create table holdfast.audit_partitions (
  from_xid xid8 not null,
  to_xid xid8,
  width bigint not null,
  create_time timestamp with time zone not null,
  create_xid xid8 not null,
  measured_blocks bigint default 0 not null,
  measured boolean default false not null,
  events bigint default 0 not null,
  first_time timestamp with time zone,
  last_time timestamp with time zone,
  detach_time timestamp with time zone,
  detached_by text,
  constraint audit_partitions_detached_check CHECK ((((detach_time IS NULL) = (detached_by IS NULL)) AND ((detach_time IS NULL) OR measured) AND ((length(detached_by) >= 1) AND (length(detached_by) <= 200)))),
  constraint audit_partitions_measured_check CHECK (((measured_blocks >= 0) AND (events >= 0) AND ((NOT measured) OR (to_xid IS NOT NULL)) AND ((first_time IS NULL) = (last_time IS NULL)) AND ((first_time IS NULL) = (events = 0)))),
  constraint audit_partitions_pkey PRIMARY KEY (from_xid),
  constraint audit_partitions_range_check CHECK (((from_xid < to_xid) AND (width > 0)))
);

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
  amount_micros bigint not null,
  held_micros bigint not null,
  direction text not null,
  refund_of text default ''::text not null,
  settlement text not null,
  resend_safe_for interval,
  state text not null,
  attempt_id text not null,
  told_may_have_been_sent boolean not null,
  body_fingerprint text not null,
  credential_fingerprint text default ''::text not null,
  grant_time timestamp with time zone not null,
  hold_expire_time timestamp with time zone not null,
  latest_hold_expire_time timestamp with time zone not null,
  in_doubt_time timestamp with time zone,
  vendor_reference text,
  bind_time timestamp with time zone,
  vendor_state text default ''::text not null,
  follow_until_time timestamp with time zone,
  committed_micros bigint,
  committed_currency text,
  commit_time timestamp with time zone,
  refunded_micros numeric(38,0) default 0 not null,
  void_evidence text,
  void_reason text,
  void_time timestamp with time zone,
  lease text,
  fencing_token bigint,
  trace_id text default ''::text not null,
  reconciliation_finding text,
  reconciliation_first_time timestamp with time zone,
  reconciliation_time timestamp with time zone,
  reconciliation_next_time timestamp with time zone,
  reconciliation_count integer default 0 not null,
  reconciliation_note text default ''::text not null,
  absent_since_time timestamp with time zone,
  look_from_time timestamp with time zone,
  constraint authorizations_amount_check CHECK (((amount_micros >= 1) AND (amount_micros <= '1000000000000000000'::bigint))),
  constraint authorizations_committed_check CHECK ((committed_micros >= 0)),
  constraint authorizations_direction_check CHECK (((direction = ANY (ARRAY['SPEND'::text, 'REFUND'::text])) AND ((direction = 'REFUND'::text) OR (refund_of = ''::text)))),
  constraint authorizations_evidence_check CHECK ((void_evidence = ANY (ARRAY['NEVER_SENT'::text, 'NOT_EXECUTED'::text, 'VENDOR_REFUSED'::text, 'TOMBSTONE'::text, 'ABSENT_AFTER_QUARANTINE'::text, 'OPERATOR'::text, 'NEVER_BOUND'::text]))),
  constraint authorizations_generation_check CHECK ((generation >= 1)),
  constraint authorizations_held_check CHECK (((held_micros >= amount_micros) AND (held_micros <= '1000000000000000000'::bigint))),
  constraint authorizations_idempotency_key_check CHECK (((length(idempotency_key) = 32) AND (octet_length(decode(idempotency_key, 'hex'::text)) = 16) AND (lower(idempotency_key) = idempotency_key))),
  constraint authorizations_identity_check CHECK ((((length(customer_id) >= 1) AND (length(customer_id) <= 128)) AND ((length(billing_period) >= 1) AND (length(billing_period) <= 128)) AND ((length(purpose) >= 1) AND (length(purpose) <= 128)) AND (POSITION((':'::text) IN (customer_id)) = 0) AND (POSITION((':'::text) IN (billing_period)) = 0))),
  constraint authorizations_latest_hold_check CHECK ((latest_hold_expire_time >= hold_expire_time)),
  constraint authorizations_lengths_check CHECK (((length(attempt_id) = 32) AND (length(vendor) <= 32) AND (length(vendor_account) <= 128) AND (length(endpoint) <= 256) AND (length(body_fingerprint) <= 64) AND (length(credential_fingerprint) <= 32) AND (length(vendor_reference) <= 255) AND (length(refund_of) <= 255) AND (length(vendor_state) <= 64) AND (length(void_reason) <= 500) AND (length(lease) <= 128) AND (length(trace_id) <= 32))),
  constraint authorizations_pkey PRIMARY KEY (workspace_id, spend_key, generation),
  constraint authorizations_reconciliation_check CHECK (((reconciliation_finding = ANY (ARRAY['OPEN'::text, 'ABSENT'::text, 'UNREADABLE'::text, 'UNCLEAR'::text])) AND ((reconciliation_finding IS NULL) = (reconciliation_count = 0)) AND ((reconciliation_finding IS NULL) = (reconciliation_time IS NULL)) AND ((reconciliation_finding IS NULL) = (reconciliation_first_time IS NULL)) AND ((absent_since_time IS NULL) OR (reconciliation_finding = 'ABSENT'::text)) AND (length(reconciliation_note) <= 500))),
  constraint authorizations_refunded_check CHECK (((refunded_micros >= (0)::numeric) AND ((refunded_micros = (0)::numeric) OR (state = 'COMMITTED'::text)))),
  constraint authorizations_settlement_check CHECK (((settlement = ANY (ARRAY['TWO_STEP'::text, 'RESEND_SAFE'::text, 'SEND_ONCE'::text])) AND ((settlement = 'RESEND_SAFE'::text) = (resend_safe_for IS NOT NULL)) AND ((resend_safe_for IS NULL) OR (resend_safe_for <= '23:00:00'::interval)))),
  constraint authorizations_spend_key_check CHECK (((length(spend_key) = 36) AND (octet_length(decode(spend_key, 'hex'::text)) = 18) AND (lower(spend_key) = spend_key))),
  constraint authorizations_state_check CHECK (((state = ANY (ARRAY['HELD'::text, 'COMMITTED'::text, 'VOIDED'::text, 'IN_DOUBT'::text])) AND ((state = 'COMMITTED'::text) = (commit_time IS NOT NULL)) AND ((state = 'COMMITTED'::text) = (committed_micros IS NOT NULL)) AND ((state = 'COMMITTED'::text) = (committed_currency IS NOT NULL)) AND ((state = 'VOIDED'::text) = (void_time IS NOT NULL)) AND ((state = 'VOIDED'::text) = (void_evidence IS NOT NULL)) AND ((state <> 'COMMITTED'::text) OR (vendor_reference IS NOT NULL)) AND ((state = 'IN_DOUBT'::text) = (in_doubt_time IS NOT NULL))))
);

create table holdfast.billing_leases (
  workspace_id text not null,
  lease text not null,
  billing_period text not null,
  holder_id text not null,
  fencing_token bigint not null,
  expire_time timestamp with time zone not null,
  completed boolean default false not null,
  create_time timestamp with time zone not null,
  constraint billing_leases_lengths_check CHECK ((((length(lease) >= 1) AND (length(lease) <= 128)) AND ((length(billing_period) >= 1) AND (length(billing_period) <= 128)) AND ((length(holder_id) >= 1) AND (length(holder_id) <= 128)))),
  constraint billing_leases_pkey PRIMARY KEY (workspace_id, lease, billing_period),
  constraint billing_leases_token_check CHECK ((fencing_token >= 0)),
  constraint billing_leases_workspace_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(workspace_id)
);

create table holdfast.caps (
  workspace_id text not null,
  cap_id text not null,
  currency text,
  limit_micros bigint,
  limit_count bigint,
  max_per_spend_micros bigint,
  enforcement text default 'ENFORCE'::text not null,
  cap_window text not null,
  time_zone text not null,
  start_hour integer default 0 not null,
  week_start integer default 1 not null,
  anchor_day integer default 1 not null,
  anchor_month integer default 1 not null,
  start_time timestamp with time zone,
  end_time timestamp with time zone,
  scope_vault_key_id text,
  scope_vendor text,
  scope_endpoint text,
  scope_customer_id text,
  scope_purpose text,
  attached_only boolean default false not null,
  per_customer boolean not null,
  direction text not null,
  refunds_restore_headroom boolean not null,
  version bigint default 1 not null,
  request_id text,
  request_sha256 bytea,
  create_time timestamp with time zone not null,
  update_time timestamp with time zone not null,
  archive_time timestamp with time zone,
  archive_reason text default ''::text not null,
  constraint caps_anchor_check CHECK ((((start_hour >= 0) AND (start_hour <= 23)) AND ((week_start >= 1) AND (week_start <= 7)) AND ((anchor_day >= 1) AND (anchor_day <= 31)) AND ((anchor_month >= 1) AND (anchor_month <= 12)))),
  constraint caps_archive_check CHECK ((((archive_time IS NOT NULL) OR (archive_reason = ''::text)) AND (length(archive_reason) <= 500))),
  constraint caps_currency_check CHECK ((currency ~ '^[a-z]{3}$'::text)),
  constraint caps_direction_check CHECK (((direction = ANY (ARRAY['SPEND'::text, 'REFUND'::text])) AND ((NOT refunds_restore_headroom) OR ((direction = 'SPEND'::text) AND (currency IS NOT NULL))))),
  constraint caps_enforcement_check CHECK ((enforcement = ANY (ARRAY['ENFORCE'::text, 'SHADOW'::text]))),
  constraint caps_id_check CHECK ((cap_id ~ '^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$'::text)),
  constraint caps_limit_check CHECK ((((limit_micros >= 0) AND (limit_micros <= '1000000000000000000'::bigint)) AND ((limit_count >= 0) AND (limit_count <= '1000000000000'::bigint)) AND ((limit_micros IS NULL) = (currency IS NULL)) AND ((limit_count IS NULL) = (currency IS NOT NULL)))),
  constraint caps_max_check CHECK ((((max_per_spend_micros >= 0) AND (max_per_spend_micros <= '1000000000000000000'::bigint)) AND ((max_per_spend_micros IS NULL) OR (currency IS NOT NULL)))),
  constraint caps_pkey PRIMARY KEY (workspace_id, cap_id),
  constraint caps_request_check CHECK ((((request_id IS NULL) = (request_sha256 IS NULL)) AND (request_id ~ '^[0-9a-f]{32}$'::text) AND (length(request_sha256) = 32))),
  constraint caps_time_zone_check CHECK (((length(time_zone) >= 1) AND (length(time_zone) <= 64))),
  constraint caps_window_check CHECK (((cap_window = ANY (ARRAY['LIFETIME'::text, 'DAY'::text, 'WEEK'::text, 'MONTH'::text, 'YEAR'::text, 'BILLING_PERIOD'::text, 'FIXED'::text])) AND ((cap_window = 'FIXED'::text) = (start_time IS NOT NULL)) AND ((cap_window = 'FIXED'::text) = (end_time IS NOT NULL)) AND (start_time < end_time))),
  constraint caps_workspace_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(workspace_id)
);

create table holdfast.contradiction_counts (
  workspace_id text not null,
  vendor text not null,
  vendor_reference text not null,
  cap_id text not null,
  window_label text not null,
  subject text not null,
  counted_micros bigint default 0 not null,
  counted_spends integer default 0 not null,
  constraint contradiction_counts_amount_check CHECK (((counted_micros >= 0) AND ((counted_spends >= 0) AND (counted_spends <= 1)))),
  constraint contradiction_counts_counter_fkey FOREIGN KEY (workspace_id, cap_id, window_label, subject) REFERENCES counter_keys(workspace_id, cap_id, window_label, subject),
  constraint contradiction_counts_pkey PRIMARY KEY (workspace_id, vendor, vendor_reference, cap_id, window_label, subject)
);

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
  counted_spends integer default 0 not null,
  attempt_id text not null,
  create_time timestamp with time zone not null,
  contradiction_id text not null,
  close_time timestamp with time zone,
  close_reason text,
  constraint contradictions_amount_check CHECK (((amount_micros >= 0) AND (counted_micros >= 0) AND ((counted_spends >= 0) AND (counted_spends <= 1)))),
  constraint contradictions_close_check CHECK ((((close_time IS NULL) = (close_reason IS NULL)) AND ((length(close_reason) >= 1) AND (length(close_reason) <= 500)))),
  constraint contradictions_id_check CHECK ((contradiction_id ~ '^[0-9a-f]{32}$'::text)),
  constraint contradictions_kind_check CHECK ((kind = ANY (ARRAY['COMMIT_AFTER_VOID'::text, 'OTHER_REFERENCE'::text, 'OTHER_AMOUNT'::text, 'REFERENCE_OF_ANOTHER_SPEND'::text]))),
  constraint contradictions_pkey PRIMARY KEY (workspace_id, vendor, vendor_reference, spend_key, generation)
);

create table holdfast.counter_keys (
  workspace_id text not null,
  cap_id text not null,
  window_label text not null,
  subject text not null,
  constraint counter_keys_cap_fkey FOREIGN KEY (workspace_id, cap_id) REFERENCES caps(workspace_id, cap_id),
  constraint counter_keys_label_check CHECK ((length(window_label) <= 128)),
  constraint counter_keys_pkey PRIMARY KEY (workspace_id, cap_id, window_label, subject),
  constraint counter_keys_subject_check CHECK ((length(subject) <= 128))
);

create table holdfast.counters (
  workspace_id text not null,
  cap_id text not null,
  window_label text not null,
  subject text not null,
  committed_micros numeric(38,0) default 0 not null,
  held_micros numeric(38,0) default 0 not null,
  committed_count bigint default 0 not null,
  held_count bigint default 0 not null,
  constraint counters_committed_check CHECK ((committed_micros >= (0)::numeric)),
  constraint counters_counts_check CHECK (((committed_count >= 0) AND (held_count >= 0))),
  constraint counters_held_check CHECK ((held_micros >= (0)::numeric))
);

create table holdfast.holds (
  workspace_id text not null,
  spend_key text not null,
  generation integer not null,
  cap_id text not null,
  window_label text not null,
  subject text not null,
  amount_micros bigint not null,
  spend_count integer default 0 not null,
  returned_micros bigint default 0 not null,
  constraint holds_amount_check CHECK ((((amount_micros > 0) AND (spend_count = 0)) OR ((amount_micros = 0) AND (spend_count = 1)))),
  constraint holds_pkey PRIMARY KEY (workspace_id, spend_key, generation, cap_id),
  constraint holds_returned_check CHECK ((returned_micros >= 0))
);

create table holdfast.instance (
  singleton boolean default true not null,
  instance_id text not null,
  system_identifier bigint not null,
  timeline integer not null,
  database_oid bigint not null,
  suspicion text,
  recovery_count integer default 0 not null,
  fencing_token_floor bigint default 0 not null,
  create_time timestamp with time zone not null,
  recover_time timestamp with time zone,
  constraint instance_counts_check CHECK (((recovery_count >= 0) AND (fencing_token_floor >= 0))),
  constraint instance_id_check CHECK ((instance_id ~ '^[0-9a-f]{32}$'::text)),
  constraint instance_pkey PRIMARY KEY (singleton),
  constraint instance_singleton_check CHECK (singleton),
  constraint instance_suspicion_check CHECK ((suspicion = ANY (ARRAY['LOG_WENT_BACK'::text, 'OTHER_CLUSTER'::text, 'OTHER_DATABASE'::text])))
);

create table holdfast.kill_switches (
  workspace_id text not null,
  kill_switch_id text not null,
  target_kind text not null,
  target text not null,
  reason text not null,
  engage_time timestamp with time zone not null,
  engaged_by text not null,
  release_time timestamp with time zone,
  released_by text,
  release_reason text,
  constraint kill_switches_id_check CHECK ((kill_switch_id ~ '^[0-9a-f]{32}$'::text)),
  constraint kill_switches_lengths_check CHECK ((((length(reason) >= 1) AND (length(reason) <= 500)) AND ((length(release_reason) >= 1) AND (length(release_reason) <= 500)) AND ((length(engaged_by) >= 1) AND (length(engaged_by) <= 32)) AND ((length(released_by) >= 1) AND (length(released_by) <= 32)))),
  constraint kill_switches_pkey PRIMARY KEY (workspace_id, kill_switch_id),
  constraint kill_switches_release_check CHECK ((((release_time IS NULL) = (released_by IS NULL)) AND ((release_time IS NULL) = (release_reason IS NULL)))),
  constraint kill_switches_target_check CHECK (((target_kind = ANY (ARRAY['WORKSPACE'::text, 'VENDOR'::text, 'CUSTOMER'::text])) AND ((target_kind = 'WORKSPACE'::text) = (target = ''::text)) AND (length(target) <= 128))),
  constraint kill_switches_workspace_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(workspace_id)
);

create table holdfast.migrations (
  version integer not null,
  name text not null,
  sha256 text not null,
  apply_time timestamp with time zone default clock_timestamp() not null,
  constraint migrations_name_check CHECK (((length(name) >= 1) AND (length(name) <= 200))),
  constraint migrations_pkey PRIMARY KEY (version),
  constraint migrations_sha256_check CHECK ((sha256 ~ '^[0-9a-f]{64}$'::text)),
  constraint migrations_version_check CHECK ((version > 0))
);

create table holdfast.operators (
  workspace_id text not null,
  operator_id text not null,
  role text not null,
  secret_sha256 bytea not null,
  previous_secret_sha256 bytea,
  previous_secret_expire_time timestamp with time zone,
  request_id text,
  request_sha256 bytea,
  create_time timestamp with time zone not null,
  rotate_time timestamp with time zone,
  revoke_time timestamp with time zone,
  revoke_reason text default ''::text not null,
  constraint operators_id_check CHECK ((operator_id ~ '^[a-z0-9]{1,32}$'::text)),
  constraint operators_pkey PRIMARY KEY (workspace_id, operator_id),
  constraint operators_reason_check CHECK ((length(revoke_reason) <= 500)),
  constraint operators_request_check CHECK ((((request_id IS NULL) = (request_sha256 IS NULL)) AND (request_id ~ '^[0-9a-f]{32}$'::text) AND (length(request_sha256) = 32))),
  constraint operators_role_check CHECK ((role = ANY (ARRAY['OPERATOR'::text, 'AUDITOR'::text]))),
  constraint operators_secret_check CHECK (((length(secret_sha256) = 32) AND (length(previous_secret_sha256) = 32) AND ((previous_secret_sha256 IS NULL) = (previous_secret_expire_time IS NULL)))),
  constraint operators_workspace_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(workspace_id)
);

create table holdfast.policy_gates (
  workspace_id text not null,
  waiting integer not null,
  closed_until_time timestamp with time zone not null,
  constraint policy_gates_pkey PRIMARY KEY (workspace_id),
  constraint policy_gates_waiting_check CHECK ((waiting >= 0)),
  constraint policy_gates_workspace_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(workspace_id)
);

create table holdfast.proxied_requests (
  workspace_id text not null,
  vault_key_id text not null,
  request_key bytea not null,
  endpoint text not null,
  body_sha256 bytea not null,
  retry_sha256 bytea not null,
  reopened_sha256 bytea,
  customer_id text,
  billing_period text,
  purpose text,
  state text default 'OPEN'::text not null,
  claim_id text not null,
  joined boolean default false not null,
  generation integer default 1 not null,
  answer_generation integer,
  status integer,
  declined boolean default false not null,
  answer_omitted boolean default false not null,
  key_id text,
  nonce bytea,
  ciphertext bytea,
  create_time timestamp with time zone not null,
  open_time timestamp with time zone not null,
  answer_time timestamp with time zone,
  constraint proxied_requests_answer_check CHECK ((((answer_generation IS NULL) = (status IS NULL)) AND ((status IS NULL) = (answer_time IS NULL)) AND ((status IS NOT NULL) OR (NOT (declined OR answer_omitted OR (ciphertext IS NOT NULL)))) AND ((status IS NULL) OR (answer_omitted = (ciphertext IS NULL))) AND ((status >= 100) AND (status <= 599)))),
  constraint proxied_requests_cipher_check CHECK ((((key_id IS NULL) = (ciphertext IS NULL)) AND ((nonce IS NULL) = (ciphertext IS NULL)) AND (key_id ~ '^[0-9a-f]{16}$'::text) AND (length(nonce) = 12) AND ((length(ciphertext) >= 17) AND (length(ciphertext) <= 65552)))),
  constraint proxied_requests_generation_check CHECK (((generation >= 1) AND ((answer_generation >= 1) AND (answer_generation <= generation)))),
  constraint proxied_requests_hashes_check CHECK (((length(request_key) = 32) AND (length(body_sha256) = 32) AND (length(retry_sha256) = 32) AND (length(reopened_sha256) = 32))),
  constraint proxied_requests_lengths_check CHECK (((length(endpoint) <= 256) AND (length(claim_id) = 32) AND (length(customer_id) <= 128) AND (length(billing_period) <= 128) AND (length(purpose) <= 128))),
  constraint proxied_requests_pkey PRIMARY KEY (workspace_id, vault_key_id, request_key),
  constraint proxied_requests_spend_check CHECK ((((customer_id IS NULL) = (billing_period IS NULL)) AND ((customer_id IS NULL) = (purpose IS NULL)))),
  constraint proxied_requests_state_check CHECK (((state = ANY (ARRAY['OPEN'::text, 'ANSWERED'::text])) AND ((reopened_sha256 IS NULL) OR ((state = 'OPEN'::text) AND declined)) AND (((state = 'ANSWERED'::text) OR (reopened_sha256 IS NOT NULL)) = (answer_generation IS NOT NULL))))
);

create table holdfast.reconciler_claims (
  workspace_id text not null,
  vendor text not null,
  token text not null,
  expire_time timestamp with time zone not null,
  silent_count integer default 0 not null,
  resume_time timestamp with time zone not null,
  constraint reconciler_claims_lengths_check CHECK (((length(vendor) <= 32) AND (length(token) = 32))),
  constraint reconciler_claims_pkey PRIMARY KEY (workspace_id, vendor)
);

create table holdfast.reconciliation_differences (
  workspace_id text not null,
  reconciliation_run_id text not null,
  kind text not null,
  vendor_account text not null,
  vendor_reference text not null,
  mark text not null,
  n integer not null,
  authorized_micros bigint,
  authorized_currency text,
  vendor_micros bigint,
  vendor_currency text,
  message text not null,
  constraint reconciliation_differences_kind_check CHECK ((kind = ANY (ARRAY['UNSETTLED'::text, 'MOVEMENT_MISSING'::text, 'AMOUNT_DIFFERS'::text, 'AUTHORIZATION_MISSING'::text, 'CONTRADICTION'::text]))),
  constraint reconciliation_differences_lengths_check CHECK (((length(vendor_account) <= 128) AND (length(vendor_reference) <= 255) AND (length(mark) <= 64) AND (length(message) <= 500))),
  constraint reconciliation_differences_money_check CHECK ((((authorized_micros IS NULL) = (authorized_currency IS NULL)) AND ((vendor_micros IS NULL) = (vendor_currency IS NULL)))),
  constraint reconciliation_differences_pkey PRIMARY KEY (workspace_id, reconciliation_run_id, kind, vendor_account, vendor_reference, mark),
  constraint reconciliation_differences_run_fkey FOREIGN KEY (workspace_id, reconciliation_run_id) REFERENCES reconciliation_runs(workspace_id, reconciliation_run_id)
);

create table holdfast.reconciliation_matches (
  workspace_id text not null,
  reconciliation_run_id text not null,
  spend_key text not null,
  generation integer not null,
  constraint reconciliation_matches_pkey PRIMARY KEY (workspace_id, reconciliation_run_id, spend_key, generation)
);

create table holdfast.reconciliation_runs (
  workspace_id text not null,
  reconciliation_run_id text not null,
  vendor text not null,
  state text default 'PENDING'::text not null,
  start_time timestamp with time zone not null,
  end_time timestamp with time zone not null,
  create_time timestamp with time zone not null,
  finish_time timestamp with time zone,
  message text default ''::text not null,
  cursor jsonb not null,
  read_count bigint default 0 not null,
  authorization_count bigint default 0 not null,
  committed_count bigint default 0 not null,
  voided_count bigint default 0 not null,
  movement_count bigint default 0 not null,
  difference_count bigint default 0 not null,
  request_id text,
  request_sha256 bytea,
  constraint reconciliation_runs_id_check CHECK ((reconciliation_run_id ~ '^[0-9a-f]{32}$'::text)),
  constraint reconciliation_runs_lengths_check CHECK (((length(vendor) <= 32) AND (length(message) <= 500))),
  constraint reconciliation_runs_pkey PRIMARY KEY (workspace_id, reconciliation_run_id),
  constraint reconciliation_runs_request_check CHECK ((((request_id IS NULL) = (request_sha256 IS NULL)) AND (request_id ~ '^[0-9a-f]{32}$'::text) AND (length(request_sha256) = 32))),
  constraint reconciliation_runs_state_check CHECK (((state = ANY (ARRAY['PENDING'::text, 'RUNNING'::text, 'DONE'::text, 'FAILED'::text])) AND ((state = ANY (ARRAY['DONE'::text, 'FAILED'::text])) = (finish_time IS NOT NULL)))),
  constraint reconciliation_runs_time_check CHECK (((start_time < end_time) AND ((end_time - start_time) <= '366 days'::interval))),
  constraint reconciliation_runs_workspace_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(workspace_id)
);

create table holdfast.recovered_authorizations (
  workspace_id text not null,
  spend_key text not null,
  generation integer not null,
  settlement text not null,
  recover_time timestamp with time zone not null,
  constraint recovered_authorizations_authorization_fkey FOREIGN KEY (workspace_id, spend_key, generation) REFERENCES authorizations(workspace_id, spend_key, generation),
  constraint recovered_authorizations_pkey PRIMARY KEY (workspace_id, spend_key, generation),
  constraint recovered_authorizations_settlement_check CHECK ((settlement = ANY (ARRAY['TWO_STEP'::text, 'RESEND_SAFE'::text, 'SEND_ONCE'::text])))
);

create table holdfast.retired_operator_secrets (
  workspace_id text not null,
  operator_id text not null,
  secret_sha256 bytea not null,
  constraint retired_operator_secrets_operator_fkey FOREIGN KEY (workspace_id, operator_id) REFERENCES operators(workspace_id, operator_id),
  constraint retired_operator_secrets_pkey PRIMARY KEY (workspace_id, operator_id, secret_sha256),
  constraint retired_operator_secrets_secret_check CHECK ((length(secret_sha256) = 32))
);

create table holdfast.vault_key_uses (
  workspace_id text not null,
  vault_key_id text not null,
  use_time timestamp with time zone not null,
  constraint vault_key_uses_id_check CHECK ((vault_key_id ~ '^[a-z0-9]{1,32}$'::text)),
  constraint vault_key_uses_pkey PRIMARY KEY (workspace_id, vault_key_id)
);

create table holdfast.vault_keys (
  workspace_id text not null,
  vault_key_id text not null,
  secret_sha256 bytea not null,
  previous_secret_sha256 bytea,
  previous_secret_expire_time timestamp with time zone,
  state text default 'ACTIVE'::text not null,
  vendor text not null,
  allowed_endpoints text[] not null,
  billing_periods text[],
  purposes text[],
  customers text[],
  max_per_spend_micros bigint,
  max_per_spend_currency text,
  expire_time timestamp with time zone,
  attached_caps text[] default '{}'::text[] not null,
  labels jsonb default '{}'::jsonb not null,
  version bigint default 1 not null,
  request_id text,
  request_sha256 bytea,
  create_time timestamp with time zone not null,
  update_time timestamp with time zone not null,
  suspend_time timestamp with time zone,
  revoke_time timestamp with time zone,
  reason text default ''::text not null,
  proxy jsonb,
  constraint vault_keys_id_check CHECK ((vault_key_id ~ '^[a-z0-9]{1,32}$'::text)),
  constraint vault_keys_labels_check CHECK (((jsonb_typeof(labels) = 'object'::text) AND (length((labels)::text) <= 20000))),
  constraint vault_keys_lists_check CHECK (((cardinality(allowed_endpoints) <= 100) AND (COALESCE(cardinality(billing_periods), 0) <= 100) AND (COALESCE(cardinality(purposes), 0) <= 100) AND (COALESCE(cardinality(customers), 0) <= 1000) AND (cardinality(attached_caps) <= 16))),
  constraint vault_keys_max_check CHECK ((((max_per_spend_micros IS NULL) = (max_per_spend_currency IS NULL)) AND ((max_per_spend_micros IS NULL) OR (max_per_spend_micros >= 0)))),
  constraint vault_keys_pkey PRIMARY KEY (workspace_id, vault_key_id),
  constraint vault_keys_proxy_check CHECK (((jsonb_typeof(proxy) = 'object'::text) AND (length((proxy)::text) <= 200000))),
  constraint vault_keys_reason_check CHECK ((length(reason) <= 500)),
  constraint vault_keys_request_check CHECK ((((request_id IS NULL) = (request_sha256 IS NULL)) AND (request_id ~ '^[0-9a-f]{32}$'::text) AND (length(request_sha256) = 32))),
  constraint vault_keys_secret_check CHECK (((length(secret_sha256) = 32) AND (length(previous_secret_sha256) = 32) AND ((previous_secret_sha256 IS NULL) = (previous_secret_expire_time IS NULL)))),
  constraint vault_keys_state_check CHECK (((state = ANY (ARRAY['ACTIVE'::text, 'SUSPENDED'::text, 'REVOKED'::text])) AND ((state = 'SUSPENDED'::text) = (suspend_time IS NOT NULL)))),
  constraint vault_keys_vendor_check CHECK ((vendor ~ '^[a-z][a-z0-9_]{0,31}$'::text)),
  constraint vault_keys_workspace_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(workspace_id)
);

create table holdfast.vendor_account_spans (
  workspace_id text not null,
  vendor text not null,
  source text not null,
  start_time timestamp with time zone not null,
  vendor_account text not null,
  constraint vendor_account_spans_lengths_check CHECK (((length(vendor) <= 32) AND (length(source) <= 32) AND ((length(vendor_account) >= 1) AND (length(vendor_account) <= 160)))),
  constraint vendor_account_spans_pkey PRIMARY KEY (workspace_id, vendor, source, start_time),
  constraint vendor_account_spans_workspace_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(workspace_id)
);

create table holdfast.vendor_accounts (
  vendor text not null,
  vendor_account_id text not null,
  workspace_id text not null,
  constraint vendor_accounts_lengths_check CHECK ((((length(vendor) >= 1) AND (length(vendor) <= 32)) AND ((length(vendor_account_id) >= 1) AND (length(vendor_account_id) <= 128)))),
  constraint vendor_accounts_pkey PRIMARY KEY (vendor, vendor_account_id)
);

create table holdfast.vendor_charges (
  workspace_id text not null,
  vendor text not null,
  vendor_reference text not null,
  spend_key text not null,
  generation integer not null,
  constraint vendor_charges_pkey PRIMARY KEY (workspace_id, vendor, vendor_reference)
);

create table holdfast.vendor_credentials (
  workspace_id text not null,
  vendor_credential_id text not null,
  vendor text not null,
  vendor_account_id text not null,
  masked_secret text not null,
  key_id text not null,
  nonce bytea not null,
  ciphertext bytea not null,
  create_time timestamp with time zone not null,
  rotate_time timestamp with time zone,
  last_accepted_time timestamp with time zone,
  last_refused_time timestamp with time zone,
  constraint vendor_credentials_cipher_check CHECK (((key_id ~ '^[0-9a-f]{16}$'::text) AND (length(nonce) = 12) AND ((length(ciphertext) >= 17) AND (length(ciphertext) <= 1024)))),
  constraint vendor_credentials_id_check CHECK ((vendor_credential_id ~ '^[a-z0-9]{1,32}$'::text)),
  constraint vendor_credentials_lengths_check CHECK ((((length(vendor_account_id) >= 1) AND (length(vendor_account_id) <= 128)) AND (length(masked_secret) <= 32))),
  constraint vendor_credentials_pkey PRIMARY KEY (workspace_id, vendor_credential_id),
  constraint vendor_credentials_vendor_check CHECK ((vendor ~ '^[a-z][a-z0-9_]{0,31}$'::text)),
  constraint vendor_credentials_workspace_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(workspace_id)
);

create table holdfast.vendor_objects (
  workspace_id text not null,
  vendor text not null,
  vendor_account text not null,
  object_id text not null,
  vault_key_id text not null,
  create_time timestamp with time zone not null,
  constraint vendor_objects_lengths_check CHECK ((((length(vendor) >= 1) AND (length(vendor) <= 32)) AND (length(vendor_account) <= 128) AND ((length(object_id) >= 1) AND (length(object_id) <= 255)))),
  constraint vendor_objects_pkey PRIMARY KEY (workspace_id, vendor, vendor_account, object_id)
);

create table holdfast.workspaces (
  workspace_id text not null,
  policy_version bigint default 1 not null,
  create_time timestamp with time zone not null,
  constraint workspaces_id_check CHECK ((workspace_id ~ '^[a-z0-9]{1,32}$'::text)),
  constraint workspaces_pkey PRIMARY KEY (workspace_id)
);

CREATE INDEX adjustments_authorization_idx ON holdfast.adjustments USING btree (workspace_id, spend_key, generation);

CREATE INDEX audit_events_fold_idx ON ONLY holdfast.audit_events USING btree (workspace_id, fold, event_time) WHERE (fold IS NOT NULL);

CREATE INDEX audit_events_spend_idx ON ONLY holdfast.audit_events USING btree (workspace_id, spend_key) WHERE (spend_key IS NOT NULL);

CREATE UNIQUE INDEX authorizations_bound_idx ON holdfast.authorizations USING btree (workspace_id, vendor, vendor_reference) WHERE ((state = ANY (ARRAY['HELD'::text, 'IN_DOUBT'::text])) AND (vendor_reference IS NOT NULL));

CREATE INDEX authorizations_grant_time_idx ON holdfast.authorizations USING btree (workspace_id, grant_time DESC, spend_key, generation);

CREATE INDEX authorizations_open_idx ON holdfast.authorizations USING btree (workspace_id, hold_expire_time) WHERE (state = ANY (ARRAY['HELD'::text, 'IN_DOUBT'::text]));

CREATE INDEX authorizations_unsettled_idx ON holdfast.authorizations USING btree (workspace_id, vault_key_id, grant_time, spend_key, generation) WHERE ((state = 'IN_DOUBT'::text) OR ((state = 'HELD'::text) AND (vendor_state <> ''::text)));

CREATE INDEX authorizations_vendor_reference_idx ON holdfast.authorizations USING btree (workspace_id, vendor, vendor_reference) WHERE (vendor_reference IS NOT NULL);

CREATE INDEX caps_attached_idx ON holdfast.caps USING btree (workspace_id, cap_id) WHERE ((archive_time IS NULL) AND attached_only);

CREATE INDEX caps_matching_idx ON holdfast.caps USING btree (workspace_id, direction, COALESCE(scope_vault_key_id, ''::text), COALESCE(scope_customer_id, ''::text)) WHERE ((archive_time IS NULL) AND (NOT attached_only));

CREATE UNIQUE INDEX caps_request_idx ON holdfast.caps USING btree (workspace_id, request_id) WHERE (request_id IS NOT NULL);

CREATE INDEX contradictions_create_time_idx ON holdfast.contradictions USING btree (workspace_id, create_time DESC, contradiction_id DESC);

CREATE UNIQUE INDEX contradictions_id_idx ON holdfast.contradictions USING btree (workspace_id, contradiction_id);

CREATE INDEX contradictions_open_idx ON holdfast.contradictions USING btree (workspace_id, create_time DESC, contradiction_id DESC) WHERE (close_time IS NULL);

CREATE INDEX counters_key_idx ON holdfast.counters USING btree (workspace_id, cap_id, window_label, subject);

CREATE INDEX kill_switches_engage_time_idx ON holdfast.kill_switches USING btree (workspace_id, engage_time DESC, kill_switch_id DESC);

CREATE UNIQUE INDEX kill_switches_engaged_idx ON holdfast.kill_switches USING btree (workspace_id, target_kind, target) WHERE (release_time IS NULL);

CREATE UNIQUE INDEX operators_request_idx ON holdfast.operators USING btree (workspace_id, request_id) WHERE (request_id IS NOT NULL);

CREATE INDEX proxied_requests_answer_time_idx ON holdfast.proxied_requests USING btree (workspace_id, answer_time) WHERE (ciphertext IS NOT NULL);

CREATE INDEX proxied_requests_spend_idx ON holdfast.proxied_requests USING btree (workspace_id, customer_id, billing_period, purpose) WHERE (customer_id IS NOT NULL);

CREATE INDEX reconciliation_differences_n_idx ON holdfast.reconciliation_differences USING btree (workspace_id, reconciliation_run_id, n);

CREATE INDEX reconciliation_runs_create_time_idx ON holdfast.reconciliation_runs USING btree (workspace_id, create_time DESC, reconciliation_run_id DESC);

CREATE INDEX reconciliation_runs_open_idx ON holdfast.reconciliation_runs USING btree (workspace_id, vendor, create_time) WHERE (state = ANY (ARRAY['PENDING'::text, 'RUNNING'::text]));

CREATE UNIQUE INDEX reconciliation_runs_request_idx ON holdfast.reconciliation_runs USING btree (workspace_id, request_id) WHERE (request_id IS NOT NULL);

CREATE UNIQUE INDEX vault_keys_request_idx ON holdfast.vault_keys USING btree (workspace_id, request_id) WHERE (request_id IS NOT NULL);

CREATE UNIQUE INDEX vendor_credentials_vendor_idx ON holdfast.vendor_credentials USING btree (workspace_id, vendor);

-- function holdfast.absence_proven(p_row authorizations, p_look_time timestamp with time zone, p_now timestamp with time zone) returns boolean

-- function holdfast.account_in_question(p_row authorizations, p_account text) returns text

-- function holdfast.acquire_billing_lease(p_workspace text, p_lease text, p_period text, p_holder text, p_ttl interval, p_actor_id text, p_trace_id text) returns TABLE(answer text, lease_row billing_leases, remaining_ms bigint)

-- function holdfast.actor_in_force(p_workspace text, p_actor_kind text, p_actor_id text) returns text

-- function holdfast.advance_reconciliation_run(p_workspace text, p_run text, p_from jsonb, p_to jsonb, p_state text, p_message text, p_counts jsonb, p_differences jsonb, p_matches jsonb) returns boolean

-- function holdfast.append_audit(p_workspace text, p_time timestamp with time zone, p_kind text, p_actor_kind text, p_actor_id text, p_trace_id text, p_detail jsonb, p_authorization authorizations, p_disposition text, p_reason text, p_fold bytea, p_count bigint) returns void

-- function holdfast.append_folding(p_identity jsonb, p_workspace text, p_time timestamp with time zone, p_kind text, p_actor_kind text, p_actor_id text, p_trace_id text, p_detail jsonb, p_authorization authorizations, p_disposition text, p_reason text) returns void

-- function holdfast.append_refusal(p_workspace text, p_time timestamp with time zone, p_call text, p_actor_kind text, p_actor_id text, p_trace_id text, p_spend_key text, p_generation integer, p_row authorizations, p_reason text) returns void

-- function holdfast.audit_partition_name(p_from xid8) returns text

-- function holdfast.audit_since(p_since timestamp with time zone) returns xid8

-- function holdfast.authorize_batch(p_workspace text, p_requests jsonb) returns SETOF authorize_decision

-- function holdfast.bind_vendor_reference(p_workspace text, p_spend_key text, p_generation integer, p_vault_key_id text, p_attempt_id text, p_vendor_reference text, p_vendor_state text, p_follow_for interval, p_trace_id text) returns TABLE(error_reason text, authorization_row authorizations)

-- function holdfast.calendar_label(p_cap caps, p_now timestamp with time zone) returns text

-- function holdfast.cap_figures(p_cap text, p_window text, p_currency text, p_limit bigint, p_committed numeric, p_held numeric) returns jsonb

-- function holdfast.claim_proxied_request(p_workspace text, p_vault_key text, p_request_key bytea, p_endpoint text, p_body bytea, p_retry bytea, p_customer text, p_period text, p_purpose text, p_claim text, p_joins boolean) returns TABLE(is_new boolean, state text, same_body boolean, same_retry boolean, generation integer, declined boolean, age_micros bigint, open_micros bigint, key_id text, nonce bytea, ciphertext bytea)

-- function holdfast.claim_vendor(p_workspace text, p_vendor text, p_token text, p_for interval) returns integer

-- function holdfast.clock() returns timestamp with time zone

-- function holdfast.close_contradiction(p_workspace text, p_contradiction_id text, p_operator_id text, p_reason text, p_trace_id text) returns SETOF contradictions

-- function holdfast.commit_all(p_workspace text, p_now timestamp with time zone, p_requests commit_request[]) returns SETOF commit_decision

-- function holdfast.commit_batch(p_workspace text, p_requests jsonb) returns SETOF commit_decision

-- function holdfast.contradiction_id(p_workspace text, p_vendor text, p_vendor_account text, p_vendor_reference text, p_spend_key text, p_generation integer) returns text

-- function holdfast.create_audit_partition(p_from xid8, p_to xid8, p_width bigint) returns void

-- function holdfast.current_timeline() returns integer

-- function holdfast.day_of_month(p_first timestamp without time zone, p_day integer) returns timestamp without time zone

-- function holdfast.detach_audit(p_before timestamp with time zone, p_keep interval, p_by text) returns TABLE(from_xid xid8, problem text)

-- function holdfast.doubt_authorization(p_row authorizations, p_now timestamp with time zone) returns void

-- function holdfast.endpoint_allowed(p_templates text[], p_endpoint text) returns boolean

-- function holdfast.engaged_kill_switch(p_workspace text, p_vendor text, p_customer text) returns TABLE(kill_switch_id text, target_kind text)

-- function holdfast.extend_audit(p_bytes_max bigint) returns text

-- function holdfast.first_instant(p_local timestamp without time zone, p_time_zone text) returns timestamp with time zone

-- function holdfast.fold_events(p_workspace text, p_now timestamp with time zone, p_folds bytea[]) returns TABLE(ord integer, count bigint)

-- function holdfast.fold_of(p_identity jsonb) returns bytea

-- function holdfast.hold_end(p_row authorizations) returns timestamp with time zone

-- function holdfast.idempotency_key(p_customer text, p_period text, p_purpose text, p_generation integer) returns text

-- function holdfast.in_doubt_since(p_row authorizations, p_now timestamp with time zone) returns timestamp with time zone

-- function holdfast.increase_hold(p_workspace text, p_spend_key text, p_generation integer, p_vault_key_id text, p_amount_micros bigint, p_currency text, p_attempt_id text, p_lease text, p_lease_period text, p_holder_id text, p_fencing_token bigint, p_trace_id text) returns TABLE(error_reason text, rule text, cap_id text, window_label text, window_start timestamp with time zone, window_end timestamp with time zone, cap_limit bigint, cap_committed numeric, cap_held numeric, cap_currency text, kill_switch text, kill_switch_target text, authorization_row authorizations)

-- function holdfast.instance_problem() returns text

-- function holdfast.is_same_account(p_one text, p_other text) returns boolean

-- function holdfast.key_denial(p_key vault_keys, p_now timestamp with time zone, p_vendor text, p_endpoint text, p_period text, p_purpose text, p_customer text, p_currency text, p_amount_micros bigint) returns text

-- function holdfast.lease_denial(p_workspace text, p_vault_key text, p_now timestamp with time zone) returns text

-- function holdfast.lock_counters(p_workspace text, p_caps text[], p_labels text[], p_subjects text[]) returns SETOF counters

-- function holdfast.look_counts(p_row authorizations, p_look_time timestamp with time zone, p_now timestamp with time zone) returns boolean

-- function holdfast.make_counters(p_workspace text, p_caps text[], p_labels text[], p_subjects text[]) returns void

-- function holdfast.matching_caps(p_workspace text, p_requests authorize_request[], p_keys text[], p_now timestamp with time zone) returns TABLE(ord integer, cap_id text, label text, subject text, unpinned boolean)

-- function holdfast.measure_audit(p_blocks integer) returns boolean

-- function holdfast.move_counters(p_workspace text, p_caps text[], p_labels text[], p_subjects text[], p_held_micros numeric[], p_committed_micros numeric[], p_held_count bigint[], p_committed_count bigint[]) returns void

-- function holdfast.next_reconciliation(p_first timestamp with time zone, p_now timestamp with time zone) returns timestamp with time zone

-- function holdfast.note_vendor_account(p_workspace text, p_vendor text, p_source text, p_account text, p_time timestamp with time zone) returns void

-- function holdfast.open_proxied_request(p_workspace text, p_vault_key text, p_vendor text) returns TABLE(vendor text, allowed_endpoints text[], billing_periods text[], proxy jsonb, rule text, kill_switch_id text, target_kind text, vendor_credential_id text, key_id text, nonce bytea, ciphertext bytea)

-- function holdfast.proxy_key_state(p_workspace text, p_vault_key text, p_vendor text, p_customer text) returns TABLE(rule text, kill_switch_id text, target_kind text, vendor_credential_id text, key_id text, nonce bytea, ciphertext bytea)

-- function holdfast.quarantine_end_time(p_row authorizations) returns timestamp with time zone

-- function holdfast.recent_xid(p_xid xid8) returns xid8

-- function holdfast.record_proxy_events(p_workspace text, p_events jsonb) returns void

-- function holdfast.recover(p_force boolean) returns TABLE(problem text, recovered boolean, workspaces bigint, leases bigint, held bigint, open bigint, oldest_grant_time timestamp with time zone, newest_grant_time timestamp with time zone, in_doubt bigint)

-- function holdfast.refuse_audit_change() returns trigger

-- function holdfast.register_instance() returns void

-- function holdfast.release_billing_lease(p_workspace text, p_lease text, p_period text, p_holder text, p_token bigint, p_completed boolean, p_actor_id text, p_trace_id text) returns TABLE(released boolean, lease_row billing_leases)

-- function holdfast.release_vendor(p_workspace text, p_vendor text, p_token text, p_silent boolean, p_pause interval) returns void

-- function holdfast.renew_billing_lease(p_workspace text, p_lease text, p_period text, p_holder text, p_token bigint, p_ttl interval, p_actor_id text, p_trace_id text) returns TABLE(renewed boolean, lease_row billing_leases, remaining_ms bigint)

-- function holdfast.reopen_billing_lease(p_workspace text, p_lease text, p_period text, p_operator_id text, p_reason text, p_trace_id text) returns TABLE(reopened boolean, lease_row billing_leases)

-- function holdfast.report_reconciliation(p_workspace text, p_spend_key text, p_generation integer, p_actor_kind text, p_actor_id text, p_finding text, p_vendor_reference text, p_vendor_state text, p_note text, p_follow_for interval, p_trace_id text, p_look_time timestamp with time zone, p_look_account text) returns TABLE(error_reason text, authorization_row authorizations)

-- function holdfast.report_unknown(p_workspace text, p_spend_key text, p_generation integer, p_vault_key_id text, p_attempt_id text, p_reason text, p_trace_id text) returns TABLE(error_reason text, authorization_row authorizations)

-- function holdfast.requests_to_judge(p_workspace text, p_requests authorize_request[]) returns authorize_request[]

-- function holdfast.resolution_detail(p_reason text) returns jsonb

-- function holdfast.resolve_void(p_workspace text, p_spend_key text, p_generation integer, p_operator_id text, p_vendor_reference text, p_reason text, p_trace_id text) returns TABLE(error_reason text, hold_left interval, authorization_row authorizations)

-- function holdfast.send_end_time(p_row authorizations) returns timestamp with time zone

-- function holdfast.settles_another(p_row authorizations, p_vendor_reference text) returns boolean

-- function holdfast.share_policy(p_workspace text) returns void

-- function holdfast.sweep_expired(p_workspace text, p_limit integer) returns integer

-- function holdfast.take_audit_numbers(p_count integer) returns integer

-- function holdfast.unfold_audit(p_workspace text, p_limit integer) returns integer

-- function holdfast.void_authorization(p_row authorizations, p_now timestamp with time zone, p_evidence text, p_reason text, p_actor_kind text, p_actor_id text, p_trace_id text) returns void

-- function holdfast.void_spend(p_workspace text, p_spend_key text, p_generation integer, p_actor_kind text, p_actor_id text, p_attempt_id text, p_evidence text, p_vendor_status integer, p_vendor_replayed boolean, p_vendor_reference text, p_reason text, p_trace_id text, p_look_time timestamp with time zone, p_look_account text) returns TABLE(error_reason text, hold_left interval, authorization_row authorizations)

-- function holdfast.where_granting(p_value text) returns text

-- function holdfast.window_end(p_cap caps, p_label text) returns timestamp with time zone

-- function holdfast.window_label(p_cap caps, p_billing_period text, p_now timestamp with time zone) returns text

-- function holdfast.window_local_start(p_cap caps, p_label text, p_later integer) returns timestamp without time zone

-- function holdfast.window_start(p_cap caps, p_label text) returns timestamp with time zone
