-- What the HTTP proxy lets a vault key do. Null: its defaults.
alter table holdfast.vault_keys add column proxy jsonb;
alter table holdfast.vault_keys add constraint vault_keys_proxy_check check (
  jsonb_typeof(proxy) = 'object' and length(proxy::text) <= 200000
);

-- Requests that the proxy has answered or is at: what a repeat must have in common with the first one, and the vendor's
-- answer, encrypted. A row stays for ever, its answer does not. No foreign key: a request that is no grant locks nothing
-- that grants share.
create table holdfast.proxied_requests (
  workspace_id text not null,
  vault_key_id text not null,
  -- SHA-256 of how the request is identified.
  request_key bytea not null,
  endpoint text not null,
  -- SHA-256 of everything that was asked for, and of that without the payment method: of what was answered, or, before
  -- the first answer, of what has come first.
  body_sha256 bytea not null,
  retry_sha256 bytea not null,
  -- SHA-256 of everything that is asked for now, where a declined request is open again.
  reopened_sha256 bytea,
  customer_id text,
  billing_period text,
  purpose text,
  state text not null default 'OPEN',
  -- Who made the row, or has opened it again.
  claim_id text not null,
  -- Somebody else has asked for the same while it was open, and may have sent it: whoever made the row cannot say that
  -- nothing happened. Kept only where no grant would know.
  joined boolean not null default false,
  -- Counts how often it was open.
  generation integer not null default 1,
  -- Of the answer that is stored; null where there is none yet.
  answer_generation integer,
  status integer,
  -- The vendor refused the payment.
  declined boolean not null default false,
  -- The answer was too large, or is too old to be kept.
  answer_omitted boolean not null default false,
  -- Which of the server's keys opens the answer.
  key_id text,
  nonce bytea,
  -- With the tag at its end.
  ciphertext bytea,
  create_time timestamptz not null,
  -- Since when it is open, or was open last.
  open_time timestamptz not null,
  answer_time timestamptz,
  constraint proxied_requests_pkey primary key (workspace_id, vault_key_id, request_key),
  constraint proxied_requests_hashes_check check (
    length(request_key) = 32 and length(body_sha256) = 32 and length(retry_sha256) = 32
    and length(reopened_sha256) = 32
  ),
  constraint proxied_requests_state_check check (
    state in ('OPEN', 'ANSWERED')
    and (reopened_sha256 is null or (state = 'OPEN' and declined))
    and (state = 'ANSWERED' or reopened_sha256 is not null) = (answer_generation is not null)
  ),
  constraint proxied_requests_answer_check check (
    (answer_generation is null) = (status is null) and (status is null) = (answer_time is null)
    and (status is not null or not (declined or answer_omitted or ciphertext is not null))
    and (status is null or answer_omitted = (ciphertext is null)) and status between 100 and 599
  ),
  constraint proxied_requests_generation_check check (
    generation >= 1 and answer_generation between 1 and generation
  ),
  constraint proxied_requests_cipher_check check (
    (key_id is null) = (ciphertext is null) and (nonce is null) = (ciphertext is null)
    and key_id ~ '^[0-9a-f]{16}$' and length(nonce) = 12 and length(ciphertext) between 17 and 65552
  ),
  constraint proxied_requests_spend_check check (
    (customer_id is null) = (billing_period is null) and (customer_id is null) = (purpose is null)
  ),
  constraint proxied_requests_lengths_check check (
    length(endpoint) <= 256 and length(claim_id) = 32 and length(customer_id) <= 128 and length(billing_period) <= 128
    and length(purpose) <= 128
  )
);

-- Where the sweep looks for answers that are too old to be kept.
create index proxied_requests_answer_time_idx on holdfast.proxied_requests (workspace_id, answer_time)
  where ciphertext is not null;

-- Which vault key has made an object of a vendor. The first one that says so is believed. No foreign key, as above.
create table holdfast.vendor_objects (
  workspace_id text not null,
  vendor text not null,
  -- The connected account; empty for the platform's own.
  vendor_account text not null,
  object_id text not null,
  vault_key_id text not null,
  create_time timestamptz not null,
  constraint vendor_objects_pkey primary key (workspace_id, vendor, vendor_account, object_id),
  constraint vendor_objects_lengths_check check (
    length(vendor) between 1 and 32 and length(vendor_account) <= 128 and length(object_id) between 1 and 255
  )
);

-- Makes the row of a request, or reads the one that is there. The caller whose claim it is gets it as new also when it
-- asks again. A loser reads in a statement of its own, which sees what the winner has committed; where the row is gone
-- by then, there is nothing to lose to. A loser that joins leaves its mark on the open row, in a statement that waits for
-- whoever is about to forget it. `open_micros` counts since it was opened last.
create function holdfast.claim_proxied_request(
  p_workspace text, p_vault_key text, p_request_key bytea, p_endpoint text, p_body bytea, p_retry bytea,
  p_customer text, p_period text, p_purpose text, p_claim text, p_joins boolean default false
) returns table (
  is_new boolean, state text, same_body boolean, same_retry boolean, generation integer, declined boolean,
  age_micros bigint, open_micros bigint, key_id text, nonce bytea, ciphertext bytea
)
language plpgsql volatile
as $$
declare
  v_now timestamptz := holdfast.clock();
  r holdfast.proxied_requests;
begin
  for i in 1..10 loop
    insert into holdfast.proxied_requests (
      workspace_id, vault_key_id, request_key, endpoint, body_sha256, retry_sha256, customer_id, billing_period,
      purpose, claim_id, create_time, open_time
    )
    values (
      p_workspace, p_vault_key, p_request_key, p_endpoint, p_body, p_retry, p_customer, p_period, p_purpose, p_claim,
      v_now, v_now
    )
    on conflict (workspace_id, vault_key_id, request_key) do nothing;
    select t.* into r from holdfast.proxied_requests t
      where t.workspace_id = p_workspace and t.vault_key_id = p_vault_key and t.request_key = p_request_key;
    continue when not found;
    if p_joins and not r.joined and r.state = 'OPEN' and r.claim_id <> p_claim
      and r.endpoint = p_endpoint and coalesce(r.reopened_sha256, r.body_sha256) = p_body
    then
      update holdfast.proxied_requests t set joined = true
        where t.workspace_id = p_workspace and t.vault_key_id = p_vault_key and t.request_key = p_request_key
          and t.state = 'OPEN' and t.claim_id = r.claim_id;
      -- Forgotten or answered meanwhile: it is looked at anew.
      continue when not found;
    end if;
    return query select r.state = 'OPEN' and r.claim_id = p_claim, r.state,
      r.endpoint = p_endpoint and coalesce(r.reopened_sha256, r.body_sha256) = p_body,
      r.endpoint = p_endpoint and r.retry_sha256 = p_retry, r.generation, r.declined,
      greatest(0, floor(extract(epoch from v_now - r.answer_time) * 1000000))::bigint,
      greatest(0, floor(extract(epoch from v_now - r.open_time) * 1000000))::bigint, r.key_id, r.nonce, r.ciphertext;
    return;
  end loop;
  raise exception 'A proxied request was claimed and forgotten again and again.' using errcode = '40001';
end
$$;

-- Writes events of the proxy, each with the authorization that it was about: the latest one of its spend.
create function holdfast.record_proxy_events(p_workspace text, p_events jsonb) returns void
language plpgsql volatile
as $$
declare
  v_now timestamptz := holdfast.clock();
  e record;
  a holdfast.authorizations;
begin
  for e in
    select x.vault_key, x.trace_id, x.disposition, x.reason, x.spend_key, x.detail
    from jsonb_to_recordset(p_events) as x (
      vault_key text, trace_id text, disposition text, reason text, spend_key text, detail jsonb
    )
  loop
    a := null;
    if e.spend_key is not null then
      select t.* into a from holdfast.authorizations t
        where t.workspace_id = p_workspace and t.spend_key = e.spend_key
        order by t.generation desc limit 1;
    end if;
    perform holdfast.append_audit(
      p_workspace, v_now, 'proxy.request', 'vault_key', e.vault_key, e.trace_id,
      case when a.spend_key is null then e.detail else e.detail
        || jsonb_build_object('authorization', 'authorizations/' || a.spend_key || '-' || a.generation) end,
      a, e.disposition, e.reason
    );
  end loop;
end
$$;

-- Why a vault key may send nothing that moves money now, as the rule of a denial, null where it may; with rule
-- KILL_SWITCH which one; and the vendor's own key as it is stored now, encrypted, null where there is none. One row.
create function holdfast.proxy_key_state(p_workspace text, p_vault_key text, p_vendor text, p_customer text)
returns table (
  rule text, kill_switch_id text, target_kind text, vendor_credential_id text, key_id text, nonce bytea,
  ciphertext bytea
)
language sql volatile parallel safe
as $$
  select r.rule, case when r.rule = 'KILL_SWITCH' then s.kill_switch_id end,
    case when r.rule = 'KILL_SWITCH' then s.target_kind end, c.vendor_credential_id, c.key_id, c.nonce, c.ciphertext
  from (select) as one
  left join holdfast.vault_keys k on k.workspace_id = p_workspace and k.vault_key_id = p_vault_key
  left join holdfast.vendor_credentials c on c.workspace_id = p_workspace and c.vendor = p_vendor
  left join lateral holdfast.engaged_kill_switch(p_workspace, p_vendor, p_customer) s on true
  cross join lateral (
    select case
      when k.state is null or k.state = 'REVOKED' then 'VAULT_KEY_REVOKED'
      when k.state = 'SUSPENDED' then 'VAULT_KEY_SUSPENDED'
      when k.expire_time <= holdfast.clock() then 'VAULT_KEY_EXPIRED'
      when s.kill_switch_id is not null then 'KILL_SWITCH'
    end as rule
  ) as r
$$;

-- What the proxy decides a request by, in one look: the vault key, and its state as above for whoever it is asked for.
-- No row without such a vault key.
create function holdfast.open_proxied_request(p_workspace text, p_vault_key text, p_vendor text)
returns table (
  vendor text, allowed_endpoints text[], billing_periods text[], proxy jsonb, rule text, kill_switch_id text,
  target_kind text, vendor_credential_id text, key_id text, nonce bytea, ciphertext bytea
)
language sql volatile parallel safe
as $$
  select k.vendor, k.allowed_endpoints, k.billing_periods, k.proxy, s.rule, s.kill_switch_id, s.target_kind,
    s.vendor_credential_id, s.key_id, s.nonce, s.ciphertext
  from holdfast.vault_keys k
  cross join lateral holdfast.proxy_key_state(p_workspace, p_vault_key, p_vendor, '') s
  where k.workspace_id = p_workspace and k.vault_key_id = p_vault_key
$$;
