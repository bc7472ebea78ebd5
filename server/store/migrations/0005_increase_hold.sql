-- Raises what one authorization holds, all or nothing, on the caps and in the windows in which it was granted. A key
-- that may no longer spend gets no more; what is held already was granted, and is granted again.
--
-- Locks as a grant does: policy -> vault key (share) -> the authorization -> counters, sorted.
create function holdfast.increase_hold(
  p_workspace text, p_spend_key text, p_generation integer, p_vault_key_id text, p_amount_micros bigint,
  p_currency text, p_trace_id text
) returns table (
  error_reason text, rule text, cap_id text, window_label text, window_end timestamptz, limit_micros bigint,
  committed_micros numeric, held_micros numeric, cap_currency text, kill_switch text, kill_switch_target text,
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
  -- The first cap that denies.
  d record;
begin
  perform holdfast.share_policy(p_workspace);
  select v.* into k from holdfast.vault_keys v
    where v.workspace_id = p_workspace and v.vault_key_id = p_vault_key_id for share;
  select t.* into a from holdfast.authorizations t
    where t.workspace_id = p_workspace and t.spend_key = p_spend_key and t.generation = p_generation for update;
  v_now := holdfast.clock();
  select null::text as rule, null::text as cap_id, null::text as label, null::text as time_zone,
    null::text as cap_window, null::bigint as limit_micros, null::numeric as committed, null::numeric as held,
    null::text as currency
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
    if v_rule is null then
      perform from holdfast.counters n
        where n.workspace_id = p_workspace and (n.cap_id, n.window_label, n.subject) in (
          select h.cap_id, h.window_label, h.subject from holdfast.holds h
          where h.workspace_id = p_workspace and h.spend_key = a.spend_key and h.generation = a.generation
        )
        order by n.cap_id, n.window_label, n.subject for update;
      select f.* into d
      from (
        select
          case
            when p_amount_micros > c.max_per_spend_micros then 'MAX_PER_SPEND'
            -- Written so that a figure that is missing denies.
            when (p_amount_micros - h.amount_micros <= c.limit_micros - n.committed_micros - n.held_micros)
              is not true then 'CAP_HEADROOM'
          end as rule,
          c.cap_id, h.window_label as label, c.time_zone, c.cap_window, c.limit_micros,
          coalesce(n.committed_micros, 0) as committed, coalesce(n.held_micros, 0) as held, c.currency
        from holdfast.holds h
        join holdfast.caps c on c.workspace_id = h.workspace_id and c.cap_id = h.cap_id
        left join holdfast.counters n on n.workspace_id = h.workspace_id and n.cap_id = h.cap_id
          and n.window_label = h.window_label and n.subject = h.subject
        where h.workspace_id = p_workspace and h.spend_key = a.spend_key and h.generation = a.generation
      ) f
      where f.rule is not null
      order by f.cap_id
      limit 1;
      v_rule := d.rule;
    end if;

    if v_rule is null then
      update holdfast.counters n set held_micros = n.held_micros + p_amount_micros - h.amount_micros
        from holdfast.holds h
        where h.workspace_id = p_workspace and h.spend_key = a.spend_key and h.generation = a.generation
          and n.workspace_id = h.workspace_id and n.cap_id = h.cap_id and n.window_label = h.window_label
          and n.subject = h.subject;
      update holdfast.holds h set amount_micros = p_amount_micros
        where h.workspace_id = p_workspace and h.spend_key = a.spend_key and h.generation = a.generation;
      update holdfast.authorizations t set held_micros = p_amount_micros
        where t.workspace_id = p_workspace and t.spend_key = a.spend_key and t.generation = a.generation;
    end if;
    perform holdfast.append_audit(
      p_workspace, v_now, case when v_rule is null then 'spend.increased' else 'spend.increase_denied' end,
      'vault_key', p_vault_key_id, p_trace_id,
      jsonb_build_object('previous_held_micros', a.held_micros, 'asked_micros', p_amount_micros)
        || case when d.rule is null then '{}' else jsonb_build_object(
             'cap', d.cap_id, 'window', d.label, 'limit_micros', d.limit_micros, 'committed_micros', d.committed,
             'held_micros', d.held) end
        || case when v_switch is null then '{}' else jsonb_build_object('kill_switch', v_switch) end,
      a, case when v_rule is null then 'GRANTED' else 'DENIED' end, v_rule);
  end if;

  return query
    select v_error, v_rule, d.cap_id, d.label, holdfast.window_end(d.cap_window, d.time_zone, d.label),
      d.limit_micros, d.committed, d.held, d.currency, v_switch, v_target, t
    from (select 1) as one
    left join holdfast.authorizations t
      on t.workspace_id = p_workspace and t.spend_key = a.spend_key and t.generation = a.generation;
end
$$;
