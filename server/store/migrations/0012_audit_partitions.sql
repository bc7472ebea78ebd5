-- Partitions of the audit are in a schema of their own, which nobody but the owner may use: whoever is granted the tables of
-- this one, now or by default later, is granted none of them. What is detached stays there, a plain table.
do $$
begin
  -- Where it is there already, a role that may not create schemas can go on.
  if to_regnamespace('holdfast_audit') is null then
    create schema holdfast_audit;
  end if;
end
$$;

-- From which transaction to which each partition of the audit goes: they follow one another without a gap, and the last
-- has no end, so that every event has its place. Once no running transaction can add to one, its figures are read, and
-- then stand for good.
create table holdfast.audit_partitions (
  from_xid xid8 not null,
  to_xid xid8,
  -- How wide the one before it was made.
  width bigint not null,
  create_time timestamptz not null,
  create_xid xid8 not null,
  measured_blocks bigint not null default 0,
  measured boolean not null default false,
  events bigint not null default 0,
  -- Those of its events, by their own time; null where it has none.
  first_time timestamptz,
  last_time timestamptz,
  detach_time timestamptz,
  detached_by text,
  constraint audit_partitions_pkey primary key (from_xid),
  constraint audit_partitions_range_check check (from_xid < to_xid and width > 0),
  constraint audit_partitions_measured_check check (
    measured_blocks >= 0 and events >= 0 and (not measured or to_xid is not null)
    and (first_time is null) = (last_time is null) and (first_time is null) = (events = 0)
  ),
  constraint audit_partitions_detached_check check (
    (detach_time is null) = (detached_by is null) and (detach_time is null or measured)
    and length(detached_by) between 1 and 200
  )
);

create function holdfast.audit_partition_name(p_from xid8) returns text
language sql immutable parallel safe
as $$ select 'events_' || p_from::text $$;

-- Makes an empty partition. A null end is none.
create function holdfast.create_audit_partition(p_from xid8, p_to xid8, p_width bigint) returns void
language plpgsql volatile
as $$
declare
  v_name text := holdfast.audit_partition_name(p_from);
begin
  execute format(
    'create table holdfast_audit.%I partition of holdfast.audit_events for values from (%L) to (%s)',
    v_name, p_from::text, coalesce(quote_literal(p_to::text), 'maxvalue'));
  execute format('alter table holdfast_audit.%I alter column workspace_id set (n_distinct = 1)', v_name);
  execute format(
    'create trigger audit_events_append_only before update or delete or truncate on holdfast_audit.%I
      for each statement execute function holdfast.refuse_audit_change()', v_name);
  execute format('alter table holdfast_audit.%I enable always trigger audit_events_append_only', v_name);
  insert into holdfast.audit_partitions (from_xid, to_xid, width, create_time, create_xid)
    values (p_from, p_to, p_width, holdfast.clock(), pg_current_xact_id());
end
$$;

-- Sees to it that at least half a partition is ahead, and behind it the one without an end. How wide: what would have
-- lasted thirty days at the pace since the last was made, but no more than sixteen times wider or narrower than that one.
-- 'EXTENDED', or null where nothing is to be done; 'BUSY' where the audit could not be had in time, so that nobody waits
-- long for this; 'LARGE' where events have come into the one without an end and reading them, which an end demands
-- and nobody can write meanwhile, is more than p_bytes_max.
--
-- With the rights of the owner, which the servers need not have: it takes no text, and can do nothing else.
-- Locks: the last row of audit_partitions -> the audit.
create function holdfast.extend_audit(p_bytes_max bigint default 67108864) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '100ms'
as $$
declare
  v_last holdfast.audit_partitions;
  v_from bigint;
  v_next bigint := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
  v_elapsed numeric;
  v_width bigint;
  v_to xid8;
  v_name text;
  v_empty boolean;
begin
  select p.* into v_last from holdfast.audit_partitions p where p.to_xid is null;
  v_from := v_last.from_xid::text::bigint;
  if v_last is null or v_from - v_next >= v_last.width / 2 then
    return null;
  end if;
  v_name := holdfast.audit_partition_name(v_last.from_xid);
  begin
    perform from holdfast.audit_partitions p where p.from_xid = v_last.from_xid and p.to_xid is null for update;
    if not found then
      return null;
    end if;
    lock table holdfast.audit_events in access exclusive mode;
    execute format('select not exists (select from holdfast_audit.%I)', v_name) into v_empty;
    if not v_empty and pg_table_size(format('holdfast_audit.%I', v_name)::regclass) > p_bytes_max then
      return 'LARGE';
    end if;
    v_elapsed := extract(epoch from holdfast.clock() - v_last.create_time);
    v_width := case when v_elapsed > 0
      then least((v_next - v_last.create_xid::text::bigint) / v_elapsed * 2592000, 2147483648)
      else v_last.width end;
    v_width := least(greatest(v_width, v_last.width / 16, 65536), v_last.width * 16, 2147483648);
    -- Read again: what was written while this waited may be of a later transaction.
    v_to := (greatest(v_from, pg_snapshot_xmax(pg_current_snapshot())::text::bigint) + v_width)::text::xid8;
    if v_empty then
      execute format('drop table holdfast_audit.%I', v_name);
      delete from holdfast.audit_partitions p where p.from_xid = v_last.from_xid;
      perform holdfast.create_audit_partition(v_last.from_xid, v_to, v_last.width);
    else
      execute format('alter table holdfast.audit_events detach partition holdfast_audit.%I', v_name);
      execute format(
        'alter table holdfast.audit_events attach partition holdfast_audit.%I for values from (%L) to (%L)',
        v_name, v_last.from_xid::text, v_to::text);
      update holdfast.audit_partitions p set to_xid = v_to where p.from_xid = v_last.from_xid;
    end if;
    perform holdfast.create_audit_partition(v_to, null, v_width);
  exception when lock_not_available or deadlock_detected then
    return 'BUSY';
  end;
  return 'EXTENDED';
end
$$;

-- Reads so many blocks of the oldest partition that nothing can be added to any more and whose figures are not complete.
-- False where there is none. Each server may, at any time: who comes second finds nothing to do. With the rights of the
-- owner, since nobody else may read a partition by itself.
create function holdfast.measure_audit(p_blocks integer) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_part holdfast.audit_partitions;
  v_name text;
  v_events bigint; v_first timestamptz; v_last timestamptz;
  v_end bigint; v_blocks bigint;
begin
  if not exists (
    select from holdfast.audit_partitions p
    where not p.measured and p.to_xid <= pg_snapshot_xmin(pg_current_snapshot())
  ) then
    return false;
  end if;
  select p.* into v_part from holdfast.audit_partitions p
    where not p.measured and p.to_xid <= pg_snapshot_xmin(pg_current_snapshot())
    order by p.from_xid limit 1 for update skip locked;
  if not found then
    return false;
  end if;
  v_name := holdfast.audit_partition_name(v_part.from_xid);
  v_end := v_part.measured_blocks + greatest(p_blocks, 1);
  execute format(
    'select count(*), min(e.event_time), max(e.event_time) from holdfast_audit.%I e where e.ctid >= $1 and e.ctid < $2',
    v_name)
    into v_events, v_first, v_last
    using format('(%s,0)', v_part.measured_blocks)::tid, format('(%s,0)', v_end)::tid;
  v_blocks := pg_relation_size(format('holdfast_audit.%I', v_name)::regclass) / current_setting('block_size')::bigint;
  update holdfast.audit_partitions p set
      measured_blocks = v_end, events = p.events + v_events, first_time = least(p.first_time, v_first),
      last_time = greatest(p.last_time, v_last),
      measured = v_end >= v_blocks
    where p.from_xid = v_part.from_xid;
  return true;
end
$$;

-- The first transaction whose events can be at or after an instant: those before it are in partitions that were over by
-- then. In another cluster than the one that they were measured in the figures say nothing.
create function holdfast.audit_since(p_since timestamptz) returns xid8
language sql stable parallel safe
as $$
  select coalesce(min(p.from_xid), '0'::xid8) from holdfast.audit_partitions p
  where p.detach_time is null
    and (p.measured and p.to_xid <= pg_snapshot_xmin(pg_current_snapshot())
      and (p.last_time is null or p.last_time < p_since)) is not true
$$;

-- Says of the oldest partition that is still part of the audit that it is detached, and tells every workspace who did it.
-- What remains to be done is its owner's: no function can do it without making writers wait. Not detached is what a
-- transaction may still add to ('OPEN'), what has not been read ('UNMEASURED'), what has an event at or after p_before
-- ('NOT_BEFORE') or is to be kept ('KEPT'), and what counted denials still refer to ('FOLDED').
create function holdfast.detach_audit(p_before timestamptz, p_keep interval, p_by text)
returns table (from_xid xid8, problem text)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  v_part holdfast.audit_partitions;
  v_now timestamptz := holdfast.clock();
  w record;
begin
  select p.* into v_part from holdfast.audit_partitions p where p.detach_time is null order by p.from_xid limit 1
    for update;
  from_xid := v_part.from_xid;
  problem := case
    when v_part.to_xid is null or v_part.to_xid > pg_snapshot_xmin(pg_current_snapshot()) then 'OPEN'
    when not v_part.measured then 'UNMEASURED'
    when v_part.last_time >= p_before then 'NOT_BEFORE'
    when coalesce(v_part.last_time, v_part.create_time) > v_now - p_keep then 'KEPT'
  end;
  if problem is not null then
    return next;
    return;
  end if;
  for w in select t.workspace_id from holdfast.workspaces t order by t.workspace_id loop
    if exists (
      select from holdfast.audit_folds f
      where f.workspace_id = w.workspace_id
        and (f.xid < v_part.to_xid or f.fold_time <= v_part.last_time + interval '1 minute')
    ) then
      problem := 'FOLDED';
      return next;
      return;
    end if;
  end loop;
  update holdfast.audit_partitions p set detach_time = v_now, detached_by = p_by where p.from_xid = v_part.from_xid;
  for w in select t.workspace_id from holdfast.workspaces t order by t.workspace_id loop
    perform holdfast.append_audit(
      w.workspace_id, v_now, 'audit.detached', 'server', 'detach', '',
      jsonb_build_object(
        'detached_by', p_by, 'database_user', session_user,
        'table', 'holdfast_audit.' || holdfast.audit_partition_name(v_part.from_xid),
        'events_of_all_workspaces', v_part.events, 'first_time', v_part.first_time, 'last_time', v_part.last_time));
  end loop;
  return next;
end
$$;

-- At first a quarter of a million transactions, and what comes after them: little where much happens, and much where little
-- does.
do $$
declare
  v_to xid8 := (pg_current_xact_id()::text::bigint + 262144)::text::xid8;
begin
  perform holdfast.create_audit_partition('0', v_to, 262144);
  perform holdfast.create_audit_partition(v_to, null, 262144);
end
$$;
