-- Stops a vendor, a customer or the whole workspace. Engaging and releasing update the workspace row, so each returns
-- only after every grant that saw the state before has ended. Never deleted: the history of a target is its rows.
create table holdfast.kill_switches (
  workspace_id text not null,
  kill_switch_id text not null,
  target_kind text not null,
  -- The vendor or the customer; empty for the workspace.
  target text not null,
  reason text not null,
  engage_time timestamptz not null,
  -- Operators.
  engaged_by text not null,
  release_time timestamptz,
  released_by text,
  release_reason text,
  constraint kill_switches_pkey primary key (workspace_id, kill_switch_id),
  constraint kill_switches_workspace_fkey foreign key (workspace_id) references holdfast.workspaces (workspace_id),
  constraint kill_switches_id_check check (kill_switch_id ~ '^[0-9a-f]{32}$'),
  constraint kill_switches_target_check check (
    target_kind in ('WORKSPACE', 'VENDOR', 'CUSTOMER') and (target_kind = 'WORKSPACE') = (target = '')
    and length(target) <= 128
  ),
  constraint kill_switches_release_check check (
    (release_time is null) = (released_by is null) and (release_time is null) = (release_reason is null)
  ),
  constraint kill_switches_lengths_check check (
    length(reason) between 1 and 500 and length(release_reason) between 1 and 500
    and length(engaged_by) between 1 and 32 and length(released_by) between 1 and 32
  )
);

-- One engaged switch per target; and where a grant looks.
create unique index kill_switches_engaged_idx on holdfast.kill_switches (workspace_id, target_kind, target)
  where release_time is null;

create index kill_switches_engage_time_idx
  on holdfast.kill_switches (workspace_id, engage_time desc, kill_switch_id desc);

-- The engaged kill switch that stops a spend, the one that stops most first. No row where none does.
create function holdfast.engaged_kill_switch(p_workspace text, p_vendor text, p_customer text)
returns table (kill_switch_id text, target_kind text)
language sql stable parallel safe
as $$
  select s.kill_switch_id, s.target_kind
  from holdfast.kill_switches s
  where s.workspace_id = p_workspace and s.release_time is null
    and (s.target_kind, s.target) in (('WORKSPACE', ''), ('VENDOR', p_vendor), ('CUSTOMER', p_customer))
  order by array_position(array['WORKSPACE', 'VENDOR', 'CUSTOMER'], s.target_kind)
  limit 1
$$;

-- When a vault key was last asked to grant something, to the minute. A table of its own, and no foreign key: nothing
-- that grants share is written or locked for it.
create table holdfast.vault_key_uses (
  workspace_id text not null,
  vault_key_id text not null,
  use_time timestamptz not null,
  constraint vault_key_uses_pkey primary key (workspace_id, vault_key_id),
  constraint vault_key_uses_id_check check (vault_key_id ~ '^[a-z0-9]{1,32}$')
);

-- Hands an actor on where he may still act: an operator who was revoked changes nothing, also with a call that had been
-- let in before. The operator's row is kept for the rest of the transaction, so that a revocation has either been seen
-- here or returns after what is done here.
create function holdfast.actor_in_force(p_workspace text, p_actor_kind text, p_actor_id text) returns text
language plpgsql volatile
as $$
begin
  if p_actor_kind = 'operator' then
    perform from holdfast.operators o
      where o.workspace_id = p_workspace and o.operator_id = p_actor_id for share;
    -- A statement of its own: it sees what the lock has waited for.
    if exists (
      select from holdfast.operators o
      where o.workspace_id = p_workspace and o.operator_id = p_actor_id and o.revoke_time is not null
    ) then
      raise exception 'the operator is revoked' using errcode = 'HF002';
    end if;
  end if;
  return p_actor_id;
end
$$;
