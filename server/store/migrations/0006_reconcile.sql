-- Writes down what asking the vendor has found where it settles nothing, and when to ask next. An object that is open is
-- bound, first writer wins, and followed; one that belongs to another spend changes nothing. An attempt in the middle of
-- its call is left alone. A vault key reports about its own, the server's reconciler about everything at a vendor whose
-- credential the workspace keeps.
--
-- That nothing was found counts from when the look began, and only where the look was at the account that the spend may
-- have been sent under. A service shows by its looks which account it has.
--
-- Locks: the authorization.
create function holdfast.report_reconciliation(
  p_workspace text, p_spend_key text, p_generation integer, p_actor_kind text, p_actor_id text, p_finding text,
  p_vendor_reference text, p_vendor_state text, p_note text, p_follow_for interval, p_trace_id text,
  p_look_time timestamptz, p_look_account text
) returns table (error_reason text, authorization_row holdfast.authorizations)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  v_now timestamptz;
  a holdfast.authorizations;
  v_error text;
  v_finding text := p_finding;
  v_note text := p_note;
  v_account text;
  v_counts boolean := false;
  v_next timestamptz;
  v_follow_until timestamptz;
begin
  select t.* into a from holdfast.authorizations t
    where t.workspace_id = p_workspace and t.spend_key = p_spend_key and t.generation = p_generation for update;
  v_now := holdfast.clock();
  if not found then
    v_error := 'NOT_FOUND';
  elsif p_actor_kind = 'vault_key' and a.vault_key_id <> p_actor_id then
    v_error := 'OTHER_VAULT_KEY';
    a := null;
  elsif a.state = 'COMMITTED' then
    v_error := 'ALREADY_COMMITTED';
  elsif a.state = 'VOIDED' then
    v_error := 'ALREADY_VOIDED';
  elsif a.state = 'HELD' and a.vendor_state = '' and a.hold_expire_time > v_now then
    v_error := 'STATE_NOT_ALLOWED';
  elsif p_vendor_reference <> '' and a.vendor_reference <> p_vendor_reference then
    v_error := 'ALREADY_BOUND';
  else
    begin
      if a.state = 'HELD' and holdfast.in_doubt_since(a, v_now) is not null then
        -- The clock has decided it; the sweep has not been here yet.
        perform holdfast.doubt_authorization(a, v_now);
        perform holdfast.append_audit(
          p_workspace, v_now, 'spend.in_doubt', 'server', 'sweep', p_trace_id, '{}', a, null, 'HOLD_EXPIRED');
      end if;
      if p_actor_kind = 'vault_key' then
        perform holdfast.note_vendor_account(p_workspace, a.vendor, a.vault_key_id, p_look_account, v_now);
      end if;
      if p_finding = 'ABSENT' then
        v_account := holdfast.account_in_question(a, p_look_account);
        v_counts := v_account is null and holdfast.look_counts(a, p_look_time, v_now);
      end if;
      if v_account is not null then
        v_finding := 'UNCLEAR';
        v_note := left(format(
          'nothing is at the account %s, and it may have been sent under %s: look there, and resolve it by hand; %s',
          coalesce(nullif(p_look_account, ''), 'that was looked at, which it did not tell'), v_account, p_note), 500);
      end if;
      v_next := case
        -- The second look, which proves it.
        when v_counts and a.absent_since_time is null then v_now + interval '5 minutes'
        else holdfast.next_reconciliation(coalesce(a.reconciliation_first_time, v_now), v_now)
      end;
      update holdfast.authorizations t set
          reconciliation_finding = v_finding, reconciliation_note = v_note, reconciliation_time = v_now,
          reconciliation_first_time = coalesce(a.reconciliation_first_time, v_now),
          reconciliation_count = a.reconciliation_count + 1,
          reconciliation_next_time = v_next,
          absent_since_time = case
            when v_finding = 'ABSENT' then coalesce(a.absent_since_time, case when v_counts then p_look_time end)
          end,
          look_from_time = case when v_finding = 'ABSENT' then a.look_from_time else v_now end
        where t.workspace_id = p_workspace and t.spend_key = p_spend_key and t.generation = p_generation;
      if p_vendor_reference <> '' then
        v_follow_until := v_now + p_follow_for;
        update holdfast.authorizations t set
            state = 'HELD', in_doubt_time = null, vendor_reference = p_vendor_reference,
            bind_time = coalesce(t.bind_time, v_now), vendor_state = p_vendor_state,
            -- An object that is followed already is not followed for longer than was promised.
            follow_until_time = coalesce(t.follow_until_time, v_follow_until)
          where t.workspace_id = p_workspace and t.spend_key = p_spend_key and t.generation = p_generation;
        if a.vendor_reference is null and holdfast.settles_another(a, p_vendor_reference) then
          raise unique_violation;
        end if;
      end if;
      perform holdfast.append_audit(
        p_workspace, v_now, 'spend.reconciled', p_actor_kind, p_actor_id, p_trace_id,
        jsonb_build_object(
          'finding', v_finding, 'vendor_reference', p_vendor_reference, 'vendor_state', p_vendor_state, 'note', v_note,
          'look_time', p_look_time, 'look_account', p_look_account,
          'previous_state', a.state, 'bound', p_vendor_reference <> '' and a.vendor_reference is null), a);
    exception when unique_violation then
      v_error := 'REFERENCE_BOUND_ELSEWHERE';
    end;
  end if;
  if v_error is not null then
    perform holdfast.append_refusal(
      p_workspace, v_now, 'reconcile', p_actor_kind, p_actor_id, p_trace_id, p_spend_key, p_generation, a, v_error);
  end if;
  return query
    select v_error, t from (select 1) as one
    left join holdfast.authorizations t
      on t.workspace_id = p_workspace and t.spend_key = a.spend_key and t.generation = a.generation;
end
$$;

-- When to ask the vendor again: 1, 5 and 30 minutes after the first time, then hourly. Always later than now.
create function holdfast.next_reconciliation(p_first timestamptz, p_now timestamptz) returns timestamptz
language sql immutable parallel safe
as $$
  select case
    when p_now < p_first + interval '1 minute' then p_first + interval '1 minute'
    when p_now < p_first + interval '5 minutes' then p_first + interval '5 minutes'
    when p_now < p_first + interval '30 minutes' then p_first + interval '30 minutes'
    else p_now + interval '1 hour'
  end
$$;

-- Voids on an operator's word what no attempt is in the middle of: with the bound object that was seen ended, else on the
-- reason alone. Another object than the bound one proves nothing and changes nothing.
--
-- Locks: the authorization -> counters, sorted.
create function holdfast.resolve_void(
  p_workspace text, p_spend_key text, p_generation integer, p_operator_id text, p_vendor_reference text,
  p_reason text, p_trace_id text
) returns table (error_reason text, hold_left interval, authorization_row holdfast.authorizations)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  v_now timestamptz;
  a holdfast.authorizations;
  v_error text;
  v_left interval;
begin
  select t.* into a from holdfast.authorizations t
    where t.workspace_id = p_workspace and t.spend_key = p_spend_key and t.generation = p_generation for update;
  v_now := holdfast.clock();
  if a.state = 'HELD' and a.vendor_state = '' and a.hold_expire_time > v_now then
    v_error := 'STATE_NOT_ALLOWED';
    v_left := a.hold_expire_time - v_now;
  elsif a.state in ('HELD', 'IN_DOUBT') and p_vendor_reference <> ''
    and a.vendor_reference is distinct from p_vendor_reference
  then
    v_error := 'EVIDENCE_INSUFFICIENT';
  else
    return query
      select f.error_reason, f.hold_left, f.authorization_row
      from holdfast.void_spend(
        p_workspace, p_spend_key, p_generation, 'operator', p_operator_id, '',
        case when p_vendor_reference = '' then 'OPERATOR' else 'TOMBSTONE' end, 0, false, p_vendor_reference,
        p_reason, p_trace_id, null, '') as f;
    return;
  end if;
  perform holdfast.append_refusal(
    p_workspace, v_now, 'resolve', 'operator', p_operator_id, p_trace_id, p_spend_key, p_generation, a, v_error);
  return query select v_error, v_left, a;
end
$$;

-- Closes a contradiction that was dealt with, once: the first reason stays. It goes on counting.
create function holdfast.close_contradiction(
  p_workspace text, p_contradiction_id text, p_operator_id text, p_reason text, p_trace_id text
) returns setof holdfast.contradictions
language plpgsql volatile
as $$
declare
  v_now timestamptz;
  c holdfast.contradictions;
  a holdfast.authorizations;
begin
  select k.* into c from holdfast.contradictions k
    where k.workspace_id = p_workspace and k.contradiction_id = p_contradiction_id for update;
  if not found then return; end if;
  if c.close_time is null then
    v_now := holdfast.clock();
    update holdfast.contradictions k set close_time = v_now, close_reason = p_reason
      where k.workspace_id = p_workspace and k.contradiction_id = p_contradiction_id
      returning k.* into c;
    select t.* into a from holdfast.authorizations t
      where t.workspace_id = p_workspace and t.spend_key = c.spend_key and t.generation = c.generation;
    perform holdfast.append_audit(
      p_workspace, v_now, 'contradiction.closed', 'operator', p_operator_id, p_trace_id,
      jsonb_build_object(
        'contradiction', c.contradiction_id, 'kind', c.kind, 'vendor_reference', c.vendor_reference,
        'charged_micros', c.amount_micros, 'currency', c.currency, 'note', p_reason), a);
  end if;
  return next c;
end
$$;
