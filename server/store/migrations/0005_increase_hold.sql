-- Raises what one authorization holds, all or nothing, on the caps and in the windows in which it was granted. A key
-- that may no longer spend gets no more; what is held already was granted, and is granted again. A cap that counts spends
-- has counted this one, and an archived cap counts nothing more: neither is asked.
--
-- An attempt that another one has superseded raises nothing, nor does the holder of a billing lease that is over. Who
-- changes a bound object makes no attempt, and names none.
--
-- Locks as a grant does: policy -> vault key (share) -> billing lease (key share) -> the authorization -> counters, sorted.
create function holdfast.increase_hold(
  p_workspace text, p_spend_key text, p_generation integer, p_vault_key_id text, p_amount_micros bigint,
  p_currency text, p_attempt_id text, p_lease text, p_lease_period text, p_holder_id text, p_fencing_token bigint,
  p_trace_id text
) returns table (
  error_reason text, rule text, cap_id text, window_label text, window_start timestamptz, window_end timestamptz,
  cap_limit bigint, cap_committed numeric, cap_held numeric, cap_currency text, kill_switch text, kill_switch_target text,
  authorization_row holdfast.authorizations
)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  v_now timestamptz;
  k holdfast.vault_keys;
  a holdfast.authorizations;
  v_error text;
  v_rule text;
  v_switch text;
  v_target text;
  f record;
  -- The first cap that denies, and what caps in the shadow would have denied.
  d record;
  v_exceeded text[] := '{}';
  v_figures jsonb[] := '{}';
begin
  perform holdfast.share_policy(p_workspace);
  select v.* into k from holdfast.vault_keys v
    where v.workspace_id = p_workspace and v.vault_key_id = p_vault_key_id for share;
  perform from holdfast.billing_leases l
    where l.workspace_id = p_workspace and l.lease = p_lease and l.billing_period = p_lease_period for key share;
  select t.* into a from holdfast.authorizations t
    where t.workspace_id = p_workspace and t.spend_key = p_spend_key and t.generation = p_generation for update;
  v_now := holdfast.clock();
  select null::text as cap_id, null::text as window_label, null::bigint as limit_micros,
    null::numeric as committed_micros, null::numeric as held_micros, null::text as currency
  into d;

  if a.spend_key is null then
    v_error := 'NOT_FOUND';
  elsif a.vault_key_id <> p_vault_key_id then
    v_error := 'OTHER_VAULT_KEY';
    a := null;
  elsif a.state = 'COMMITTED' then
    v_error := 'ALREADY_COMMITTED';
  elsif a.state = 'VOIDED' then
    v_error := 'ALREADY_VOIDED';
  elsif p_attempt_id <> a.attempt_id and (p_attempt_id <> '' or a.vendor_reference is null) then
    v_error := 'ATTEMPT_SUPERSEDED';
  elsif a.currency <> p_currency then
    v_error := 'SPEND_MISMATCH';
  elsif p_amount_micros > a.held_micros then
    v_rule := holdfast.key_denial(
      k, v_now, a.vendor, a.endpoint, a.billing_period, a.purpose, a.customer_id, a.currency, p_amount_micros);
    if v_rule is null then
      select s.kill_switch_id, s.target_kind into v_switch, v_target
        from holdfast.engaged_kill_switch(p_workspace, a.vendor, a.customer_id) s;
      v_rule := case when v_switch is not null then 'KILL_SWITCH' end;
    end if;
    if v_rule is null and p_lease is not null and not exists (
      select from holdfast.billing_leases l
      where l.workspace_id = p_workspace and l.lease = p_lease and l.billing_period = p_lease_period
        and l.holder_id = p_holder_id and l.fencing_token = p_fencing_token
        and l.expire_time > v_now and not l.completed
    ) then
      v_rule := 'FENCING_TOKEN';
    end if;
    if v_rule is null then
      perform holdfast.lock_counters(p_workspace, h.caps, h.labels, h.subjects)
        from (
          select array_agg(h.cap_id) as caps, array_agg(h.window_label) as labels, array_agg(h.subject) as subjects
          from holdfast.holds h
          where h.workspace_id = p_workspace and h.spend_key = a.spend_key and h.generation = a.generation
        ) h;
      for f in
        select h.cap_id, h.window_label, c.limit_micros, n.committed_micros, n.held_micros, c.currency,
          c.enforcement = 'SHADOW' as shadow,
          case
            when p_amount_micros > c.max_per_spend_micros then 'MAX_PER_SPEND'
            -- Written so that a figure that is missing denies.
            when (p_amount_micros - h.amount_micros <= c.limit_micros - n.committed_micros - n.held_micros)
              is not true then 'CAP_HEADROOM'
          end as rule
        from holdfast.holds h
        join holdfast.caps c on c.workspace_id = h.workspace_id and c.cap_id = h.cap_id
        -- As it was locked above, and a plan of its own.
        left join lateral holdfast.lock_counters(
          p_workspace, array[h.cap_id], array[h.window_label], array[h.subject]) n on true
        where h.workspace_id = p_workspace and h.spend_key = a.spend_key and h.generation = a.generation
          and h.spend_count = 0 and c.archive_time is null
        order by h.cap_id
      loop
        if f.rule is null then
          continue;
        elsif f.shadow then
          v_exceeded := v_exceeded || f.rule;
          v_figures := v_figures || holdfast.cap_figures(
            f.cap_id, f.window_label, f.currency, f.limit_micros, f.committed_micros, f.held_micros);
        else
          v_rule := f.rule;
          d := f;
          exit;
        end if;
      end loop;
    end if;

    if v_rule is null then
      perform holdfast.move_counters(
          p_workspace, array_agg(h.cap_id), array_agg(h.window_label), array_agg(h.subject),
          array_agg((p_amount_micros - h.amount_micros)::numeric), array_agg(0::numeric), array_agg(0::bigint),
          array_agg(0::bigint))
        from holdfast.holds h
        join holdfast.caps c on c.workspace_id = h.workspace_id and c.cap_id = h.cap_id and c.archive_time is null
        where h.workspace_id = p_workspace and h.spend_key = a.spend_key and h.generation = a.generation
          and h.spend_count = 0;
      update holdfast.holds h set amount_micros = p_amount_micros
        from holdfast.caps c
        where h.workspace_id = p_workspace and h.spend_key = a.spend_key and h.generation = a.generation
          and h.spend_count = 0
          and c.workspace_id = h.workspace_id and c.cap_id = h.cap_id and c.archive_time is null;
      update holdfast.authorizations t set held_micros = p_amount_micros
        where t.workspace_id = p_workspace and t.spend_key = a.spend_key and t.generation = a.generation;
    end if;
    perform holdfast.append_folding(
      case when v_rule is not null then jsonb_build_array(
        'increase', p_vault_key_id, p_spend_key, p_generation, p_amount_micros, v_rule, d.cap_id, d.window_label, v_switch)
      end,
      p_workspace, v_now, case when v_rule is null then 'spend.increased' else 'spend.increase_denied' end,
      'vault_key', p_vault_key_id, p_trace_id,
      jsonb_build_object('previous_held_micros', a.held_micros, 'asked_micros', p_amount_micros)
        || case when d.cap_id is null then '{}' else holdfast.cap_figures(
             d.cap_id, d.window_label, d.currency, d.limit_micros, d.committed_micros, d.held_micros) end
        || case when v_switch is null then '{}' else jsonb_build_object('kill_switch', v_switch) end,
      a, case when v_rule is null then 'GRANTED' else 'DENIED' end, v_rule);
    if v_rule is null then
      for i in 1 .. cardinality(v_exceeded) loop
        perform holdfast.append_audit(
          p_workspace, v_now, 'cap.shadow_exceeded', 'vault_key', p_vault_key_id, p_trace_id,
          v_figures[i] || jsonb_build_object('previous_held_micros', a.held_micros, 'asked_micros', p_amount_micros),
          a, 'GRANTED', v_exceeded[i]);
      end loop;
    end if;
  end if;

  if v_error is not null then
    perform holdfast.append_refusal(
      p_workspace, v_now, 'increase', 'vault_key', p_vault_key_id, p_trace_id, p_spend_key, p_generation, a, v_error);
  end if;
  return query
    select v_error, v_rule, d.cap_id, d.window_label, holdfast.window_start(c, d.window_label),
      holdfast.window_end(c, d.window_label), d.limit_micros, coalesce(d.committed_micros, 0),
      coalesce(d.held_micros, 0), d.currency, v_switch, v_target, t
    from (select 1) as one
    left join holdfast.caps c on c.workspace_id = p_workspace and c.cap_id = d.cap_id
    left join holdfast.authorizations t
      on t.workspace_id = p_workspace and t.spend_key = a.spend_key and t.generation = a.generation;
end
$$;
