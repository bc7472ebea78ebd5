-- Makes a Holdfast database a sharded one: everything of one workspace on one shard. Run it with psql on the coordinator, as
-- the owner of the schema, after `holdfast migrate` and with grants held back; and again after every later migration. What
-- was done before is left as it is, and where something fails nothing is done.
\set ON_ERROR_STOP on

create extension if not exists citus;

begin;
-- Functions cannot be sent to the nodes over connections that tables were sent over side by side.
set local citus.multi_shard_modify_mode to 'sequential';

-- Refused on distributed tables. What keeps the audit as it is from here on is a role without the right to change it.
do $$
declare
  r regclass;
begin
  for r in
    select t.tgrelid from pg_trigger t join pg_class c on c.oid = t.tgrelid
    where t.tgname = 'audit_events_append_only'
      and c.relnamespace in ('holdfast'::regnamespace, 'holdfast_audit'::regnamespace)
  loop
    execute format('drop trigger audit_events_append_only on %s', r);
  end loop;
end
$$;

-- Each node counts its own transactions, so no boundary is right for all of them: the audit keeps the partitions that it
-- has, and no more are made. Without a word of them nothing is.
delete from holdfast.audit_partitions;

-- A sharded statement is planned once its workspace is known; a plan for any workspace is refused there.
alter function holdfast.authorize_batch(text, jsonb) reset plan_cache_mode;
alter function holdfast.commit_batch(text, jsonb) reset plan_cache_mode;
alter function holdfast.make_counters(text, text[], text[], text[]) reset plan_cache_mode;
alter function holdfast.lock_counters(text, text[], text[], text[]) reset plan_cache_mode;
alter function holdfast.move_counters(text, text[], text[], text[], numeric[], numeric[], bigint[], bigint[])
  reset plan_cache_mode;

-- Of the whole database, or with a key that holds across workspaces: every node has them whole.
do $$
declare
  t text;
begin
  foreach t in array array[
    'migrations',
    'instance',
    'audit_partitions',
    'vendor_accounts'
  ] loop
    if not exists (select from pg_dist_partition p where p.logicalrelid = format('holdfast.%I', t)::regclass) then
      perform create_reference_table(format('holdfast.%I', t)::regclass);
    end if;
  end loop;
end
$$;

-- Of one workspace, all in one group: its rows are on one node, and foreign keys and joins stay there. What a foreign key
-- leads to comes first.
do $$
declare
  t text;
begin
  foreach t in array array[
    'workspaces',
    'policy_gates',
    'operators',
    'retired_operator_secrets',
    'vault_keys',
    'vault_key_uses',
    'caps',
    'counter_keys',
    'counters',
    'authorizations',
    'holds',
    'adjustments',
    'vendor_charges',
    'contradictions',
    'contradiction_counts',
    'billing_leases',
    'kill_switches',
    'recovered_authorizations',
    'vendor_credentials',
    'vendor_account_spans',
    'reconciler_claims',
    'reconciliation_runs',
    'reconciliation_differences',
    'reconciliation_matches',
    'proxied_requests',
    'vendor_objects',
    'audit_events',
    'audit_folds'
  ] loop
    if not exists (select from pg_dist_partition p where p.logicalrelid = format('holdfast.%I', t)::regclass) then
      perform create_distributed_table(
        format('holdfast.%I', t)::regclass, 'workspace_id',
        colocate_with => case t when 'workspaces' then 'none' else 'holdfast.workspaces' end);
    end if;
  end loop;
end
$$;

-- Called by others and by statements: on every node, and never sent anywhere by themselves.
do $$
declare
  f text;
begin
  foreach f in array array[
    'holdfast.clock()',
    'holdfast.idempotency_key(text, text, text, integer)',
    'holdfast.contradiction_id(text, text, text, text, text, integer)',
    'holdfast.fold_of(jsonb)',
    'holdfast.recent_xid(xid8)',
    'holdfast.take_audit_numbers(integer)',
    'holdfast.audit_since(timestamptz)',
    'holdfast.resolution_detail(text)',
    'holdfast.endpoint_allowed(text[], text)',
    'holdfast.is_same_account(text, text)',
    'holdfast.key_denial(holdfast.vault_keys, timestamptz, text, text, text, text, text, text, bigint)',
    'holdfast.hold_end(holdfast.authorizations)',
    'holdfast.in_doubt_since(holdfast.authorizations, timestamptz)',
    'holdfast.send_end_time(holdfast.authorizations)',
    'holdfast.quarantine_end_time(holdfast.authorizations)',
    'holdfast.look_counts(holdfast.authorizations, timestamptz, timestamptz)',
    'holdfast.absence_proven(holdfast.authorizations, timestamptz, timestamptz)',
    'holdfast.account_in_question(holdfast.authorizations, text)',
    'holdfast.next_reconciliation(timestamptz, timestamptz)',
    'holdfast.day_of_month(timestamp, integer)',
    'holdfast.first_instant(timestamp, text)',
    'holdfast.window_local_start(holdfast.caps, text, integer)',
    'holdfast.calendar_label(holdfast.caps, timestamptz)',
    'holdfast.window_label(holdfast.caps, text, timestamptz)',
    'holdfast.window_start(holdfast.caps, text)',
    'holdfast.window_end(holdfast.caps, text)',
    'holdfast.cap_figures(text, text, text, bigint, numeric, numeric)',
    'holdfast.share_policy(text)',
    'holdfast.make_counters(text, text[], text[], text[])',
    'holdfast.lock_counters(text, text[], text[], text[])',
    'holdfast.move_counters(text, text[], text[], text[], numeric[], numeric[], bigint[], bigint[])',
    'holdfast.actor_in_force(text, text, text)',
    'holdfast.engaged_kill_switch(text, text, text)',
    'holdfast.lease_denial(text, text, timestamptz)',
    'holdfast.matching_caps(text, holdfast.authorize_request[], text[], timestamptz)',
    'holdfast.requests_to_judge(text, holdfast.authorize_request[])',
    'holdfast.commit_all(text, timestamptz, holdfast.commit_request[])',
    'holdfast.fold_events(text, timestamptz, bytea[])',
    'holdfast.append_folding(jsonb, text, timestamptz, text, text, text, text, jsonb, holdfast.authorizations, text, text)',
    'holdfast.append_refusal(text, timestamptz, text, text, text, text, text, integer, holdfast.authorizations, text)',
    'holdfast.settles_another(holdfast.authorizations, text)',
    'holdfast.doubt_authorization(holdfast.authorizations, timestamptz)',
    'holdfast.void_authorization(holdfast.authorizations, timestamptz, text, text, text, text, text)',
    -- Asks which database this is, which only the coordinator can answer; so it runs there.
    'holdfast.sweep_expired(text, integer)'
  ] loop
    perform create_distributed_function(f::regprocedure);
  end loop;
end
$$;

-- Called by the servers, of one workspace: run whole on the node that has it. The types in their arguments and answers
-- come along.
do $$
declare
  f text;
begin
  foreach f in array array[
    'holdfast.authorize_batch(text, jsonb)',
    'holdfast.increase_hold(text, text, integer, text, bigint, text, text, text, text, text, bigint, text)',
    'holdfast.commit_batch(text, jsonb)',
    'holdfast.void_spend(text, text, integer, text, text, text, text, integer, boolean, text, text, text, timestamptz, text)',
    'holdfast.report_unknown(text, text, integer, text, text, text, text)',
    'holdfast.bind_vendor_reference(text, text, integer, text, text, text, text, interval, text)',
    'holdfast.acquire_billing_lease(text, text, text, text, interval, text, text)',
    'holdfast.renew_billing_lease(text, text, text, text, bigint, interval, text, text)',
    'holdfast.release_billing_lease(text, text, text, text, bigint, boolean, text, text)',
    'holdfast.reopen_billing_lease(text, text, text, text, text, text)',
    'holdfast.report_reconciliation(text, text, integer, text, text, text, text, text, text, interval, text, timestamptz, text)',
    'holdfast.resolve_void(text, text, integer, text, text, text, text)',
    'holdfast.close_contradiction(text, text, text, text, text)',
    'holdfast.note_vendor_account(text, text, text, text, timestamptz)',
    'holdfast.claim_vendor(text, text, text, interval)',
    'holdfast.release_vendor(text, text, text, boolean, interval)',
    'holdfast.advance_reconciliation_run(text, text, jsonb, jsonb, text, text, jsonb, jsonb, jsonb)',
    'holdfast.claim_proxied_request(text, text, bytea, text, bytea, bytea, text, text, text, text, boolean)',
    'holdfast.open_proxied_request(text, text, text)',
    'holdfast.proxy_key_state(text, text, text, text)',
    'holdfast.record_proxy_events(text, jsonb)',
    'holdfast.append_audit(text, timestamptz, text, text, text, text, jsonb, holdfast.authorizations, text, text, bytea, bigint)',
    'holdfast.unfold_audit(text, integer)'
  ] loop
    perform create_distributed_function(
      f::regprocedure, distribution_arg_name => 'p_workspace', colocate_with => 'holdfast.workspaces');
  end loop;
end
$$;

-- What a newer schema has and this file does not know would stay behind on the coordinator.
do $$
declare
  v_forgotten text;
begin
  select string_agg(c.oid::regclass::text, ', ' order by c.relname) into v_forgotten
  from pg_class c
  where c.relnamespace = 'holdfast'::regnamespace and c.relkind in ('r', 'p')
    and not exists (select from pg_dist_partition p where p.logicalrelid = c.oid);
  if v_forgotten is not null then
    raise exception 'not distributed: %; use the file of the version that was migrated to', v_forgotten;
  end if;
end
$$;
commit;

-- Stay on the coordinator, for they ask or say which database this is: current_timeline, instance_problem, where_granting,
-- register_instance, recover. Of no use any more: refuse_audit_change, and what is about partitions of the audit:
-- audit_partition_name, create_audit_partition, extend_audit, measure_audit, detach_audit.
