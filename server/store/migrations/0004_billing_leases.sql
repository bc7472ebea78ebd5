-- Why a vault key that may not spend may not run a job either, null where it may.
create function holdfast.lease_denial(p_workspace text, p_vault_key text, p_now timestamptz) returns text
language plpgsql stable
as $$
begin
  return (
    select case
      when k.state = 'REVOKED' then 'VAULT_KEY_REVOKED'
      when k.state <> 'ACTIVE' then 'VAULT_KEY_SUSPENDED'
      when k.expire_time <= p_now then 'VAULT_KEY_EXPIRED'
    end
    from holdfast.vault_keys k
    where k.workspace_id = p_workspace and k.vault_key_id = p_vault_key
  );
end
$$;

-- Acquires a billing lease. The fencing token grows by one whenever the holder changes or the lease had run out.
--
-- Locks as a grant does: policy -> vault key (share) -> the lease. So what is acquired is acquired before a suspend or a
-- revoke has returned.
create function holdfast.acquire_billing_lease(
  p_workspace text, p_lease text, p_period text, p_holder text, p_ttl interval, p_actor_id text, p_trace_id text
) returns table (answer text, lease_row holdfast.billing_leases, remaining_ms bigint)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  v_now timestamptz;
  l holdfast.billing_leases;
  v_answer text;
begin
  perform holdfast.share_policy(p_workspace);
  perform from holdfast.vault_keys k
    where k.workspace_id = p_workspace and k.vault_key_id = p_actor_id for share;
  v_now := holdfast.clock();
  v_answer := holdfast.lease_denial(p_workspace, p_actor_id, v_now);
  if v_answer is not null then
    perform holdfast.append_audit(
      p_workspace, v_now, 'lease.acquire', 'vault_key', p_actor_id, p_trace_id,
      jsonb_build_object('lease', p_lease, 'billing_period', p_period, 'holder_id', p_holder), null, v_answer);
    return query select v_answer, null::holdfast.billing_leases, 0::bigint;
    return;
  end if;
  insert into holdfast.billing_leases (
    workspace_id, lease, billing_period, holder_id, fencing_token, expire_time, create_time
  )
  values (
    p_workspace, p_lease, p_period, p_holder, coalesce((select i.fencing_token_floor from holdfast.instance i), 0),
    '-infinity', holdfast.clock()
  )
  on conflict (workspace_id, lease, billing_period) do nothing;
  select t.* into l from holdfast.billing_leases t
    where t.workspace_id = p_workspace and t.lease = p_lease and t.billing_period = p_period for update;
  -- Read after the lock: the time to live counts from the grant, not from the beginning of a wait.
  v_now := holdfast.clock();
  if l.completed then
    v_answer := 'ALREADY_COMPLETED';
  elsif l.expire_time > v_now and l.holder_id <> p_holder then
    v_answer := 'HELD_BY_OTHER';
  else
    v_answer := 'ACQUIRED';
    update holdfast.billing_leases t set
        holder_id = p_holder, expire_time = v_now + p_ttl,
        fencing_token = l.fencing_token + case when l.expire_time > v_now then 0 else 1 end
      where t.workspace_id = p_workspace and t.lease = p_lease and t.billing_period = p_period
      returning t.* into l;
  end if;
  perform holdfast.append_audit(
    p_workspace, v_now, 'lease.acquire', 'vault_key', p_actor_id, p_trace_id,
    jsonb_build_object(
      'lease', p_lease, 'billing_period', p_period, 'holder_id', p_holder, 'fencing_token', l.fencing_token),
    null, v_answer);
  return query select v_answer, l, greatest(0, floor(extract(epoch from l.expire_time - v_now) * 1000))::bigint;
end
$$;

-- Extends a lease that has not run out; an old token or an expired lease changes nothing.
create function holdfast.renew_billing_lease(
  p_workspace text, p_lease text, p_period text, p_holder text, p_token bigint, p_ttl interval, p_actor_id text,
  p_trace_id text
) returns table (renewed boolean, lease_row holdfast.billing_leases, remaining_ms bigint)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  v_now timestamptz;
  l holdfast.billing_leases;
  v_renewed boolean;
begin
  -- Not FOR UPDATE: an extension takes nothing from a grant that the lease fences, so neither waits for the other.
  select t.* into l from holdfast.billing_leases t
    where t.workspace_id = p_workspace and t.lease = p_lease and t.billing_period = p_period for no key update;
  v_now := holdfast.clock();
  v_renewed := found and l.holder_id = p_holder and l.fencing_token = p_token and l.expire_time > v_now
    and not l.completed and holdfast.lease_denial(p_workspace, p_actor_id, v_now) is null;
  if v_renewed then
    -- Never shortened: a late heartbeat with a short time to live must not take time away.
    update holdfast.billing_leases t set expire_time = greatest(l.expire_time, v_now + p_ttl)
      where t.workspace_id = p_workspace and t.lease = p_lease and t.billing_period = p_period
      returning t.* into l;
  else
    perform holdfast.append_audit(
      p_workspace, v_now, 'lease.renew_refused', 'vault_key', p_actor_id, p_trace_id,
      jsonb_build_object(
        'lease', p_lease, 'billing_period', p_period, 'holder_id', p_holder, 'fencing_token', p_token));
  end if;
  return query
    select v_renewed, l, coalesce(greatest(0, floor(extract(epoch from l.expire_time - v_now) * 1000)), 0)::bigint;
end
$$;

-- Ends a lease. COMPLETED closes the job of that period for ever. An old token changes nothing.
create function holdfast.release_billing_lease(
  p_workspace text, p_lease text, p_period text, p_holder text, p_token bigint, p_completed boolean,
  p_actor_id text, p_trace_id text
) returns table (released boolean, lease_row holdfast.billing_leases)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  v_now timestamptz;
  l holdfast.billing_leases;
  v_released boolean;
begin
  select t.* into l from holdfast.billing_leases t
    where t.workspace_id = p_workspace and t.lease = p_lease and t.billing_period = p_period for update;
  v_now := holdfast.clock();
  v_released := found and l.holder_id = p_holder and l.fencing_token = p_token
    and (not l.completed or p_completed);
  if v_released then
    update holdfast.billing_leases t set
        expire_time = least(l.expire_time, v_now), completed = l.completed or p_completed
      where t.workspace_id = p_workspace and t.lease = p_lease and t.billing_period = p_period
      returning t.* into l;
  end if;
  perform holdfast.append_audit(
    p_workspace, v_now, 'lease.release', 'vault_key', p_actor_id, p_trace_id,
    jsonb_build_object(
      'lease', p_lease, 'billing_period', p_period, 'holder_id', p_holder, 'fencing_token', p_token,
      'completed', p_completed),
    null, case when v_released then 'RELEASED' else 'NOT_HELD' end);
  return query select v_released, l;
end
$$;

-- Opens a completed job of a period again, on an operator's word. Its spends stay what they are.
create function holdfast.reopen_billing_lease(
  p_workspace text, p_lease text, p_period text, p_operator_id text, p_reason text, p_trace_id text
) returns table (reopened boolean, lease_row holdfast.billing_leases)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  l holdfast.billing_leases;
  v_reopened boolean;
begin
  select t.* into l from holdfast.billing_leases t
    where t.workspace_id = p_workspace and t.lease = p_lease and t.billing_period = p_period for update;
  v_reopened := found and l.completed;
  if v_reopened then
    update holdfast.billing_leases t set completed = false
      where t.workspace_id = p_workspace and t.lease = p_lease and t.billing_period = p_period
      returning t.* into l;
    perform holdfast.append_audit(
      p_workspace, holdfast.clock(), 'lease.reopened', 'operator', p_operator_id, p_trace_id,
      jsonb_build_object(
        'lease', p_lease, 'billing_period', p_period, 'fencing_token', l.fencing_token, 'note', p_reason));
  end if;
  return query select v_reopened, l;
end
$$;
