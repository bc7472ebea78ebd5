-- Which workspace an account of a vendor belongs to. This table alone is not of one workspace: its primary key has to
-- hold across all of them. Distributed, it is a reference table, which every node has whole; a row is written when a
-- credential is stored or deleted, and nothing that grants reads it.
create table holdfast.vendor_accounts (
  vendor text not null,
  vendor_account_id text not null,
  workspace_id text not null,
  constraint vendor_accounts_pkey primary key (vendor, vendor_account_id),
  constraint vendor_accounts_lengths_check check (
    length(vendor) between 1 and 32 and length(vendor_account_id) between 1 and 128
  )
);

-- The vendor's own keys, encrypted: what opens them is not in the database. One per vendor, so that an authorization
-- without a connected account has exactly one account to be looked for in.
create table holdfast.vendor_credentials (
  workspace_id text not null,
  vendor_credential_id text not null,
  vendor text not null,
  vendor_account_id text not null,
  masked_secret text not null,
  -- Which of the server's keys opens it.
  key_id text not null,
  nonce bytea not null,
  -- With the tag at its end.
  ciphertext bytea not null,
  create_time timestamptz not null,
  rotate_time timestamptz,
  last_accepted_time timestamptz,
  last_refused_time timestamptz,
  constraint vendor_credentials_pkey primary key (workspace_id, vendor_credential_id),
  constraint vendor_credentials_workspace_fkey foreign key (workspace_id) references holdfast.workspaces (workspace_id),
  constraint vendor_credentials_id_check check (vendor_credential_id ~ '^[a-z0-9]{1,32}$'),
  constraint vendor_credentials_vendor_check check (vendor ~ '^[a-z][a-z0-9_]{0,31}$'),
  constraint vendor_credentials_cipher_check check (
    key_id ~ '^[0-9a-f]{16}$' and length(nonce) = 12 and length(ciphertext) between 17 and 1024
  ),
  constraint vendor_credentials_lengths_check check (
    length(vendor_account_id) between 1 and 128 and length(masked_secret) <= 32
  )
);

create unique index vendor_credentials_vendor_idx on holdfast.vendor_credentials (workspace_id, vendor);

-- Which account of a vendor has been used since when: of the stored credential, or as a service of a vault key has shown
-- when it reconciled. It outlives the credential, so that what was sent under another account is not looked for in this
-- one. The first one that is known holds for all that was before.
create table holdfast.vendor_account_spans (
  workspace_id text not null,
  vendor text not null,
  -- A vault key, or empty for the stored credential.
  source text not null,
  start_time timestamptz not null,
  -- With the mode where that is known: "acct_1/live", "acct_1".
  vendor_account text not null,
  constraint vendor_account_spans_pkey primary key (workspace_id, vendor, source, start_time),
  constraint vendor_account_spans_workspace_fkey foreign key (workspace_id)
    references holdfast.workspaces (workspace_id),
  constraint vendor_account_spans_lengths_check check (
    length(vendor) <= 32 and length(source) <= 32 and length(vendor_account) between 1 and 160
  )
);

-- One account has two modes, and what was charged in the one does not show in the other.
create function holdfast.is_same_account(p_one text, p_other text) returns boolean
language sql immutable parallel safe
as $$
  select split_part(p_one, '/', 1) = split_part(p_other, '/', 1)
    and (split_part(p_one, '/', 2) = split_part(p_other, '/', 2)
      or split_part(p_one, '/', 2) = '' or split_part(p_other, '/', 2) = '')
$$;

-- Begins another span where the account is another one than before. An empty account is not known, and begins none.
create function holdfast.note_vendor_account(
  p_workspace text, p_vendor text, p_source text, p_account text, p_time timestamptz
) returns void
language plpgsql volatile
as $$
declare
  v_last text;
begin
  if p_account = '' then return; end if;
  select s.vendor_account into v_last from holdfast.vendor_account_spans s
    where s.workspace_id = p_workspace and s.vendor = p_vendor and s.source = p_source
    order by s.start_time desc limit 1;
  if v_last is null or not holdfast.is_same_account(v_last, p_account) then
    insert into holdfast.vendor_account_spans (workspace_id, vendor, source, start_time, vendor_account)
    values (
      p_workspace, p_vendor, p_source, case when v_last is null then timestamptz '-infinity' else p_time end, p_account)
    on conflict (workspace_id, vendor, source, start_time) do nothing;
  end if;
end
$$;

-- An account that the authorization may have been sent under, other than the one that was looked at; null if there is
-- none. An account that is replaced is still counted on for a day: services and their operator do not change at once.
create function holdfast.account_in_question(p_row holdfast.authorizations, p_account text) returns text
language plpgsql stable parallel safe
as $$
begin
  return (
    select s.vendor_account
    from (
      select t.*, coalesce(
        lead(t.start_time) over (partition by t.source order by t.start_time) + interval '1 day', timestamptz 'infinity'
      ) as end_time
      from holdfast.vendor_account_spans t
      where t.workspace_id = p_row.workspace_id and t.vendor = p_row.vendor and t.source in ('', p_row.vault_key_id)
    ) s
    where s.start_time <= holdfast.send_end_time(p_row) and s.end_time > p_row.grant_time
      and not holdfast.is_same_account(s.vendor_account, p_account)
    order by s.source, s.start_time limit 1
  );
end
$$;

-- Which replica asks a vendor for a workspace now. A token and a time, and no session's lock: a replica that has died
-- holds nothing. Two that work at once do no harm, they only ask twice.
create table holdfast.reconciler_claims (
  workspace_id text not null,
  vendor text not null,
  token text not null,
  expire_time timestamptz not null,
  -- How often in a row the vendor did not answer at all, and when to ask next.
  silent_count integer not null default 0,
  resume_time timestamptz not null,
  constraint reconciler_claims_pkey primary key (workspace_id, vendor),
  constraint reconciler_claims_lengths_check check (length(vendor) <= 32 and length(token) = 32)
);

-- Comparisons of both sides over a span of time. The cursor says where the next step begins.
create table holdfast.reconciliation_runs (
  workspace_id text not null,
  reconciliation_run_id text not null,
  vendor text not null,
  state text not null default 'PENDING',
  start_time timestamptz not null,
  end_time timestamptz not null,
  create_time timestamptz not null,
  finish_time timestamptz,
  message text not null default '',
  cursor jsonb not null,
  read_count bigint not null default 0,
  authorization_count bigint not null default 0,
  committed_count bigint not null default 0,
  voided_count bigint not null default 0,
  movement_count bigint not null default 0,
  difference_count bigint not null default 0,
  request_id text,
  request_sha256 bytea,
  constraint reconciliation_runs_pkey primary key (workspace_id, reconciliation_run_id),
  constraint reconciliation_runs_workspace_fkey foreign key (workspace_id)
    references holdfast.workspaces (workspace_id),
  constraint reconciliation_runs_id_check check (reconciliation_run_id ~ '^[0-9a-f]{32}$'),
  constraint reconciliation_runs_state_check check (
    state in ('PENDING', 'RUNNING', 'DONE', 'FAILED') and (state in ('DONE', 'FAILED')) = (finish_time is not null)
  ),
  constraint reconciliation_runs_time_check check (
    start_time < end_time and end_time - start_time <= interval '366 days'
  ),
  constraint reconciliation_runs_request_check check (
    (request_id is null) = (request_sha256 is null) and request_id ~ '^[0-9a-f]{32}$' and length(request_sha256) = 32
  ),
  constraint reconciliation_runs_lengths_check check (length(vendor) <= 32 and length(message) <= 500)
);

create unique index reconciliation_runs_request_idx on holdfast.reconciliation_runs (workspace_id, request_id)
  where request_id is not null;

create index reconciliation_runs_create_time_idx
  on holdfast.reconciliation_runs (workspace_id, create_time desc, reconciliation_run_id desc);

create index reconciliation_runs_open_idx on holdfast.reconciliation_runs (workspace_id, vendor, create_time)
  where state in ('PENDING', 'RUNNING');

-- What a run has left over, in the order in which it was found.
create table holdfast.reconciliation_differences (
  workspace_id text not null,
  reconciliation_run_id text not null,
  kind text not null,
  vendor_account text not null,
  vendor_reference text not null,
  -- The last part of the authorization's name, or empty.
  mark text not null,
  n integer not null,
  authorized_micros bigint,
  authorized_currency text,
  vendor_micros bigint,
  vendor_currency text,
  message text not null,
  constraint reconciliation_differences_pkey primary key
    (workspace_id, reconciliation_run_id, kind, vendor_account, vendor_reference, mark),
  constraint reconciliation_differences_run_fkey foreign key (workspace_id, reconciliation_run_id)
    references holdfast.reconciliation_runs (workspace_id, reconciliation_run_id),
  constraint reconciliation_differences_kind_check check (
    kind in ('UNSETTLED', 'MOVEMENT_MISSING', 'AMOUNT_DIFFERS', 'AUTHORIZATION_MISSING', 'CONTRADICTION')
  ),
  constraint reconciliation_differences_money_check check (
    (authorized_micros is null) = (authorized_currency is null) and (vendor_micros is null) = (vendor_currency is null)
  ),
  constraint reconciliation_differences_lengths_check check (
    length(vendor_account) <= 128 and length(vendor_reference) <= 255 and length(mark) <= 64 and length(message) <= 500
  )
);

create index reconciliation_differences_n_idx
  on holdfast.reconciliation_differences (workspace_id, reconciliation_run_id, n);

-- Committed authorizations whose movement a run has seen already. Gone when the run is at its end.
create table holdfast.reconciliation_matches (
  workspace_id text not null,
  reconciliation_run_id text not null,
  spend_key text not null,
  generation integer not null,
  constraint reconciliation_matches_pkey primary key (workspace_id, reconciliation_run_id, spend_key, generation)
);

-- Takes or keeps the right to ask a vendor for a workspace. Answers how often in a row it was silent, or null: another
-- replica is at it, or it is not to be asked yet.
create function holdfast.claim_vendor(p_workspace text, p_vendor text, p_token text, p_for interval) returns integer
language plpgsql volatile
as $$
declare
  v_now timestamptz := holdfast.clock();
  v_silent integer;
begin
  insert into holdfast.reconciler_claims as c (workspace_id, vendor, token, expire_time, resume_time)
  values (p_workspace, p_vendor, p_token, v_now + p_for, v_now)
  on conflict (workspace_id, vendor) do update set token = excluded.token, expire_time = excluded.expire_time
    where c.token = excluded.token or (c.expire_time <= v_now and c.resume_time <= v_now)
  returning c.silent_count into v_silent;
  return v_silent;
end
$$;

-- Gives the right back. After a vendor that was silent nobody asks it for the pause.
create function holdfast.release_vendor(
  p_workspace text, p_vendor text, p_token text, p_silent boolean, p_pause interval
) returns void
language plpgsql volatile
as $$
declare
  v_now timestamptz := holdfast.clock();
begin
  update holdfast.reconciler_claims c set
      expire_time = v_now, resume_time = v_now + p_pause,
      silent_count = case when p_silent then c.silent_count + 1 else 0 end
    where c.workspace_id = p_workspace and c.vendor = p_vendor and c.token = p_token;
end
$$;

-- Writes down one step of a run with everything that it found, once: where the run is no longer at the step's
-- beginning, another replica has done it, and nothing is changed. Answers whether it was written.
create function holdfast.advance_reconciliation_run(
  p_workspace text, p_run text, p_from jsonb, p_to jsonb, p_state text, p_message text, p_counts jsonb,
  p_differences jsonb, p_matches jsonb
) returns boolean
language plpgsql volatile
as $$
declare
  r holdfast.reconciliation_runs;
  v_new integer;
  v_now timestamptz;
begin
  select t.* into r from holdfast.reconciliation_runs t
    where t.workspace_id = p_workspace and t.reconciliation_run_id = p_run for update;
  if not found or r.state in ('DONE', 'FAILED') or r.cursor <> p_from then
    return false;
  end if;
  insert into holdfast.reconciliation_differences (
    workspace_id, reconciliation_run_id, kind, vendor_account, vendor_reference, mark, n, authorized_micros,
    authorized_currency, vendor_micros, vendor_currency, message
  )
  select p_workspace, p_run, x.kind, x.vendor_account, x.vendor_reference, x.mark, r.difference_count + x.ord,
    x.authorized_micros, x.authorized_currency, x.vendor_micros, x.vendor_currency, x.message
  from jsonb_to_recordset(p_differences) as x (
    ord integer, kind text, vendor_account text, vendor_reference text, mark text, authorized_micros bigint,
    authorized_currency text, vendor_micros bigint, vendor_currency text, message text
  )
  on conflict (workspace_id, reconciliation_run_id, kind, vendor_account, vendor_reference, mark) do nothing;
  get diagnostics v_new = row_count;
  insert into holdfast.reconciliation_matches (workspace_id, reconciliation_run_id, spend_key, generation)
  select p_workspace, p_run, x.spend_key, x.generation
  from jsonb_to_recordset(p_matches) as x (spend_key text, generation integer)
  on conflict (workspace_id, reconciliation_run_id, spend_key, generation) do nothing;
  v_now := holdfast.clock();
  update holdfast.reconciliation_runs t set
      cursor = p_to, state = p_state, message = p_message,
      finish_time = case when p_state in ('DONE', 'FAILED') then v_now end,
      read_count = t.read_count + coalesce((p_counts ->> 'reads')::bigint, 0),
      authorization_count = t.authorization_count + coalesce((p_counts ->> 'authorizations')::bigint, 0),
      committed_count = t.committed_count + coalesce((p_counts ->> 'committed')::bigint, 0),
      voided_count = t.voided_count + coalesce((p_counts ->> 'voided')::bigint, 0),
      movement_count = t.movement_count + coalesce((p_counts ->> 'movements')::bigint, 0),
      difference_count = t.difference_count + v_new
    where t.workspace_id = p_workspace and t.reconciliation_run_id = p_run;
  if p_state in ('DONE', 'FAILED') then
    delete from holdfast.reconciliation_matches m
      where m.workspace_id = p_workspace and m.reconciliation_run_id = p_run;
  end if;
  return true;
end
$$;
