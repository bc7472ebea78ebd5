-- Stands in for the parts of Citus that the script calls: keeps what it is told, and refuses what Citus refuses.
create table pg_dist_partition (logicalrelid regclass primary key, distribution text);
create table pg_dist_function (function regprocedure primary key, argument text);

create function create_reference_table(p_table regclass) returns void language plpgsql as $$
begin
  insert into pg_dist_partition values (p_table, null);
end
$$;

create function create_distributed_table(p_table regclass, p_column text, colocate_with text) returns void
language plpgsql as $$
begin
  if exists (select from pg_trigger t where t.tgrelid = p_table and not t.tgisinternal) then
    raise exception 'triggers are not supported on %', p_table;
  end if;
  if exists (
    select from pg_constraint k where k.conrelid = p_table and k.contype = 'f' and k.confrelid <> p_table
      and not exists (select from pg_dist_partition d where d.logicalrelid = k.confrelid)
  ) then
    raise exception '% refers to a table that is not distributed yet', p_table;
  end if;
  if colocate_with <> 'none' and not exists (
    select from pg_dist_partition d where d.logicalrelid = colocate_with::regclass and d.distribution = p_column
  ) then
    raise exception '% cannot be colocated with %', p_table, colocate_with;
  end if;
  insert into pg_dist_partition values (p_table, p_column);
end
$$;

create function create_distributed_function(
  p_function regprocedure, distribution_arg_name text default null, colocate_with text default 'default'
) returns void language plpgsql as $$
begin
  if distribution_arg_name is not null and not exists (
    select from pg_proc p where p.oid = p_function and distribution_arg_name = any (p.proargnames)
  ) then
    raise exception '% has no argument %', p_function, distribution_arg_name;
  end if;
  insert into pg_dist_function values (p_function, distribution_arg_name)
    on conflict (function) do update set argument = excluded.argument;
end
$$;
