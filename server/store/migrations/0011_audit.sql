-- The audit grows and never changes. No trigger of the hot path: nothing here inserts. It fires whoever it is, the owner
-- and a session with session_replication_role = replica included, until somebody disables it. It hangs on the whole and
-- on each partition, since a statement may name either.
create function holdfast.refuse_audit_change() returns trigger
language plpgsql
as $$
begin
  raise exception 'The audit is append-only; % of its events is refused.', lower(tg_op) using errcode = 'HF003';
end
$$;

create trigger audit_events_append_only before update or delete or truncate on holdfast.audit_events
  for each statement execute function holdfast.refuse_audit_change();

alter table holdfast.audit_events enable always trigger audit_events_append_only;

-- Where the latest event of a fold is found.
create index audit_events_fold_idx on holdfast.audit_events (workspace_id, fold, event_time) where fold is not null;

-- Denials and refused calls that fold into an event that is there: how many, by the transaction that decided them. Written
-- in that transaction, so none is lost, and each in a row of its own, so nobody waits for another. The sweep makes an
-- event of them.
create table holdfast.audit_folds (
  workspace_id text not null,
  fold bytea not null,
  xid xid8 not null,
  fold_time timestamptz not null,
  count bigint not null,
  constraint audit_folds_pkey primary key (workspace_id, fold, xid),
  constraint audit_folds_count_check check (count >= 1 and length(fold) = 32)
);

-- What identical events have in common.
create function holdfast.fold_of(p_identity jsonb) returns bytea
language sql immutable parallel safe
as $$ select sha256(convert_to(p_identity::text, 'UTF8')) $$;

-- What an event of the second before cannot be older than: no database has a hundred thousand transactions that write in a
-- second; and if one had, there would be one event more. It keeps folding to the latest partitions.
create function holdfast.recent_xid(p_xid xid8) returns xid8
language sql immutable parallel safe
as $$ select greatest(p_xid::text::numeric - 100000, 0)::text::xid8 $$;

-- For how many each of the events is to stand, by its place: 0 where an earlier one of the same fold stands for it, here
-- or within the second before. Null where it does not fold.
create function holdfast.fold_events(p_workspace text, p_now timestamptz, p_folds bytea[])
returns table (ord integer, count bigint)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  v_since xid8 := holdfast.recent_xid(pg_current_xact_id());
  v_until xid8 := greatest(pg_current_xact_id(), pg_snapshot_xmax(pg_current_snapshot()));
begin
  return query
    with given as materialized (
      select k.fold, k.ord::integer as ord, row_number() over w as nth, count(*) over (partition by k.fold) as count
      from unnest(p_folds) with ordinality as k (fold, ord)
      window w as (partition by k.fold order by k.ord)
    ), known as materialized (
      select g.fold, g.count, exists (
          select from holdfast.audit_events e
          where e.workspace_id = p_workspace and e.fold = g.fold and e.xid >= v_since and e.xid <= v_until
            and e.event_time > p_now - interval '1 second' and e.event_time < p_now + interval '1 second'
        ) as is_known
      from given g
      where g.nth = 1 and g.fold is not null
    ), added as (
      insert into holdfast.audit_folds as f (workspace_id, fold, xid, fold_time, count)
      select p_workspace, k.fold, pg_current_xact_id(), p_now, k.count from known k where k.is_known
      on conflict (workspace_id, fold, xid) do update set count = f.count + excluded.count
    )
    select g.ord, case when g.fold is not null then case when g.nth = 1 and not k.is_known then g.count else 0 end end
    from given g
    left join known k on k.fold = g.fold
    order by g.ord;
end
$$;

-- Appends one event, or lets it fold into the one that is there of the same identity. Null folds into none.
create function holdfast.append_folding(
  p_identity jsonb, p_workspace text, p_time timestamptz, p_kind text, p_actor_kind text, p_actor_id text,
  p_trace_id text, p_detail jsonb, p_authorization holdfast.authorizations, p_disposition text, p_reason text
) returns void
language plpgsql volatile
as $$
declare
  v_fold bytea := holdfast.fold_of(p_identity);
begin
  if v_fold is null or (select f.count from holdfast.fold_events(p_workspace, p_time, array[v_fold]) f) > 0 then
    perform holdfast.append_audit(
      p_workspace, p_time, p_kind, p_actor_kind, p_actor_id, p_trace_id, p_detail, p_authorization, p_disposition,
      p_reason, v_fold);
  end if;
end
$$;

-- Makes one event per fold of what was folded more than a second ago, like the event that it was folded into, and says
-- how many rows that were. Several servers may do it at once: each row becomes part of exactly one event.
create function holdfast.unfold_audit(p_workspace text, p_limit integer) returns integer
language plpgsql volatile
as $$
declare
  v_now timestamptz := holdfast.clock();
  v_rows integer := 0;
  v_n integer;
  v_since xid8; v_until xid8;
  r record;
begin
  for r in
    with taken as materialized (
      select f.fold, f.xid from holdfast.audit_folds f
      where f.workspace_id = p_workspace
        and f.fold_time not between v_now - interval '1 second' and v_now + interval '1 second'
      order by f.fold, f.xid
      limit p_limit
      for update skip locked
    ), gone as (
      delete from holdfast.audit_folds f using taken t
      where f.workspace_id = p_workspace and f.fold = t.fold and f.xid = t.xid
      returning f.fold, f.xid, f.fold_time, f.count
    )
    select g.fold, min(g.xid) as xid, sum(g.count)::bigint as count, min(g.fold_time) as first_time,
      max(g.fold_time) as last_time, count(*)::integer as rows
    from gone g
    group by g.fold
    order by g.fold
  loop
    v_rows := v_rows + r.rows;
    v_n := holdfast.take_audit_numbers(1);
    v_since := holdfast.recent_xid(r.xid);
    -- Not before: whoever folded may have been seen only by the statement above.
    v_until := greatest(pg_current_xact_id(), pg_snapshot_xmax(pg_current_snapshot()));
    insert into holdfast.audit_events (
      workspace_id, xid, n, event_time, kind, actor_kind, actor_id, spend_key, generation, customer_id, billing_period,
      purpose, currency, amount_micros, disposition, reason, detail, vault_key_id, fold, count
    )
    select p_workspace, pg_current_xact_id(), v_n, r.last_time, e.kind, e.actor_kind, e.actor_id, e.spend_key,
      e.generation, e.customer_id, e.billing_period, e.purpose, e.currency, e.amount_micros, e.disposition, e.reason,
      e.detail || jsonb_build_object(
        'first_time', to_char(r.first_time at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
        'last_time', to_char(r.last_time at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')),
      e.vault_key_id, e.fold, r.count
    from (
      select o.* from holdfast.audit_events o
      where o.workspace_id = p_workspace and o.fold = r.fold and o.xid >= v_since and o.xid <= v_until
      order by o.event_time desc
      limit 1
    ) e;
  end loop;
  return v_rows;
end
$$;

-- Where the requests of a spend are found.
create index proxied_requests_spend_idx
  on holdfast.proxied_requests (workspace_id, customer_id, billing_period, purpose) where customer_id is not null;
