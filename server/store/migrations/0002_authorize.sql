-- One request of a batch, as it comes from the server.
create type holdfast.authorize_request as (
  ord integer, spend_key text, customer_id text, billing_period text, purpose text, vault_key_id text, vendor text,
  vendor_account text, endpoint text, currency text, amount_micros bigint, direction text, refund_of text,
  settlement text, resend_safe_for interval, attempt_id text, body_fingerprint text, credential_fingerprint text,
  same_body_required boolean, hold_for interval, lease text, lease_period text, holder_id text, fencing_token bigint,
  trace_id text, retry_after_generation integer, continue_reference text, rehearsed boolean
);

-- What a request of a batch is answered.
create type holdfast.authorize_decision as (
  ord integer, disposition text, error_reason text, differing_fields text[], visible boolean,
  may_have_been_sent boolean, retry_after_ms bigint, failed_generation integer,
  rule text, cap_id text, window_label text, window_start timestamptz, window_end timestamptz, cap_limit bigint,
  cap_committed numeric, cap_held numeric, cap_currency text, draws jsonb, kill_switch text, kill_switch_target text,
  authorization_row holdfast.authorizations,
  -- In place of the row, where it is what was asked for and nothing else: when it was granted.
  grant_time timestamptz
);

-- Judges a batch of requests of one workspace in arrival order and writes everything that follows, in the
-- caller's single statement: one round trip, one commit.
--
-- Locks, always in this order, so that no two batches can wait for each other:
--   policy gate (only while a change waits) -> workspace, vault keys (share), billing leases (key share: they may be
--   renewed meanwhile, but not taken over) -> claims of new spends -> generation 1 of known spends
--   -> later generations -> counters, each sorted by key.
-- What is read is locked: a revoke, a new cap or a lease takeover returns only after every grant that saw the
-- old state has ended. Each statement below has a snapshot of its own, so what a lock waited for is seen.
create function holdfast.authorize_batch(p_workspace text, p_requests jsonb)
returns setof holdfast.authorize_decision
language plpgsql volatile
-- The plan of one size of batch is as good as that of another, and planning a lone call costs more than to run it.
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  v_requests holdfast.authorize_request[];
  v_keys text[];
  v_leased boolean;
  v_now timestamptz;
  v_denied text[];
  -- The kill switch that denied, and what it stops.
  v_switches text[];
  v_targets text[];
  v_claimed text[];
  -- Whether nothing of the batch was ever asked for before, and whether that makes judging it one by one unnecessary.
  v_all_new boolean;
  v_in_sets boolean;
  -- What each request draws on, one row per request and cap.
  m_ords integer[]; m_caps text[]; m_labels text[]; m_subjects text[]; m_unpinned boolean[];
  -- The locked counters, one array per column; v_add is what this batch takes from each. Figures are micros of the cap's
  -- currency; spends, where it has none.
  v_caps text[]; v_labels text[]; v_subjects text[];
  v_limits bigint[]; v_max bigint[]; v_currencies text[]; v_shadow boolean[];
  v_committed numeric[]; v_held numeric[]; v_add numeric[];
  -- The decisions, by request.
  d_disposition text[] := '{}'; d_error text[] := '{}'; d_fields text[] := '{}'; d_visible boolean[] := '{}';
  d_sent boolean[] := '{}'; d_retry_ms bigint[] := '{}'; d_failed integer[] := '{}';
  d_rule text[] := '{}'; d_counter integer[] := '{}'; d_used_committed numeric[] := '{}'; d_used_held numeric[] := '{}';
  d_key text[] := '{}'; d_generation integer[] := '{}'; d_kind text[] := '{}';
  d_detail jsonb[] := '{}';
  -- The row as it was answered, where a later request of the batch may go on with it.
  d_row holdfast.authorizations[] := '{}';
  -- The holds to write.
  h_key text[] := '{}'; h_generation integer[] := '{}'; h_counter integer[] := '{}'; h_amount bigint[] := '{}';
  -- In sets: whose they are, and what the counter then holds.
  h_ord integer[]; h_held numeric[];
  -- What caps in the shadow would have denied of what was granted, and what a rehearsed spend would take.
  e_ord integer[] := '{}'; e_rule text[] := '{}'; e_detail jsonb[] := '{}';
  v_n integer;
  d_draws jsonb[] := '{}';
  -- What folds identical denials and refusals, and for how many each event stands: 0 where there is none of it now.
  d_folds bytea[];
  d_counts bigint[];
  r record;
  a holdfast.authorizations;
  v_fields text[];
  v_claim boolean;
  v_running boolean;
  v_followed boolean;
  v_continues boolean;
  v_resendable boolean;
  v_start integer;
  v_fenced boolean;
  v_counter integer;
  v_cap holdfast.caps;
  v_rule text;
  -- What each cap of the request says, null where it fits, and which cap denies.
  v_rules text[];
  v_denier integer;
  v_take bigint;
  v_figures jsonb;
  v_all jsonb;
begin
  select array_agg(x order by x.ord), array_agg(distinct x.vault_key_id), bool_or(x.lease is not null)
  into v_requests, v_keys, v_leased
  from jsonb_populate_recordset(
    jsonb_populate_record(null::holdfast.authorize_request, p_requests -> 'shared'), p_requests -> 'each') as x;
  perform holdfast.share_policy(p_workspace);
  perform from holdfast.vault_keys k
    where k.workspace_id = p_workspace and k.vault_key_id = any (v_keys)
    order by k.vault_key_id for share;
  if v_leased then
    perform from holdfast.billing_leases l
      where l.workspace_id = p_workspace
        and (l.lease, l.billing_period) in (
          select x.lease, x.lease_period from unnest(v_requests) as x
          where x.lease is not null
        )
      order by l.lease, l.billing_period for key share;
  end if;

  -- One reading for the whole batch, taken after the policy is locked: an expired key cannot slip through a wait.
  v_now := holdfast.clock();

  select coalesce(array_agg(
    holdfast.key_denial(
      k, v_now, x.vendor, x.endpoint, x.billing_period, x.purpose, x.customer_id, x.currency, x.amount_micros)
    order by x.ord), '{}')
  into v_denied
  from unnest(v_requests) as x
  left join holdfast.vault_keys k on k.workspace_id = p_workspace and k.vault_key_id = x.vault_key_id;

  if exists (select from holdfast.kill_switches s where s.workspace_id = p_workspace and s.release_time is null) then
    select
      array_agg(
        coalesce(v_denied[x.ord], case when s.kill_switch_id is not null then 'KILL_SWITCH' end) order by x.ord),
      array_agg(case when v_denied[x.ord] is null then s.kill_switch_id end order by x.ord),
      array_agg(case when v_denied[x.ord] is null then s.target_kind end order by x.ord)
    into v_denied, v_switches, v_targets
    from unnest(v_requests) as x
    left join lateral holdfast.engaged_kill_switch(p_workspace, x.vendor, x.customer_id) s on true;
  end if;

  -- Claim the spends that may be new. A claim is the finished row of a grant; a denial deletes it again.
  with claims as (
    insert into holdfast.authorizations (
      workspace_id, spend_key, generation, customer_id, billing_period, purpose, idempotency_key, vault_key_id, vendor,
      vendor_account, endpoint, currency, amount_micros, held_micros, direction, refund_of, settlement,
      resend_safe_for, state, attempt_id, told_may_have_been_sent, body_fingerprint, credential_fingerprint, grant_time,
      hold_expire_time, latest_hold_expire_time, lease, fencing_token, trace_id
    )
    select p_workspace, c.spend_key, 1, c.customer_id, c.billing_period, c.purpose, right(c.spend_key, 32),
      c.vault_key_id, c.vendor, c.vendor_account, c.endpoint, c.currency, c.amount_micros, c.amount_micros, c.direction,
      c.refund_of, c.settlement, c.resend_safe_for, 'HELD', c.attempt_id, false, c.body_fingerprint,
      c.credential_fingerprint, v_now, v_now + c.hold_for, v_now + c.hold_for, c.lease, c.fencing_token, c.trace_id
    from (
      select distinct on (x.spend_key) x.*
      from unnest(v_requests) as x
      where v_denied[x.ord] is null and x.retry_after_generation = 0
      order by x.spend_key, x.ord
    ) c
    order by c.spend_key
    on conflict (workspace_id, spend_key, generation) do nothing
    returning spend_key
  )
  select coalesce(array_agg(c.spend_key), '{}') into v_claimed from claims c;

  v_all_new := cardinality(v_claimed) = cardinality(v_requests);
  if not v_all_new then
    -- Generation 1 is the mutex of its spend: with it locked, no other batch can add a generation.
    -- Rows are looked up one by one, by their key, here and below: a join could read all of a workspace where the planner
    -- takes it for a small one.
    perform from (select distinct x.spend_key from unnest(v_requests) as x order by x.spend_key) x
      cross join lateral (
        select from holdfast.authorizations t
        where t.workspace_id = p_workspace and t.spend_key = x.spend_key and t.generation = 1
        for update
      ) t;
    perform from (
        select distinct t.generation, t.spend_key
        from unnest(v_requests) as x
        cross join lateral (
          select t.generation, t.spend_key, t.state from holdfast.authorizations t
          where t.workspace_id = p_workspace and t.spend_key = x.spend_key and t.generation > 1
          offset 0
        ) t
        -- Not within, where it would offer the index of all that is open.
        where t.state in ('HELD', 'IN_DOUBT')
        order by t.generation, t.spend_key
      ) x
      cross join lateral (
        select from holdfast.authorizations t
        where t.workspace_id = p_workspace and t.spend_key = x.spend_key and t.generation = x.generation
        for update
      ) t;
    -- Not before: whoever held a lock may just have settled what was recovered.
    v_requests := holdfast.requests_to_judge(p_workspace, v_requests);
  end if;

  select coalesce(array_agg(m.ord), '{}'), coalesce(array_agg(m.cap_id), '{}'), coalesce(array_agg(m.label), '{}'),
    coalesce(array_agg(m.subject), '{}'), coalesce(array_agg(m.unpinned), '{}')
  into m_ords, m_caps, m_labels, m_subjects, m_unpinned
  from holdfast.matching_caps(p_workspace, v_requests, v_keys, v_now) m
  where v_denied[m.ord] is null;

  -- Every counter that a request draws on must exist before it can be locked. Where its caller could invent the label,
  -- nothing is drawn, and no row is left behind.
  perform holdfast.make_counters(
    p_workspace, array_agg(m.cap_id), array_agg(m.label), array_agg(m.subject))
  from unnest(m_caps, m_labels, m_subjects, m_unpinned) as m (cap_id, label, subject, unpinned)
  where not m.unpinned;

  select coalesce(array_agg(k.cap_id), '{}'), coalesce(array_agg(k.window_label), '{}'),
    coalesce(array_agg(k.subject), '{}'), coalesce(array_agg(k.cap_limit), '{}'),
    coalesce(array_agg(k.max_per_spend_micros), '{}'), coalesce(array_agg(k.currency), '{}'),
    coalesce(array_agg(k.shadow), '{}'), coalesce(array_agg(k.committed), '{}'), coalesce(array_agg(k.held), '{}'),
    coalesce(array_agg(0::numeric), '{}')
  into v_caps, v_labels, v_subjects, v_limits, v_max, v_currencies, v_shadow, v_committed, v_held, v_add
  from (
    select n.cap_id, n.window_label, n.subject, c.max_per_spend_micros, c.currency,
      coalesce(c.limit_micros, c.limit_count) as cap_limit, c.enforcement = 'SHADOW' as shadow,
      case when c.currency is null then n.committed_count else n.committed_micros end as committed,
      case when c.currency is null then n.held_count else n.held_micros end as held
    from (
      select array_agg(m.cap_id) as caps, array_agg(m.label) as labels, array_agg(m.subject) as subjects
      from (
        select m.cap_id, m.label, m.subject
        from unnest(m_caps, m_labels, m_subjects) as m (cap_id, label, subject)
        union
        -- What an expired, never bound generation would give back.
        select h.cap_id, h.window_label, h.subject
        from unnest(v_requests) as x
        cross join lateral (
          select t.spend_key, t.generation, t.state, t.settlement, t.vendor_reference from holdfast.authorizations t
          where t.workspace_id = p_workspace and t.spend_key = x.spend_key
          offset 0
        ) t
        cross join lateral (
          select h.cap_id, h.window_label, h.subject from holdfast.holds h
          where h.workspace_id = p_workspace and h.spend_key = t.spend_key and h.generation = t.generation
          offset 0
        ) h
        where not v_all_new
          and t.state in ('HELD', 'IN_DOUBT') and t.settlement = 'TWO_STEP' and t.vendor_reference is null
      ) m
    ) m
    cross join lateral holdfast.lock_counters(p_workspace, m.caps, m.labels, m.subjects) n
    cross join lateral (
      select c.* from holdfast.caps c where c.workspace_id = p_workspace and c.cap_id = n.cap_id
      offset 0
    ) c
  ) k;

  -- In sets, where that is certain to come to the same as one by one: every spend is new, and every cap that they draw on
  -- has room for all of it.
  v_in_sets := v_all_new and not true = any (m_unpinned) and not exists (
    select from unnest(v_requests) as x
    where x.rehearsed or (x.lease is not null and not exists (
      select from holdfast.billing_leases l
      where l.workspace_id = p_workspace and l.lease = x.lease and l.billing_period = x.lease_period
        and l.holder_id = x.holder_id and l.fencing_token = x.fencing_token
        and l.expire_time > v_now and not l.completed
    ))
  );
  if v_in_sets and cardinality(m_ords) > 0 then
    -- What a counter holds after a request is compared, and not the sum alone, since it is also what the audit tells.
    select array_agg(d.ord), array_agg(d.i), array_agg(d.take), array_agg(d.held),
      bool_and(coalesce(d.take <= coalesce(d.max, d.take) and d.same_currency and d.held <= d.room, false))
    into h_ord, h_counter, h_amount, h_held, v_in_sets
    from (
      select q.ord, q.i, q.take, q.max, q.same_currency, q.room,
        q.held + sum(q.take) over (partition by q.i order by q.ord) as held
      from (
        select m.ord, k.i, case when k.currency is null then 1 else x.amount_micros end as take,
          case when k.currency is null then null else k.max end as max,
          k.currency is null or k.currency = x.currency as same_currency, k.cap_limit - k.committed as room, k.held
        from unnest(m_ords, m_caps, m_labels, m_subjects) as m (ord, cap_id, label, subject)
        join unnest(v_requests) as x on x.ord = m.ord
        left join unnest(v_caps, v_labels, v_subjects, v_limits, v_max, v_currencies, v_committed, v_held)
          with ordinality as k (cap_id, label, subject, cap_limit, max, currency, committed, held, i)
          on k.cap_id = m.cap_id and k.label = m.label and k.subject = m.subject
      ) q
    ) d;
  end if;
  if v_in_sets then
    select array_agg(x.spend_key order by x.ord), array_agg(1 order by x.ord), array_agg('GRANTED'::text order by x.ord),
      array_agg('spend.granted'::text order by x.ord), array_agg(true order by x.ord),
      array_agg(jsonb_build_object('caps', coalesce(f.figures, '[]')) order by x.ord)
    into d_key, d_generation, d_disposition, d_kind, d_visible, d_detail
    from unnest(v_requests) as x
    left join (
      select h.ord, jsonb_agg(holdfast.cap_figures(
          k.cap_id, k.label, k.currency, k.cap_limit, k.committed, h.held) order by k.cap_id) as figures
      from unnest(h_ord, h_counter, h_held) as h (ord, i, held)
      join unnest(v_caps, v_labels, v_currencies, v_limits, v_committed) with ordinality
        as k (cap_id, label, currency, cap_limit, committed, i) on k.i = h.i
      group by h.ord
    ) f on f.ord = x.ord;
    select array_agg(d_key[h.ord] order by h.i), array_agg(1 order by h.i) into h_key, h_generation
      from unnest(h_ord) with ordinality as h (ord, i);
    select array_agg(coalesce(h.amount, 0) order by k.i) into v_add
      from unnest(v_caps) with ordinality as k (cap_id, i)
      left join (select h.i, sum(h.take) as amount from unnest(h_counter, h_amount) as h (i, take) group by h.i) h
        on h.i = k.i;
  else
    h_counter := '{}';
    h_amount := '{}';
  end if;

  for r in
    select x.*, m.counters, m.caps, m.labels, m.subjects, m.unpinned
    from unnest(v_requests) as x
    left join (
      select mc.ord, array_agg(k.i order by mc.cap_id) as counters, array_agg(mc.cap_id order by mc.cap_id) as caps,
        array_agg(mc.label order by mc.cap_id) as labels, array_agg(mc.subject order by mc.cap_id) as subjects,
        array_agg(mc.unpinned order by mc.cap_id) as unpinned
      from unnest(m_ords, m_caps, m_labels, m_subjects, m_unpinned) as mc (ord, cap_id, label, subject, unpinned)
      left join unnest(v_caps, v_labels, v_subjects) with ordinality as k (cap_id, label, subject, i)
        on k.cap_id = mc.cap_id and k.label = mc.label and k.subject = mc.subject
      group by mc.ord
    ) m on m.ord = x.ord
    where not v_in_sets
    order by x.ord
  loop
    d_error[r.ord] := null; d_fields[r.ord] := ''; d_visible[r.ord] := false; d_sent[r.ord] := false;
    d_retry_ms[r.ord] := null; d_failed[r.ord] := null; d_rule[r.ord] := null; d_counter[r.ord] := null;
    d_used_committed[r.ord] := null; d_used_held[r.ord] := null;
    d_key[r.ord] := r.spend_key; d_generation[r.ord] := null; d_detail[r.ord] := '{}';
    d_kind[r.ord] := 'spend.answered'; d_draws[r.ord] := null;
    v_start := null;

    if v_denied[r.ord] is not null then
      d_disposition[r.ord] := 'DENIED';
      d_rule[r.ord] := v_denied[r.ord];
      continue;
    end if;

    v_claim := r.retry_after_generation = 0 and r.spend_key = any (v_claimed);
    if r.spend_key = any (v_claimed) and not v_claim then
      -- A later request of this batch has claimed the spend: for this one it does not exist yet.
      a := null;
      v_start := 1;
    elsif v_claim then
      -- The first request of the spend in this batch judges the claim; later ones find the row it left.
      v_claimed := array_remove(v_claimed, r.spend_key);
      v_start := 1;
    else
      select t.* into a from holdfast.authorizations t
        where t.workspace_id = p_workspace and t.spend_key = r.spend_key
        order by t.generation desc limit 1;
      if not found then
        a := null;
        v_start := 1;
      elsif (a.customer_id, a.billing_period, a.purpose) <> (r.customer_id, r.billing_period, r.purpose) then
        raise exception 'two spends share the key %', r.spend_key using errcode = 'data_corrupted';
      end if;
    end if;
    -- A one-call object with a state of the vendor has been sent: only how long it is followed counts.
    v_running := v_start is null and a.state = 'HELD' and a.hold_expire_time > v_now
      and (a.vendor_state = '' or a.settlement = 'TWO_STEP');
    v_followed := v_start is null and a.state in ('HELD', 'IN_DOUBT') and a.vendor_state <> ''
      and a.follow_until_time > v_now;

    if v_start is null then
      d_generation[r.ord] := a.generation;
      d_visible[r.ord] := a.vault_key_id = r.vault_key_id;
      v_fields := array_remove(array[
        case when a.amount_micros <> r.amount_micros then 'spend.amount.amount' end,
        case when a.currency <> r.currency then 'spend.amount.currency' end,
        case when a.vendor <> r.vendor then 'vendor' end,
        case when a.vendor_account <> r.vendor_account then 'vendor_account' end,
        case when a.endpoint <> r.endpoint then 'endpoint' end,
        case when a.direction <> r.direction then 'direction' end,
        case when a.refund_of <> r.refund_of then 'refund_of' end,
        case when a.settlement <> r.settlement then 'settlement' end,
        case when a.resend_safe_for is distinct from r.resend_safe_for then 'resend_safe_for' end,
        -- Whoever asks for that is not answered with what another body has done or is about to do.
        case when r.same_body_required and d_visible[r.ord]
          and (a.state = 'COMMITTED' or a.vendor_reference is not null) and a.body_fingerprint <> r.body_fingerprint
          and a.body_fingerprint <> '' and r.body_fingerprint <> '' then 'body_fingerprint' end
      ], null);
      if a.state = 'COMMITTED' and 'body_fingerprint' = any (v_fields) then
        d_error[r.ord] := 'SPEND_MISMATCH';
        d_fields[r.ord] := array_to_string(v_fields, ',');
        continue;
      elsif a.state = 'COMMITTED' then
        d_disposition[r.ord] := 'ALREADY_COMMITTED';
        if d_visible[r.ord] then d_fields[r.ord] := array_to_string(v_fields, ','); end if;
        continue;
      end if;
      if a.state in ('HELD', 'IN_DOUBT') and not d_visible[r.ord] then
        -- Another vault key's spend: the disposition and nothing more, and no takeover.
        if v_running or v_followed then
          d_disposition[r.ord] := 'IN_PROGRESS';
          d_retry_ms[r.ord] := 1000;
          continue;
        elsif a.settlement <> 'TWO_STEP' or a.vendor_reference is not null then
          d_disposition[r.ord] := 'IN_DOUBT';
          continue;
        end if;
      elsif a.state in ('HELD', 'IN_DOUBT') and cardinality(v_fields) > 0 then
        d_error[r.ord] := 'SPEND_MISMATCH';
        d_fields[r.ord] := array_to_string(v_fields, ',');
        continue;
      end if;
    end if;

    v_fenced := r.lease is null or exists (
      select from holdfast.billing_leases l
      where l.workspace_id = p_workspace and l.lease = r.lease and l.billing_period = r.lease_period
        and l.holder_id = r.holder_id and l.fencing_token = r.fencing_token
        and l.expire_time > v_now and not l.completed
    );
    if not v_fenced then
      d_disposition[r.ord] := 'DENIED';
      d_rule[r.ord] := 'FENCING_TOKEN';
      d_visible[r.ord] := false;
      if v_claim then
        delete from holdfast.authorizations t
          where t.workspace_id = p_workspace and t.spend_key = r.spend_key and t.generation = 1;
      end if;
      continue;
    end if;

    if v_start is null and a.state in ('HELD', 'IN_DOUBT') then
      -- Whoever names the bound object goes on with it, unless another attempt is in the middle of a call.
      v_continues := coalesce(a.vendor_reference = r.continue_reference, false)
        and (a.state = 'IN_DOUBT' or a.vendor_state <> '' or not v_running);
      v_resendable := a.settlement = 'RESEND_SAFE' and a.vendor_reference is null
        and v_now < a.grant_time + a.resend_safe_for;
      v_fields := case when a.body_fingerprint = '' or r.body_fingerprint = '' then '{}' else array_remove(array[
        case when a.body_fingerprint <> r.body_fingerprint then 'body_fingerprint' end,
        case when a.credential_fingerprint <> r.credential_fingerprint then 'credential_fingerprint' end
      ], null) end;
      if v_followed and not v_continues then
        d_disposition[r.ord] := 'IN_PROGRESS';
        d_retry_ms[r.ord] := 5000;
        d_row[r.ord] := a;
        continue;
      end if;
      if v_running and not v_continues then
        -- A bound one-call is granted to nobody who does not name its object, not even again.
        if a.attempt_id <> r.attempt_id or (
          a.settlement <> 'TWO_STEP' and a.vendor_reference is not null and a.vendor_reference <> r.continue_reference
        ) then
          d_disposition[r.ord] := 'IN_PROGRESS';
          d_retry_ms[r.ord] := least(1000, ceil(extract(epoch from a.hold_expire_time - v_now) * 1000)::bigint);
          continue;
        elsif a.settlement <> 'RESEND_SAFE' or a.vendor_reference is not null or v_resendable then
          d_disposition[r.ord] := 'GRANTED';
          d_sent[r.ord] := true;
          d_kind[r.ord] := 'spend.answered_again';
          update holdfast.authorizations t set told_may_have_been_sent = true
            where t.workspace_id = p_workspace and t.spend_key = a.spend_key and t.generation = a.generation
              and not t.told_may_have_been_sent;
          continue;
        end if;
        -- The vendor may have forgotten the key: also the attempt that holds it must not send it again.
      end if;
      if a.settlement = 'TWO_STEP' and a.vendor_reference is null and (
        not d_visible[r.ord]
        or 'body_fingerprint' = any (v_fields)
      ) then
        -- Never bound, so nothing can have been confirmed: our own row is the proof, and its late bind will fail.
        perform holdfast.void_authorization(
          a, v_now, 'NEVER_BOUND', 'replaced by a new generation', 'server', 'authorize', r.trace_id);
        -- The counters changed under the arrays: read what the void gave back. What this batch takes is not in
        -- the rows yet.
        for i in 1 .. cardinality(v_caps) loop
          -- An assignment: an array element as the target of INTO would replace the whole array.
          v_held[i] := (
            select case when v_currencies[i] is null then n.held_count else n.held_micros end + v_add[i]
            from holdfast.lock_counters(p_workspace, array[v_caps[i]], array[v_labels[i]], array[v_subjects[i]]) n
          );
        end loop;
        v_start := a.generation + 1;
      elsif v_continues or a.settlement = 'TWO_STEP' or (v_resendable and cardinality(v_fields) = 0) then
        update holdfast.authorizations t set
            state = 'HELD', attempt_id = r.attempt_id, told_may_have_been_sent = true,
            hold_expire_time = v_now + r.hold_for,
            latest_hold_expire_time = greatest(t.latest_hold_expire_time, v_now + r.hold_for),
            in_doubt_time = null, vendor_state = '', follow_until_time = null,
            lease = r.lease, fencing_token = r.fencing_token,
            -- What was seen before this attempt says nothing about it.
            reconciliation_finding = null, reconciliation_first_time = null, reconciliation_time = null,
            reconciliation_next_time = null, reconciliation_count = 0, reconciliation_note = '',
            absent_since_time = null
          where t.workspace_id = p_workspace and t.spend_key = a.spend_key and t.generation = a.generation;
        d_disposition[r.ord] := 'GRANTED';
        d_sent[r.ord] := true;
        d_kind[r.ord] := 'spend.taken_over';
        d_detail[r.ord] := jsonb_build_object('previous_attempt_id', a.attempt_id, 'previous_state', a.state);
        continue;
      else
        d_disposition[r.ord] := 'IN_DOUBT';
        if v_resendable then
          d_fields[r.ord] := array_to_string(v_fields, ',');
        end if;
        if a.state = 'HELD' then
          perform holdfast.doubt_authorization(a, v_now);
          d_kind[r.ord] := 'spend.in_doubt';
          select t.* into a from holdfast.authorizations t
            where t.workspace_id = p_workspace and t.spend_key = r.spend_key and t.generation = a.generation;
        end if;
        d_row[r.ord] := a;
        continue;
      end if;
    elsif v_start is null then
      -- VOIDED: nothing was sent, executed or confirmed -> again at once; refused by the vendor -> only when asked for.
      if a.void_evidence in ('NEVER_SENT', 'NOT_EXECUTED', 'NEVER_BOUND') or r.retry_after_generation = a.generation then
        v_start := a.generation + 1;
      else
        d_disposition[r.ord] := 'ALREADY_FAILED';
        if d_visible[r.ord] then d_failed[r.ord] := a.generation; end if;
        continue;
      end if;
    elsif a is null and not v_claim and r.retry_after_generation > 0 then
      d_error[r.ord] := 'GENERATION_NOT_FOUND';
      continue;
    end if;

    -- A new generation: every enforced cap that matches must have room, all or nothing.
    d_generation[r.ord] := null;
    v_rule := null;
    v_rules := '{}';
    for i in 1 .. coalesce(cardinality(r.counters), 0) loop
      v_counter := r.counters[i];
      if v_counter is null then
        -- A cap whose counter was not made or locked has no figures, and what has no figures denies.
        v_counter := cardinality(v_caps) + 1;
        r.counters[i] := v_counter;
        v_caps[v_counter] := r.caps[i]; v_labels[v_counter] := r.labels[i];
        v_subjects[v_counter] := r.subjects[i];
        select c.* into v_cap from holdfast.caps c where c.workspace_id = p_workspace and c.cap_id = r.caps[i];
        v_limits[v_counter] := coalesce(v_cap.limit_micros, v_cap.limit_count);
        v_max[v_counter] := v_cap.max_per_spend_micros; v_currencies[v_counter] := v_cap.currency;
        v_shadow[v_counter] := v_cap.enforcement = 'SHADOW'; v_committed[v_counter] := null;
        v_held[v_counter] := null; v_add[v_counter] := 0;
      end if;
      v_take := case when v_currencies[v_counter] is null then 1 else r.amount_micros end;
      v_rules[i] := case
        when r.unpinned[i] then 'BILLING_PERIOD_NOT_PINNED'
        when v_currencies[v_counter] <> r.currency then 'CURRENCY'
        when r.amount_micros > v_max[v_counter] then 'MAX_PER_SPEND'
        -- Written so that a figure that is missing denies.
        when (v_take <= v_limits[v_counter] - v_committed[v_counter] - v_held[v_counter]) is not true
          then 'CAP_HEADROOM'
      end;
      if v_rule is null and v_rules[i] is not null and not v_shadow[v_counter] then
        v_rule := v_rules[i];
        v_denier := v_counter;
        exit when r.rehearsed is not true;
      end if;
    end loop;
    if r.rehearsed then
      select coalesce(jsonb_agg(jsonb_build_object(
          'cap', q.cap_id, 'window', q.label, 'subject', q.subject, 'rule', q.rule, 'limit', v_limits[q.counter]::text,
          'committed', v_committed[q.counter]::text, 'held', v_held[q.counter]::text,
          'currency', v_currencies[q.counter], 'enforcement', c.enforcement, 'max', v_max[q.counter]::text,
          'start', (extract(epoch from holdfast.window_start(c, q.label)) * 1000000)::bigint::text,
          'end', (extract(epoch from holdfast.window_end(c, q.label)) * 1000000)::bigint::text
        ) order by q.cap_id), '[]')
      into v_all
      from (
        select k.counter, k.rule, v_caps[k.counter] as cap_id, v_labels[k.counter] as label,
          v_subjects[k.counter] as subject
        from unnest(r.counters, v_rules) as k (counter, rule)
      ) q
      join holdfast.caps c on c.workspace_id = p_workspace and c.cap_id = q.cap_id;
      d_draws[r.ord] := v_all;
    end if;
    if v_rule is not null then
      d_disposition[r.ord] := 'DENIED';
      d_visible[r.ord] := false;
      d_rule[r.ord] := v_rule;
      d_counter[r.ord] := v_denier;
      d_used_committed[r.ord] := v_committed[v_denier];
      d_used_held[r.ord] := v_held[v_denier];
      if v_claim then
        delete from holdfast.authorizations t
          where t.workspace_id = p_workspace and t.spend_key = r.spend_key and t.generation = 1;
      end if;
      continue;
    end if;

    if not v_claim then
      insert into holdfast.authorizations (
        workspace_id, spend_key, generation, customer_id, billing_period, purpose, idempotency_key, vault_key_id,
        vendor, vendor_account, endpoint, currency, amount_micros, held_micros, direction, refund_of, settlement,
        resend_safe_for, state, attempt_id, told_may_have_been_sent, body_fingerprint, credential_fingerprint,
        grant_time, hold_expire_time, latest_hold_expire_time, lease, fencing_token, trace_id
      ) values (
        p_workspace, r.spend_key, v_start, r.customer_id, r.billing_period, r.purpose,
        holdfast.idempotency_key(r.customer_id, r.billing_period, r.purpose, v_start), r.vault_key_id, r.vendor,
        r.vendor_account, r.endpoint, r.currency, r.amount_micros, r.amount_micros, r.direction, r.refund_of,
        r.settlement, r.resend_safe_for, 'HELD',
        r.attempt_id, false, r.body_fingerprint, r.credential_fingerprint, v_now, v_now + r.hold_for,
        v_now + r.hold_for, r.lease, r.fencing_token, r.trace_id
      );
    end if;
    v_figures := '[]';
    for i in 1 .. coalesce(cardinality(r.counters), 0) loop
      v_counter := r.counters[i];
      if v_rules[i] is not null then
        e_ord := e_ord || r.ord;
        e_rule := e_rule || v_rules[i];
        e_detail := e_detail || holdfast.cap_figures(
          v_caps[v_counter], v_labels[v_counter], v_currencies[v_counter], v_limits[v_counter],
          v_committed[v_counter], v_held[v_counter]);
        -- What a cap in the shadow cannot count, it only reports.
        continue when v_rules[i] in ('BILLING_PERIOD_NOT_PINNED', 'CURRENCY') or v_held[v_counter] is null;
      end if;
      v_take := case when v_currencies[v_counter] is null then 1 else r.amount_micros end;
      v_held[v_counter] := v_held[v_counter] + v_take;
      v_add[v_counter] := v_add[v_counter] + v_take;
      h_key := h_key || r.spend_key;
      h_generation := h_generation || v_start;
      h_counter := h_counter || v_counter;
      h_amount := h_amount || v_take;
      v_figures := v_figures || holdfast.cap_figures(
        v_caps[v_counter], v_labels[v_counter], v_currencies[v_counter], v_limits[v_counter],
        v_committed[v_counter], v_held[v_counter]);
    end loop;
    d_disposition[r.ord] := 'GRANTED';
    d_kind[r.ord] := 'spend.granted';
    d_visible[r.ord] := true;
    d_generation[r.ord] := v_start;
    d_detail[r.ord] := jsonb_build_object('caps', v_figures);
  end loop;

  perform holdfast.move_counters(
    p_workspace, array_agg(k.cap_id), array_agg(k.label), array_agg(k.subject),
    array_agg(case when k.currency is null then 0 else k.amount end), array_agg(0::numeric),
    array_agg(case when k.currency is null then k.amount else 0 end::bigint), array_agg(0::bigint))
  from unnest(v_caps, v_labels, v_subjects, v_currencies, v_add) as k (cap_id, label, subject, currency, amount)
  where k.amount > 0;

  insert into holdfast.holds (
    workspace_id, spend_key, generation, cap_id, window_label, subject, amount_micros, spend_count
  )
    select p_workspace, h.key, h.generation, v_caps[h.counter], v_labels[h.counter], v_subjects[h.counter],
      case when v_currencies[h.counter] is null then 0 else h.amount end,
      case when v_currencies[h.counter] is null then 1 else 0 end
    from unnest(h_key, h_generation, h_counter, h_amount) as h (key, generation, counter, amount);

  if 'DENIED' = any (d_disposition) or array_remove(d_error, null) <> '{}' then
    select array_agg(case when d_disposition[x.ord] = 'DENIED' or d_error[x.ord] is not null then
        holdfast.fold_of(jsonb_build_array('authorize', x.vault_key_id, d_disposition[x.ord], d_error[x.ord],
          d_rule[x.ord], d_fields[x.ord], d_generation[x.ord], v_switches[x.ord], v_caps[d_counter[x.ord]],
          v_labels[d_counter[x.ord]], x.spend_key, x.currency, x.amount_micros, x.vendor, x.vendor_account, x.endpoint, x.direction, x.refund_of,
          x.lease, x.lease_period, x.fencing_token))
      end order by x.ord)
    into d_folds
    from unnest(v_requests) as x;
    select array_agg(f.count order by f.ord) into d_counts from holdfast.fold_events(p_workspace, v_now, d_folds) f;
  end if;
  v_n := holdfast.take_audit_numbers(cardinality(d_key) + cardinality(e_ord));
  insert into holdfast.audit_events (
    workspace_id, xid, n, event_time, kind, actor_kind, actor_id, spend_key, generation, customer_id, billing_period,
    purpose, attempt_id, currency, amount_micros, disposition, reason, trace_id, detail, vault_key_id, fold, count
  )
  select p_workspace, pg_current_xact_id(),
    v_n + (row_number() over (order by x.ord, e.i nulls first))::integer - 1,
    v_now, case when e.i is null then d_kind[x.ord] else 'cap.shadow_exceeded' end, 'vault_key', x.vault_key_id,
    x.spend_key, d_generation[x.ord], x.customer_id, x.billing_period, x.purpose, x.attempt_id, x.currency,
    x.amount_micros, coalesce(d_disposition[x.ord], 'REFUSED'),
    coalesce(e_rule[e.i], d_rule[x.ord], d_error[x.ord]), x.trace_id,
    case when e.i is not null then e_detail[e.i] else d_detail[x.ord]
      || case when d_fields[x.ord] <> '' then jsonb_build_object('differing_fields', d_fields[x.ord]) else '{}' end
      || case when d_counter[x.ord] is not null then holdfast.cap_figures(
           v_caps[d_counter[x.ord]], v_labels[d_counter[x.ord]], v_currencies[d_counter[x.ord]],
           v_limits[d_counter[x.ord]], d_used_committed[x.ord], d_used_held[x.ord]) else '{}' end
      || case when v_switches[x.ord] is not null then jsonb_build_object('kill_switch', v_switches[x.ord]) else '{}' end
      || case when x.lease is not null then jsonb_build_object(
           'lease', x.lease, 'lease_period', x.lease_period, 'fencing_token', x.fencing_token) else '{}' end
      || case when x.direction <> 'SPEND' then jsonb_build_object(
           'direction', x.direction, 'refund_of', x.refund_of) else '{}' end
    end,
    x.vault_key_id, d_folds[x.ord], coalesce(d_counts[x.ord], 1)
  from unnest(v_requests) as x
  join (
    select k.ord, null::bigint as i from unnest(d_key) with ordinality as k (key, ord)
    union all
    select k.ord, k.i from unnest(e_ord) with ordinality as k (ord, i)
  ) e on e.ord = x.ord
  where coalesce(d_counts[x.ord], 1) > 0;

  if v_in_sets then
    return query
      select x.ord, 'GRANTED'::text, null::text, '{}'::text[], true, false, null::bigint, null::integer, null::text,
        null::text, null::text, null::timestamptz, null::timestamptz, null::bigint, 0::numeric, 0::numeric, null::text,
        null::jsonb, null::text, null::text, null::holdfast.authorizations, v_now
      from unnest(v_requests) as x
      order by x.ord;
    return;
  end if;
  return query
    select d.ord::integer, d_disposition[d.ord], d_error[d.ord],
      case when d_fields[d.ord] <> '' then string_to_array(d_fields[d.ord], ',') else '{}' end,
      d_visible[d.ord], coalesce(d_sent[d.ord], false), d_retry_ms[d.ord], d_failed[d.ord], d_rule[d.ord],
      v_caps[d_counter[d.ord]], v_labels[d_counter[d.ord]],
      holdfast.window_start(c, v_labels[d_counter[d.ord]]), holdfast.window_end(c, v_labels[d_counter[d.ord]]),
      v_limits[d_counter[d.ord]], coalesce(d_used_committed[d.ord], 0), coalesce(d_used_held[d.ord], 0),
      v_currencies[d_counter[d.ord]], d_draws[d.ord], v_switches[d.ord], v_targets[d.ord],
      case when d_row[d.ord] is null then q.t else d_row[d.ord] end, case when d.is_new then v_now end
    from (
      select d.key, d.generation, d.ord, d.generation = 1 and d_kind[d.ord] = 'spend.granted' as is_new
      from unnest(d_key, d_generation) with ordinality as d (key, generation, ord)
    ) d
    left join holdfast.caps c on c.workspace_id = p_workspace and c.cap_id = v_caps[d_counter[d.ord]]
    left join lateral (
      select t from holdfast.authorizations t
      where t.workspace_id = p_workspace and t.spend_key = d.key and t.generation = d.generation
        and d.is_new is not true
      offset 0
    ) q on true
    order by d.ord;
end
$$;

-- Which counters each request of a batch draws on: every cap of its direction of which all set scope fields match, and
-- which is not archived, not of another fixed time and not attached to other keys. A BILLING_PERIOD cap is marked unpinned
-- for a key that does not pin its periods: its caller could invent one.
--
-- The label of a window is found once per cap, not once per request: it is the dearest part.
create function holdfast.matching_caps(
  p_workspace text, p_requests holdfast.authorize_request[], p_keys text[], p_now timestamptz
)
returns table (ord integer, cap_id text, label text, subject text, unpinned boolean)
language plpgsql stable
as $$
#variable_conflict use_column
declare
  v_keys text[] := array_append(p_keys, '');
  m_ords integer[]; m_caps text[]; m_customers text[]; m_periods text[]; m_pins_none boolean[];
begin
  -- In arrays, for they are joined the same way whatever the planner believes of the tables.
  with asked as materialized (
    select x.*, k.billing_periods is null as pins_none, k.attached_caps
    from unnest(p_requests) as x
    join holdfast.vault_keys k on k.workspace_id = p_workspace and k.vault_key_id = x.vault_key_id
  ), general as materialized (
    select c.* from holdfast.caps c
    where c.workspace_id = p_workspace and c.direction in ('SPEND', 'REFUND')
      and coalesce(c.scope_vault_key_id, '') = any (v_keys) and coalesce(c.scope_customer_id, '') = ''
      and c.archive_time is null and not c.attached_only
  ), matched as (
    select x.ord, x.customer_id, x.billing_period, x.pins_none, c.cap_id
    from asked x
    join general c on c.direction = x.direction
    where (c.scope_vault_key_id is null or c.scope_vault_key_id = x.vault_key_id)
      and (c.scope_vendor is null or c.scope_vendor = x.vendor)
      and (c.scope_purpose is null or c.scope_purpose = x.purpose)
      and (c.scope_endpoint is null or holdfast.endpoint_allowed(array[c.scope_endpoint], x.endpoint))
    union all
    select x.ord, x.customer_id, x.billing_period, x.pins_none, c.cap_id
    from asked x
    cross join lateral (
      select c.* from holdfast.caps c
      where c.workspace_id = p_workspace and c.direction = x.direction
        and coalesce(c.scope_vault_key_id, '') = any (array['', x.vault_key_id])
        and coalesce(c.scope_customer_id, '') = x.customer_id
        and c.archive_time is null and not c.attached_only
      offset 0
    ) c
    where (c.scope_vendor is null or c.scope_vendor = x.vendor)
      and (c.scope_purpose is null or c.scope_purpose = x.purpose)
      and (c.scope_endpoint is null or holdfast.endpoint_allowed(array[c.scope_endpoint], x.endpoint))
    union all
    select x.ord, x.customer_id, x.billing_period, x.pins_none, c.cap_id
    from asked x
    cross join lateral (select distinct a.cap_id from unnest(x.attached_caps) as a (cap_id)) a
    cross join lateral (
      select c.* from holdfast.caps c where c.workspace_id = p_workspace and c.cap_id = a.cap_id
      offset 0
    ) c
    where x.attached_caps <> '{}' and c.direction = x.direction and c.archive_time is null and c.attached_only
      and (c.scope_vault_key_id is null or c.scope_vault_key_id = x.vault_key_id)
      and (c.scope_customer_id is null or c.scope_customer_id = x.customer_id)
      and (c.scope_vendor is null or c.scope_vendor = x.vendor)
      and (c.scope_purpose is null or c.scope_purpose = x.purpose)
      and (c.scope_endpoint is null or holdfast.endpoint_allowed(array[c.scope_endpoint], x.endpoint))
  )
  select array_agg(m.ord), array_agg(m.cap_id), array_agg(m.customer_id), array_agg(m.billing_period),
    array_agg(m.pins_none)
  into m_ords, m_caps, m_customers, m_periods, m_pins_none
  from matched m;
  return query
    select m.ord, w.cap_id, case when w.cap_window = 'BILLING_PERIOD' then m.billing_period else w.label end,
      case when w.per_customer then m.customer_id else '' end, w.cap_window = 'BILLING_PERIOD' and m.pins_none
    from unnest(m_ords, m_caps, m_customers, m_periods, m_pins_none)
      as m (ord, cap_id, customer_id, billing_period, pins_none)
    join (
      select (c.cap).cap_id, (c.cap).cap_window, (c.cap).per_customer, holdfast.window_label(c.cap, '', p_now) as label
      from (select distinct a.cap_id from unnest(m_caps) as a (cap_id)) a
      cross join lateral (
        -- Whole: to put it together again from its columns costs a fifth of the function.
        select c as cap from holdfast.caps c where c.workspace_id = p_workspace and c.cap_id = a.cap_id
        offset 0
      ) c
      where (c.cap).cap_window <> 'FIXED' or ((c.cap).start_time <= p_now and p_now < (c.cap).end_time)
    ) w on w.cap_id = m.cap_id;
end
$$;

-- The figures of a cap in the audit: micros of its currency; spends, where it has none. Stable, as what it calls is: only
-- so is it a part of the statements that use it, and not a call per row.
create function holdfast.cap_figures(
  p_cap text, p_window text, p_currency text, p_limit bigint, p_committed numeric, p_held numeric
) returns jsonb
language sql stable parallel safe
as $$
  select case when p_currency is null
    then jsonb_build_object('cap', p_cap, 'window', p_window, 'limit_count', p_limit, 'committed_count', p_committed,
      'held_count', p_held)
    else jsonb_build_object('cap', p_cap, 'window', p_window, 'limit_micros', p_limit, 'committed_micros', p_committed,
      'held_micros', p_held)
  end
$$;

-- Writes down that the outcome of one locked, open authorization is unknown, since the clock has decided it or since now.
create function holdfast.doubt_authorization(p_row holdfast.authorizations, p_now timestamptz) returns void
language sql volatile
as $$
  update holdfast.authorizations t set
      state = 'IN_DOUBT', in_doubt_time = coalesce(holdfast.in_doubt_since(p_row, p_now), p_now),
      vendor_state = '', follow_until_time = null
    where t.workspace_id = p_row.workspace_id and t.spend_key = p_row.spend_key and t.generation = p_row.generation
$$;

-- Voids one locked, open authorization and gives its headroom back.
create function holdfast.void_authorization(
  p_row holdfast.authorizations, p_now timestamptz, p_evidence text, p_reason text, p_actor_kind text,
  p_actor_id text, p_trace_id text
) returns void
language plpgsql volatile
as $$
declare
  v_caps text[]; v_labels text[]; v_subjects text[]; v_micros numeric[]; v_spends bigint[]; v_nothing bigint[];
begin
  select array_agg(h.cap_id), array_agg(h.window_label), array_agg(h.subject), array_agg(-h.amount_micros),
    array_agg(0), array_agg(-h.spend_count)
  into v_caps, v_labels, v_subjects, v_micros, v_nothing, v_spends
  from holdfast.holds h
  where h.workspace_id = p_row.workspace_id and h.spend_key = p_row.spend_key and h.generation = p_row.generation;
  perform holdfast.lock_counters(p_row.workspace_id, v_caps, v_labels, v_subjects);
  perform holdfast.move_counters(
    p_row.workspace_id, v_caps, v_labels, v_subjects, v_micros, v_nothing, v_spends, v_nothing);
  update holdfast.authorizations t set
      state = 'VOIDED', void_evidence = p_evidence, void_reason = p_reason, void_time = p_now, in_doubt_time = null,
      vendor_state = '', follow_until_time = null
    where t.workspace_id = p_row.workspace_id and t.spend_key = p_row.spend_key and t.generation = p_row.generation;
  perform holdfast.append_audit(
    p_row.workspace_id, p_now, 'spend.voided', p_actor_kind, p_actor_id, p_trace_id,
    jsonb_build_object('evidence', p_evidence, 'note', p_reason), p_row, null, p_evidence);
end
$$;
