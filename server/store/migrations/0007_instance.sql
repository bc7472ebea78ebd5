-- Which database this is. A restored backup, a promoted replica and a copy carry this row with them, and differ from
-- what it says: then acknowledged grants may be missing here, and nothing is granted until somebody has recovered.
-- One row for the whole database, so not one of a workspace. Where it is missing nothing is granted either.
create table holdfast.instance (
  singleton boolean not null default true,
  instance_id text not null,
  -- The cluster; its timeline, which every promotion and every restore from an archive changes; the database in it.
  system_identifier bigint not null,
  timeline integer not null,
  database_oid bigint not null,
  -- What a server has noticed that the statement of a grant does not ask for.
  suspicion text,
  recovery_count integer not null default 0,
  -- Tokens of leases that were lost lie below.
  fencing_token_floor bigint not null default 0,
  create_time timestamptz not null,
  recover_time timestamptz,
  constraint instance_pkey primary key (singleton),
  constraint instance_singleton_check check (singleton),
  constraint instance_id_check check (instance_id ~ '^[0-9a-f]{32}$'),
  constraint instance_suspicion_check check (suspicion in ('LOG_WENT_BACK', 'OTHER_CLUSTER', 'OTHER_DATABASE')),
  constraint instance_counts_check check (recovery_count >= 0 and fencing_token_floor >= 0)
);

-- What was open when a database was recovered and had no vendor object that was bound. Such a row proves nothing about
-- what was sent: a bind, a takeover or a whole generation may be missing. So it is never sent again; the settlement
-- that it was granted with is kept here.
create table holdfast.recovered_authorizations (
  workspace_id text not null,
  spend_key text not null,
  generation integer not null,
  settlement text not null,
  recover_time timestamptz not null,
  constraint recovered_authorizations_pkey primary key (workspace_id, spend_key, generation),
  constraint recovered_authorizations_authorization_fkey foreign key (workspace_id, spend_key, generation)
    references holdfast.authorizations (workspace_id, spend_key, generation),
  constraint recovered_authorizations_settlement_check check (settlement in ('TWO_STEP', 'RESEND_SAFE', 'SEND_ONCE'))
);

-- The timeline that is being written to. The one in the control file is that of the last checkpoint, which after a
-- promotion may be minutes old. Fails on a replica.
create function holdfast.current_timeline() returns integer
language sql volatile
as $$ select ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer $$;

-- Null where this is the database that was granted from before; else what differs.
create function holdfast.instance_problem() returns text
language plpgsql volatile
as $$
begin
  return (
    select case
      when i.instance_id is null then 'MISSING'
      when i.suspicion is not null then i.suspicion
      when i.system_identifier <> c.system_identifier then 'OTHER_CLUSTER'
      when i.timeline <> holdfast.current_timeline() then 'TIMELINE'
      when i.database_oid <> (select d.oid from pg_catalog.pg_database d where d.datname = current_catalog)::bigint
        then 'OTHER_DATABASE'
    end
    from pg_control_system() c left join holdfast.instance i on true
  );
end
$$;

-- Hands its argument on where something may be granted. It stands in the arguments of every function that grants, so
-- that it is asked on the very connection and in the very statement of the grant. The control file costs five times as
-- much as all of this; what is in it a server compares on every new connection, and puts down as a suspicion.
create function holdfast.where_granting(p_value text) returns text
language plpgsql volatile
as $$
declare
  i holdfast.instance;
  v_problem text;
begin
  select t.* into i from holdfast.instance t;
  v_problem := case
    when i.instance_id is null then 'MISSING'
    when i.suspicion is not null then i.suspicion
    when i.timeline <> holdfast.current_timeline() then 'TIMELINE'
  end;
  if v_problem is not null then
    raise exception 'nothing is granted: %', v_problem using errcode = 'HF001';
  end if;
  return p_value;
end
$$;

-- The requests of a batch as they are to be judged, with their spends locked. What was recovered unbound is stored as what
-- is sent once, and a repeat of it learns that it is in doubt; it is no other request than the first.
create function holdfast.requests_to_judge(p_workspace text, p_requests holdfast.authorize_request[])
returns holdfast.authorize_request[]
language plpgsql volatile
as $$
declare
  x holdfast.authorize_request;
begin
  if exists (select from holdfast.recovered_authorizations r where r.workspace_id = p_workspace) then
    for i in 1 .. cardinality(p_requests) loop
      x := p_requests[i];
      if exists (
        select from holdfast.recovered_authorizations r
        join holdfast.authorizations t on t.workspace_id = p_workspace and t.spend_key = r.spend_key
          and t.generation = r.generation and t.state <> 'VOIDED'
        where r.workspace_id = p_workspace and r.spend_key = x.spend_key
      ) then
        x.settlement := 'SEND_ONCE';
        x.resend_safe_for := null;
        p_requests[i] := x;
      end if;
    end loop;
  end if;
  return p_requests;
end
$$;

-- Writes the row where nothing was ever granted; a missing row is a problem everywhere else.
create function holdfast.register_instance() returns void
language sql volatile
as $$
  insert into holdfast.instance (instance_id, system_identifier, timeline, database_oid, create_time)
  select replace(gen_random_uuid()::text, '-', ''), c.system_identifier, holdfast.current_timeline(), d.oid,
    holdfast.clock()
  from pg_control_system() c
  join pg_catalog.pg_database d on d.datname = current_catalog
  where not exists (select from holdfast.authorizations) and not exists (select from holdfast.billing_leases)
  on conflict (singleton) do nothing
$$;

-- Takes a database into use that may have lost what was acknowledged. Of each workspace, with its grants held back:
-- every billing lease ends, and its next token is above all that were ever handed out; everything open is in doubt and
-- keeps its headroom. That goes for what is followed too: what the vendor was seen to do was seen before the loss, and
-- while it is followed nobody asks again. What is bound can still be continued, since the object itself says what it
-- has done. What is not bound is neither sent again nor void by its own row, because both rest on that nothing is
-- missing.
--
-- Does nothing where there is no problem, unless forced. Done twice, the second time changes nothing that is open.
-- Locks: the instance -> workspaces -> leases -> authorizations, each sorted.
create function holdfast.recover(p_force boolean)
returns table (
  problem text, recovered boolean, workspaces bigint, leases bigint, held bigint, open bigint, oldest_grant_time timestamptz,
  newest_grant_time timestamptz, in_doubt bigint
)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  v_problem text;
  v_now timestamptz;
  v_floor bigint;
  w record;
  v_counter record;
  l holdfast.billing_leases;
  a holdfast.authorizations;
  v_unbound boolean;
  v_leases bigint; v_held bigint; v_changed bigint; v_open bigint;
begin
  -- One at a time. Grants read the row meanwhile.
  lock table holdfast.instance in exclusive mode;
  v_problem := holdfast.instance_problem();
  problem := v_problem; recovered := false; workspaces := 0; leases := 0; held := 0; open := 0; in_doubt := 0;
  if v_problem is null and not p_force then
    return next;
    return;
  end if;

  -- One by one: each has its shard.
  for w in select t.workspace_id from holdfast.workspaces t order by t.workspace_id loop
    perform from holdfast.workspaces t where t.workspace_id = w.workspace_id for update;
  end loop;
  v_now := holdfast.clock();
  -- A token grows by one per grant, so no lease that was lost can have reached the microseconds since 1970.
  v_floor := (extract(epoch from v_now) * 1000000)::bigint;
  for w in select t.workspace_id from holdfast.workspaces t order by t.workspace_id loop
    v_leases := 0; v_held := 0; v_changed := 0; v_open := 0;
    if (
      select e.xid >= pg_current_xact_id() from holdfast.audit_events e
      where e.workspace_id = w.workspace_id order by e.xid desc, e.n desc limit 1
    ) then
      raise exception 'the audit log is ahead of this cluster' using errcode = 'HF002';
    end if;
    -- No unique index sees to it where rows are loaded: of two the figures of one would be forgotten.
    select k.cap_id, k.window_label, k.subject into v_counter
      from (
        select true as is_key, c.cap_id, c.window_label, c.subject from holdfast.counter_keys c
        where c.workspace_id = w.workspace_id
        union all
        select false, n.cap_id, n.window_label, n.subject from holdfast.counters n
        where n.workspace_id = w.workspace_id
      ) k
      group by k.cap_id, k.window_label, k.subject
      having count(*) <> 2 or count(*) filter (where k.is_key) <> 1
      order by k.cap_id, k.window_label, k.subject limit 1;
    if found then
      raise exception 'workspace %, cap %, window "%", customer "%"', w.workspace_id, v_counter.cap_id,
        v_counter.window_label, v_counter.subject using errcode = 'HF004';
    end if;

    for l in
      select t.* from holdfast.billing_leases t where t.workspace_id = w.workspace_id
      order by t.lease, t.billing_period for update
    loop
      update holdfast.billing_leases t set
          expire_time = least(l.expire_time, v_now), fencing_token = greatest(l.fencing_token, v_floor)
        where t.workspace_id = w.workspace_id and t.lease = l.lease and t.billing_period = l.billing_period;
      continue when l.completed or l.expire_time <= v_now;
      v_leases := v_leases + 1;
      perform holdfast.append_audit(
        w.workspace_id, v_now, 'lease.recovered', 'server', 'recover', '',
        jsonb_build_object(
          'lease', l.lease, 'billing_period', l.billing_period, 'holder_id', l.holder_id,
          'fencing_token', l.fencing_token), null, 'EXPIRED');
    end loop;

    for a in
      select t.* from holdfast.authorizations t
      where t.workspace_id = w.workspace_id and t.state in ('HELD', 'IN_DOUBT')
      order by t.generation, t.spend_key for update
    loop
      v_open := v_open + 1;
      oldest_grant_time := least(oldest_grant_time, a.grant_time);
      v_unbound := a.vendor_reference is null and not exists (
        select from holdfast.recovered_authorizations r
        where r.workspace_id = w.workspace_id and r.spend_key = a.spend_key and r.generation = a.generation
      );
      continue when a.state = 'IN_DOUBT' and a.vendor_state = '' and not v_unbound;
      if a.state = 'HELD' then
        v_held := v_held + 1;
      end if;
      v_changed := v_changed + 1;
      perform holdfast.doubt_authorization(a, v_now);
      if v_unbound then
        insert into holdfast.recovered_authorizations (workspace_id, spend_key, generation, settlement, recover_time)
          values (w.workspace_id, a.spend_key, a.generation, a.settlement, v_now);
        update holdfast.authorizations t set
            settlement = 'SEND_ONCE', resend_safe_for = null,
            -- A takeover that was lost may have been told that it holds for as long as a hold can be.
            latest_hold_expire_time = greatest(a.latest_hold_expire_time, v_now + interval '24 hours')
          where t.workspace_id = w.workspace_id and t.spend_key = a.spend_key and t.generation = a.generation;
      end if;
      -- What was told or seen before the loss proves nothing after it.
      update holdfast.authorizations t set
          told_may_have_been_sent = true, absent_since_time = null, look_from_time = v_now
        where t.workspace_id = w.workspace_id and t.spend_key = a.spend_key and t.generation = a.generation;
      perform holdfast.append_audit(
        w.workspace_id, v_now, 'spend.in_doubt', 'server', 'recover', '',
        jsonb_build_object('previous_state', a.state, 'settlement', a.settlement, 'bound', not a.vendor_reference is null),
        a, null, 'RECOVERED');
    end loop;

    perform holdfast.append_audit(
      w.workspace_id, v_now, 'instance.recovered', 'server', 'recover', '',
      jsonb_build_object(
        'problem', v_problem, 'timeline', holdfast.current_timeline(), 'leases_expired', v_leases, 'held', v_held,
        'authorizations_changed', v_changed, 'fencing_token_floor', v_floor));
    workspaces := workspaces + 1; leases := leases + v_leases; held := held + v_held; open := open + v_open;
    in_doubt := in_doubt + v_changed;
    newest_grant_time := greatest(newest_grant_time, (
      select t.grant_time from holdfast.authorizations t where t.workspace_id = w.workspace_id
      order by t.grant_time desc limit 1
    ));
  end loop;

  insert into holdfast.instance as i (
    instance_id, system_identifier, timeline, database_oid, recovery_count, fencing_token_floor, create_time, recover_time
  )
  select replace(gen_random_uuid()::text, '-', ''), c.system_identifier, holdfast.current_timeline(), d.oid, 1, v_floor,
    v_now, v_now
  from pg_control_system() c
  join pg_catalog.pg_database d on d.datname = current_catalog
  on conflict (singleton) do update set
    system_identifier = excluded.system_identifier, timeline = excluded.timeline, database_oid = excluded.database_oid,
    suspicion = null, recovery_count = i.recovery_count + 1, fencing_token_floor = excluded.fencing_token_floor,
    recover_time = excluded.recover_time;
  recovered := true;
  return next;
end
$$;

-- A database that was in use before it had this row is taken as it is: what came before it left no mark.
insert into holdfast.instance (instance_id, system_identifier, timeline, database_oid, create_time)
  select replace(gen_random_uuid()::text, '-', ''), c.system_identifier, holdfast.current_timeline(), d.oid,
    holdfast.clock()
  from pg_control_system() c
  join pg_catalog.pg_database d on d.datname = current_catalog
  where exists (select from holdfast.authorizations) or exists (select from holdfast.billing_leases);
