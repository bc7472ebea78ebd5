-- One request of a batch to commit, as it comes from the server.
create type holdfast.commit_request as (
  ord integer, spend_key text, generation integer, amount_micros bigint, currency text, vendor_reference text,
  attempt_id text, actor_kind text, actor_id text, trace_id text, resolution text
);

-- What a request of a batch to commit is answered.
create type holdfast.commit_decision as (
  ord integer, error_reason text, over_committed boolean, hold_left interval, authorization_row holdfast.authorizations
);

-- Settles a batch of authorizations of one workspace at what was really charged. The truth is recorded, also
-- above the hold and above the cap; a second truth becomes a contradiction, which is counted and never dropped. One charge
-- that is told of several authorizations counts once in every counter that one of them draws on; once it settles a spend
-- it counts there.
--
-- A refund that is committed adjusts the authorization of the charge that it names, once, and gives headroom back to
-- the caps that say so, in the windows of that charge: what is refunded, and never more than was committed there.
--
-- What is committed in sets comes first, in the audit too; the rest of the batch in the order in which it was asked.
--
-- A commit with a resolution is an operator's word about the vendor, and is refused while an attempt is in the middle of
-- its call.
--
-- Locks: authorizations by (generation, spend key), refunded ones among them -> vendor charges -> counters, each sorted.
create function holdfast.commit_batch(p_workspace text, p_requests jsonb)
returns setof holdfast.commit_decision
language plpgsql volatile
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  v_requests holdfast.commit_request[];
  v_now timestamptz;
  r record;
  a holdfast.authorizations;
  v_error text;
  v_kind text;
  v_counted bigint;
  v_before bigint;
  -- The places that a second charge takes from caps that count spends.
  v_places integer;
  v_places_before integer;
  v_currency_before text;
  -- What the spend that the charge settles was charged for it, in the currency of the authorization.
  v_settled bigint;
  -- Whether anything of the workspace counts without a spend that it settles, and whether this charge does.
  v_any_loose boolean;
  v_loose boolean;
  v_elsewhere boolean;
  -- How many charges were claimed, but for those of what is committed in sets.
  v_claims integer;
  v_plain holdfast.commit_request[];
  d_error text[] := '{}'; d_left interval[] := '{}'; d_over boolean[] := '{}'; d_key text[] := '{}'; d_generation integer[] := '{}';
  -- What to move on the counters: a hold leaves held, an amount enters committed.
  s_key text[] := '{}'; s_generation integer[] := '{}'; s_amount bigint[] := '{}';
  -- Every authorization that is locked, the charges that refunds of the batch name, the caps that get headroom back,
  -- and how much of it.
  v_locked text[];
  v_vendors text[]; v_accounts text[]; v_references text[];
  v_restoring text[] := '{}';
  o holdfast.authorizations;
  h record;
  -- The rows as they are answered, where a later refund of the batch may adjust them.
  d_row holdfast.authorizations[] := '{}';
  v_returned jsonb;
  g_cap text[] := '{}'; g_label text[] := '{}'; g_subject text[] := '{}'; g_amount bigint[] := '{}';
  g_spends integer[] := '{}';
begin
  select array_agg(x order by x.ord) into v_requests
    from jsonb_populate_recordset(
      jsonb_populate_record(null::holdfast.commit_request, p_requests -> 'shared'), p_requests -> 'each') as x;

  -- Rows are looked up one by one, by their key, here and below: a join could read all of a workspace where the planner
  -- takes it for a small one.
  select array_agg(k.spend_key || '-' || k.generation),
    coalesce(array_agg(k.vendor) filter (where k.refund_of <> ''), '{}'),
    coalesce(array_agg(k.vendor_account) filter (where k.refund_of <> ''), '{}'),
    coalesce(array_agg(k.refund_of) filter (where k.refund_of <> ''), '{}')
  into v_locked, v_vendors, v_accounts, v_references
  from (
    select t.spend_key, t.generation, t.vendor, t.vendor_account, t.refund_of
    from (
      select x.spend_key, x.generation from unnest(v_requests) as x
      union
      select c.spend_key, c.generation
      from unnest(v_requests) as x
      cross join lateral (
        select f.vendor, f.vendor_account, f.refund_of from holdfast.authorizations f
        where f.workspace_id = p_workspace and f.spend_key = x.spend_key and f.generation = x.generation
          and f.refund_of <> ''
        offset 0
      ) f
      cross join lateral (
        select c.spend_key, c.generation from holdfast.authorizations c
        where c.workspace_id = p_workspace and c.vendor = f.vendor and c.vendor_reference = f.refund_of
          and c.vendor_account = f.vendor_account
        offset 0
      ) c
      order by generation, spend_key
    ) o
    cross join lateral (
      select t.spend_key, t.generation, t.vendor, t.vendor_account, t.refund_of from holdfast.authorizations t
      where t.workspace_id = p_workspace and t.spend_key = o.spend_key and t.generation = o.generation
      for update
    ) t
  ) k;
  v_now := holdfast.clock();
  if cardinality(v_references) > 0 then
    -- Read once: a flag that changes meanwhile must not lead to a counter that was not locked in order.
    select coalesce(array_agg(c.cap_id), '{}') into v_restoring from holdfast.caps c
      where c.workspace_id = p_workspace and c.refunds_restore_headroom;
  end if;

  -- Claims in sorted order what may be committed below. A claim counts only once its authorization is committed
  -- with it: a request of this batch that does commit takes over the claim of one that did not.
  insert into holdfast.vendor_charges (workspace_id, vendor, vendor_reference, spend_key, generation)
  select p_workspace, c.vendor, c.vendor_reference, c.spend_key, c.generation
  from (
    select distinct on (t.vendor, x.vendor_reference) t.vendor, x.vendor_reference, t.spend_key, t.generation
    from unnest(v_requests) as x
    cross join lateral (
      select t.* from holdfast.authorizations t
      where t.workspace_id = p_workspace and t.spend_key = x.spend_key and t.generation = x.generation
      offset 0
    ) t
    where t.state in ('HELD', 'IN_DOUBT')
      and (t.vendor_reference is null or t.vendor_reference = x.vendor_reference)
      and (x.actor_kind <> 'vault_key' or x.actor_id = t.vault_key_id)
    order by t.vendor, x.vendor_reference, x.ord
  ) c
  on conflict (workspace_id, vendor, vendor_reference) do nothing;
  get diagnostics v_claims = row_count;

  perform holdfast.lock_counters(
    p_workspace, array_agg(k.cap_id), array_agg(k.window_label), array_agg(k.subject))
  from (
    select h.cap_id, h.window_label, h.subject
    from unnest(v_requests) as x
    cross join lateral (
      select h.* from holdfast.holds h
      where h.workspace_id = p_workspace and h.spend_key = x.spend_key and h.generation = x.generation
      offset 0
    ) h
    union
    select h.cap_id, h.window_label, h.subject
    from unnest(v_vendors, v_accounts, v_references) as f (vendor, account, reference)
    cross join lateral (
      select c.spend_key, c.generation from holdfast.authorizations c
      where c.workspace_id = p_workspace and c.vendor = f.vendor and c.vendor_account = f.account
        and c.vendor_reference = f.reference
      offset 0
    ) c
    cross join lateral (
      select h.* from holdfast.holds h
      where h.workspace_id = p_workspace and h.spend_key = c.spend_key and h.generation = c.generation
        and h.cap_id = any (v_restoring)
      offset 0
    ) h
  ) k;
  -- Not before: whoever held a counter may just have counted there what this batch settles.
  v_any_loose := exists (select from holdfast.contradiction_counts q where q.workspace_id = p_workspace);

  -- In sets, before the others, what no other request of the batch can make a difference to: an open authorization of its
  -- vault key with a charge that it has claimed, neither named twice, nor bound or counted anywhere else.
  if cardinality(v_references) = 0 then
    select array_agg(q.x) into v_plain
    from (
      select x, x.ord, x.spend_key, x.generation, x.vendor_reference, x.actor_id,
        count(*) over (partition by x.spend_key, x.generation) as of_spend,
        count(*) over (partition by x.vendor_reference) as of_charge,
        x.actor_kind = 'vault_key' and x.resolution is null as of_key
      from unnest(v_requests) as x
    ) q
    cross join lateral (
      select t.vendor, t.state, t.vault_key_id from holdfast.authorizations t
      where t.workspace_id = p_workspace and t.spend_key = q.spend_key and t.generation = q.generation
      offset 0
    ) t
    cross join lateral (
      select c.spend_key, c.generation from holdfast.vendor_charges c
      where c.workspace_id = p_workspace and c.vendor = t.vendor and c.vendor_reference = q.vendor_reference
      offset 0
    ) c
    left join lateral (
      select true as found from holdfast.authorizations o
      where o.workspace_id = p_workspace and o.vendor = t.vendor and o.vendor_reference = q.vendor_reference
        and o.state in ('HELD', 'IN_DOUBT') and (o.spend_key, o.generation) <> (q.spend_key, q.generation)
      limit 1
    ) bound on true
    left join lateral (
      select true as found from holdfast.contradiction_counts l
      where v_any_loose and l.workspace_id = p_workspace and l.vendor = t.vendor
        and l.vendor_reference = q.vendor_reference
      limit 1
    ) loose on true
    where q.of_spend = 1 and q.of_charge = 1 and q.of_key and q.actor_id = t.vault_key_id
      and t.state in ('HELD', 'IN_DOUBT') and (c.spend_key, c.generation) = (q.spend_key, q.generation)
      and bound.found is null and loose.found is null;
    if v_plain is not null then
      return query select c.* from holdfast.commit_all(p_workspace, v_now, v_plain) c;
      v_claims := v_claims - cardinality(v_plain);
      if cardinality(v_plain) = cardinality(v_requests) then
        return;
      end if;
      select array_agg(x order by x.ord) into v_requests
        from unnest(v_requests) as x
        where x.ord <> all (array(select p.ord from unnest(v_plain) as p));
    end if;
  end if;

  for r in
    select x.* from unnest(v_requests) as x order by x.ord
  loop
    d_key[r.ord] := r.spend_key; d_generation[r.ord] := r.generation; d_over[r.ord] := false; d_error[r.ord] := null;
    d_left[r.ord] := null;
    v_error := null;
    v_kind := null;
    v_counted := 0;
    v_places := 0;
    if r.actor_kind = 'operator' then perform holdfast.actor_in_force(p_workspace, r.actor_kind, r.actor_id); end if;
    select t.* into a from holdfast.authorizations t
      where t.workspace_id = p_workspace and t.spend_key = r.spend_key and t.generation = r.generation;
    if not found then
      d_error[r.ord] := 'NOT_FOUND';
      continue;
    end if;
    if r.actor_kind = 'vault_key' and a.vault_key_id <> r.actor_id then
      d_error[r.ord] := 'OTHER_VAULT_KEY';
      d_key[r.ord] := null;
      continue;
    end if;
    if cardinality(v_references) > 0 then d_row[r.ord] := a; end if;
    if r.resolution is not null and a.state = 'HELD' and a.vendor_state = '' and a.hold_expire_time > v_now then
      d_error[r.ord] := 'STATE_NOT_ALLOWED';
      d_left[r.ord] := a.hold_expire_time - v_now;
      perform holdfast.append_refusal(
        p_workspace, v_now, 'resolve', r.actor_kind, r.actor_id, r.trace_id, r.spend_key, r.generation, a,
        'STATE_NOT_ALLOWED');
      continue;
    end if;

    -- A charge that settles another authorization was counted there and is never counted twice.
    v_elsewhere := exists (
      select from holdfast.vendor_charges c
      cross join lateral (
        select t.state, t.vendor_reference from holdfast.authorizations t
        where t.workspace_id = p_workspace and t.spend_key = c.spend_key and t.generation = c.generation
        offset 0
      ) t
      where c.workspace_id = p_workspace and c.vendor = a.vendor and c.vendor_reference = r.vendor_reference
        and (c.spend_key, c.generation) <> (a.spend_key, a.generation)
        and t.state = 'COMMITTED' and t.vendor_reference = c.vendor_reference
    );

    if a.state = 'VOIDED' then
      v_error := 'ALREADY_VOIDED'; v_kind := 'COMMIT_AFTER_VOID'; v_places := 1;
    elsif v_elsewhere and a.state <> 'COMMITTED' then
      v_error := 'REFERENCE_ALREADY_COMMITTED'; v_kind := 'REFERENCE_OF_ANOTHER_SPEND';
    elsif a.vendor_reference <> r.vendor_reference then
      v_error := 'COMMIT_CONTRADICTS'; v_kind := 'OTHER_REFERENCE'; v_places := 1;
    elsif a.state = 'COMMITTED' then
      d_over[r.ord] := a.committed_currency = a.currency and a.committed_micros > a.held_micros;
      if a.committed_micros <> r.amount_micros or a.committed_currency <> r.currency then
        v_error := 'COMMIT_CONTRADICTS'; v_kind := 'OTHER_AMOUNT';
      end if;
    elsif a.vendor_reference is null and exists (
      select from holdfast.authorizations t
      where t.workspace_id = p_workspace and t.vendor = a.vendor and t.vendor_reference = r.vendor_reference
        and t.state in ('HELD', 'IN_DOUBT')
    ) then
      v_error := 'REFERENCE_BOUND_ELSEWHERE'; v_kind := 'REFERENCE_OF_ANOTHER_SPEND';
    else
      insert into holdfast.vendor_charges (workspace_id, vendor, vendor_reference, spend_key, generation)
      values (p_workspace, a.vendor, r.vendor_reference, a.spend_key, a.generation)
      on conflict (workspace_id, vendor, vendor_reference) do update set
        spend_key = excluded.spend_key, generation = excluded.generation
        where (vendor_charges.spend_key, vendor_charges.generation) <> (excluded.spend_key, excluded.generation);
      update holdfast.authorizations t set
          state = 'COMMITTED', committed_micros = r.amount_micros, committed_currency = r.currency,
          vendor_reference = r.vendor_reference, commit_time = v_now, in_doubt_time = null, vendor_state = '',
          follow_until_time = null
        where t.workspace_id = p_workspace and t.spend_key = a.spend_key and t.generation = a.generation
        returning t.* into o;
      if cardinality(v_references) > 0 then d_row[r.ord] := o; end if;
      s_key := s_key || a.spend_key;
      s_generation := s_generation || a.generation;
      -- A cap counts in its own currency: a charge in another one keeps counting at the held amount.
      s_amount := array_append(s_amount, case when r.currency = a.currency then r.amount_micros end);
      d_over[r.ord] := r.currency = a.currency and r.amount_micros > a.held_micros;
      -- Of one charge and no other: that something was contradicted once makes no later commit slower.
      v_loose := v_any_loose and exists (
        select from holdfast.contradiction_counts q
        where q.workspace_id = p_workspace and q.vendor = a.vendor and q.vendor_reference = r.vendor_reference
      );
      if v_loose then
        -- It was told before, of another authorization or of this one while it was another's: from now on it counts here.
        for h in
          select d.cap_id, d.window_label, d.subject,
            case when d.spend_count = 0 then least(
              q.counted_micros, case when r.currency = a.currency then r.amount_micros else d.amount_micros end
            ) else 0 end as amount,
            least(q.counted_spends, d.spend_count) as spends
          from holdfast.holds d
          join holdfast.contradiction_counts q on q.workspace_id = p_workspace and q.vendor = a.vendor
            and q.vendor_reference = r.vendor_reference
            and q.cap_id = d.cap_id and q.window_label = d.window_label and q.subject = d.subject
          where d.workspace_id = p_workspace and d.spend_key = a.spend_key and d.generation = a.generation
          order by d.cap_id
        loop
          update holdfast.contradiction_counts q set
              counted_micros = q.counted_micros - h.amount, counted_spends = q.counted_spends - h.spends
            where q.workspace_id = p_workspace and q.vendor = a.vendor
              and q.vendor_reference = r.vendor_reference and q.cap_id = h.cap_id
              and q.window_label = h.window_label and q.subject = h.subject;
          g_cap := g_cap || h.cap_id; g_label := g_label || h.window_label; g_subject := g_subject || h.subject;
          g_amount := g_amount || h.amount; g_spends := g_spends || h.spends;
        end loop;
      end if;
      perform holdfast.append_audit(
        p_workspace, v_now, 'spend.committed', r.actor_kind, r.actor_id, r.trace_id,
        jsonb_build_object(
          'vendor_reference', r.vendor_reference, 'committed_micros', r.amount_micros, 'currency', r.currency,
          'previous_state', a.state, 'over_committed', d_over[r.ord], 'attempt_id', r.attempt_id)
          || holdfast.resolution_detail(r.resolution), a);

      if a.refund_of <> '' then
        select t.* into o
        from holdfast.vendor_charges c
        cross join lateral (
          select t.* from holdfast.authorizations t
          where t.workspace_id = p_workspace and t.spend_key = c.spend_key and t.generation = c.generation
          offset 0
        ) t
        where c.workspace_id = p_workspace and c.vendor = a.vendor and t.vendor_account = a.vendor_account
          and c.vendor_reference = a.refund_of and (c.spend_key, c.generation) <> (a.spend_key, a.generation)
          and t.state = 'COMMITTED' and t.vendor_reference = c.vendor_reference;
        if found and o.spend_key || '-' || o.generation <> all (v_locked) then
          -- Committed since the locks were chosen. To lock it now could wait for a batch that waits for this one.
          raise exception 'a refunded charge was committed meanwhile' using errcode = 'serialization_failure';
        end if;
        if found then
          insert into holdfast.adjustments (
            workspace_id, refund_spend_key, refund_generation, spend_key, generation, amount_micros, currency, create_time
          ) values (
            p_workspace, a.spend_key, a.generation, o.spend_key, o.generation, r.amount_micros, r.currency, v_now
          );
          v_returned := '[]';
          if r.currency = o.committed_currency then
            update holdfast.authorizations t set refunded_micros = t.refunded_micros + r.amount_micros
              where t.workspace_id = p_workspace and t.spend_key = o.spend_key and t.generation = o.generation;
            for h in
              select d.cap_id, d.window_label, d.subject,
                least(r.amount_micros, o.committed_micros - d.returned_micros) as amount
              from holdfast.holds d
              where d.workspace_id = p_workspace and d.spend_key = o.spend_key and d.generation = o.generation
                -- What was charged in another currency keeps counting as it was held: nothing says how much of it to
                -- give back.
                and d.cap_id = any (v_restoring) and o.committed_currency = o.currency
                and d.returned_micros < o.committed_micros
              order by d.cap_id
            loop
              update holdfast.holds d set returned_micros = d.returned_micros + h.amount
                where d.workspace_id = p_workspace and d.spend_key = o.spend_key and d.generation = o.generation
                  and d.cap_id = h.cap_id;
              g_cap := g_cap || h.cap_id; g_label := g_label || h.window_label; g_subject := g_subject || h.subject;
              g_amount := g_amount || h.amount; g_spends := g_spends || 0;
              v_returned := v_returned || jsonb_build_object(
                'cap', h.cap_id, 'window', h.window_label, 'returned_micros', h.amount);
            end loop;
          end if;
          perform holdfast.append_audit(
            p_workspace, v_now, 'spend.refunded', r.actor_kind, r.actor_id, r.trace_id,
            jsonb_build_object(
              'refund', a.spend_key || '-' || a.generation, 'refunded_micros', r.amount_micros,
              'currency', r.currency, 'caps', v_returned), o);
        end if;
      end if;
      continue;
    end if;

    d_error[r.ord] := v_error;
    if v_kind is not null then
      select t.* into o
      from holdfast.vendor_charges c
      cross join lateral (
        select t.* from holdfast.authorizations t
        where t.workspace_id = p_workspace and t.spend_key = c.spend_key and t.generation = c.generation
        offset 0
      ) t
      where c.workspace_id = p_workspace and c.vendor = a.vendor and c.vendor_reference = r.vendor_reference
        and t.state = 'COMMITTED' and t.vendor_reference = c.vendor_reference;
      -- A counter counts in one currency. A spend that was charged in another one goes on counting as it was held.
      v_settled := case
        when o.committed_currency = a.currency then o.committed_micros
        when o.currency = a.currency then o.held_micros
        -- Both spends hold headroom for it until it is known whose it is.
        when v_error = 'REFERENCE_BOUND_ELSEWHERE' then a.held_micros
        else 0
      end;
      if o.spend_key is not null or v_error = 'REFERENCE_BOUND_ELSEWHERE' then
        v_places := 0;
      end if;
      v_counted := greatest(0, case when r.currency = a.currency then r.amount_micros else 0 end - v_settled);
      select c.counted_micros, c.counted_spends, c.currency into v_before, v_places_before, v_currency_before
        from holdfast.contradictions c
        where c.workspace_id = p_workspace and c.vendor = a.vendor
          and c.vendor_reference = r.vendor_reference and c.spend_key = a.spend_key and c.generation = a.generation;
      if not found then
        v_before := null;
        v_places_before := 0;
        insert into holdfast.contradictions (
          workspace_id, spend_key, generation, vendor, vendor_account, vendor_reference, kind, amount_micros, currency,
          counted_micros, counted_spends, attempt_id, create_time, contradiction_id
        ) values (
          p_workspace, a.spend_key, a.generation, a.vendor, a.vendor_account, r.vendor_reference, v_kind,
          r.amount_micros, r.currency, v_counted, v_places, r.attempt_id, v_now,
          holdfast.contradiction_id(
            p_workspace, a.vendor, a.vendor_account, r.vendor_reference, a.spend_key, a.generation)
        );
      elsif v_counted > v_before or v_places > v_places_before then
        -- More than was known when it was closed, if it was.
        update holdfast.contradictions c set
            amount_micros = r.amount_micros, currency = r.currency, counted_micros = greatest(v_counted, v_before),
            counted_spends = greatest(v_places, v_places_before), close_time = null, close_reason = null
          where c.workspace_id = p_workspace and c.vendor = a.vendor
            and c.vendor_reference = r.vendor_reference and c.spend_key = a.spend_key and c.generation = a.generation;
      end if;
      for h in
        select d.cap_id, d.window_label, d.subject,
          case when d.spend_count = 0 and r.currency = a.currency then greatest(
            0, r.amount_micros - coalesce(q.counted_micros, 0)
              - case when v_error = 'REFERENCE_BOUND_ELSEWHERE'
                  or (o.spend_key, o.generation, o.committed_currency = o.currency)
                    = (a.spend_key, a.generation, false) then d.amount_micros else v_settled end
          ) else 0 end as amount,
          case when d.spend_count > 0 then greatest(0, v_places - coalesce(q.counted_spends, 0)) else 0 end as spends
        from holdfast.holds d
        left join holdfast.contradiction_counts q on q.workspace_id = p_workspace and q.vendor = a.vendor
          and q.vendor_reference = r.vendor_reference
          and q.cap_id = d.cap_id and q.window_label = d.window_label and q.subject = d.subject
        where d.workspace_id = p_workspace and d.spend_key = a.spend_key and d.generation = a.generation
        order by d.cap_id
      loop
        continue when h.amount = 0 and h.spends = 0;
        insert into holdfast.contradiction_counts as q (
          workspace_id, vendor, vendor_reference, cap_id, window_label, subject, counted_micros, counted_spends
        ) values (
          p_workspace, a.vendor, r.vendor_reference, h.cap_id, h.window_label, h.subject, h.amount,
          h.spends
        )
        on conflict (workspace_id, vendor, vendor_reference, cap_id, window_label, subject) do update set
          counted_micros = q.counted_micros + excluded.counted_micros,
          counted_spends = q.counted_spends + excluded.counted_spends;
        perform holdfast.move_counters(
          p_workspace, array[h.cap_id], array[h.window_label], array[h.subject], array[0], array[h.amount], array[0],
          array[h.spends]);
        v_any_loose := true;
      end loop;
      if v_before is null or v_counted > v_before or v_places > v_places_before or r.currency <> v_currency_before then
        perform holdfast.append_audit(
          p_workspace, v_now, 'spend.contradiction', r.actor_kind, r.actor_id, r.trace_id,
          jsonb_build_object(
            'contradiction', v_kind, 'vendor_reference', r.vendor_reference, 'charged_micros', r.amount_micros,
            'currency', r.currency, 'counted_micros', v_counted, 'attempt_id', r.attempt_id)
            || holdfast.resolution_detail(r.resolution), a, null, v_error);
      end if;
    end if;
  end loop;

  if v_claims > cardinality(s_key) then
    -- Some claims led to no commit.
    delete from holdfast.vendor_charges c
      using unnest(v_requests) as x, holdfast.authorizations t
      where c.workspace_id = p_workspace and c.spend_key = x.spend_key and c.generation = x.generation
        and c.vendor_reference = x.vendor_reference
        and t.workspace_id = p_workspace and t.spend_key = c.spend_key and t.generation = c.generation
        and not (t.state = 'COMMITTED' and t.vendor_reference = c.vendor_reference);
  end if;

  perform holdfast.move_counters(
    p_workspace, array_agg(h.cap_id), array_agg(h.window_label), array_agg(h.subject),
    array_agg(-h.amount_micros::numeric),
    array_agg(case when h.spend_count = 0 then coalesce(s.amount, h.amount_micros) else 0 end::numeric),
    array_agg(-h.spend_count::bigint), array_agg(h.spend_count::bigint))
  from unnest(s_key, s_generation, s_amount) as s (key, generation, amount)
  cross join lateral (
    select h.* from holdfast.holds h
    where h.workspace_id = p_workspace and h.spend_key = s.key and h.generation = s.generation
    offset 0
  ) h;
  -- After what the batch itself has committed, of which it may be a part.
  perform holdfast.move_counters(
    p_workspace, array_agg(g.cap_id), array_agg(g.label), array_agg(g.subject), array_agg(0::numeric),
    array_agg(-g.amount::numeric), array_agg(0::bigint), array_agg(-g.spends::bigint))
  from unnest(g_cap, g_label, g_subject, g_amount, g_spends) as g (cap_id, label, subject, amount, spends);

  return query
    select x.ord, d_error[x.ord], d_over[x.ord], d_left[x.ord],
      case when d_row[x.ord] is null then q.t else d_row[x.ord] end
    from unnest(v_requests) as x
    left join lateral (
      select t from holdfast.authorizations t
      where t.workspace_id = p_workspace and t.spend_key = d_key[x.ord] and t.generation = d_generation[x.ord]
      offset 0
    ) q on true
    order by x.ord;
end
$$;

-- Commits requests in sets, as commit_batch would one by one. The caller has made certain that it comes to the same, and
-- has locked what it changes.
create function holdfast.commit_all(
  p_workspace text, p_now timestamptz, p_requests holdfast.commit_request[]
) returns setof holdfast.commit_decision
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  -- What each was before.
  v_ords integer[]; v_states text[];
  v_rows holdfast.authorizations[];
  v_n integer;
begin
  select array_agg(x.ord), array_agg(t.state) into v_ords, v_states
  from unnest(p_requests) as x
  cross join lateral (
    select t.state from holdfast.authorizations t
    where t.workspace_id = p_workspace and t.spend_key = x.spend_key and t.generation = x.generation
    offset 0
  ) t;

  -- Every one conflicts: an update of them all may be joined with every spend of the workspace, and one update each costs
  -- three times as much. What is proposed keeps the rules of the table.
  with committed as (
    insert into holdfast.authorizations as n (
      workspace_id, spend_key, generation, customer_id, billing_period, purpose, idempotency_key, vault_key_id, vendor,
      vendor_account, endpoint, currency, amount_micros, held_micros, direction, refund_of, settlement, resend_safe_for,
      attempt_id, told_may_have_been_sent, body_fingerprint, grant_time, hold_expire_time, latest_hold_expire_time,
      state, committed_micros, committed_currency, vendor_reference, commit_time
    )
      select t.workspace_id, t.spend_key, t.generation, t.customer_id, t.billing_period, t.purpose, t.idempotency_key,
        t.vault_key_id, t.vendor, t.vendor_account, t.endpoint, t.currency, t.amount_micros, t.held_micros, t.direction,
        t.refund_of, t.settlement, t.resend_safe_for, t.attempt_id, t.told_may_have_been_sent, t.body_fingerprint,
        t.grant_time, t.hold_expire_time, t.latest_hold_expire_time,
        'COMMITTED', x.amount_micros, x.currency, x.vendor_reference, p_now
      from unnest(p_requests) as x
      cross join lateral (
        select t.* from holdfast.authorizations t
        where t.workspace_id = p_workspace and t.spend_key = x.spend_key and t.generation = x.generation
        offset 0
      ) t
      on conflict (workspace_id, spend_key, generation) do update set
        state = excluded.state, committed_micros = excluded.committed_micros,
        committed_currency = excluded.committed_currency, vendor_reference = excluded.vendor_reference,
        commit_time = excluded.commit_time, in_doubt_time = null, vendor_state = '', follow_until_time = null
      returning n::holdfast.authorizations as committed
  )
  select array_agg(c.committed) into v_rows from committed c;

  -- A cap counts in its own currency: a charge in another one keeps counting at the held amount.
  perform holdfast.move_counters(
    p_workspace, array_agg(h.cap_id), array_agg(h.window_label), array_agg(h.subject),
    array_agg(-h.amount_micros::numeric),
    array_agg(case
      when h.spend_count > 0 then 0 when t.committed_currency = t.currency then t.committed_micros
      else h.amount_micros
    end::numeric),
    array_agg(-h.spend_count::bigint), array_agg(h.spend_count::bigint))
  from unnest(v_rows) as t
  cross join lateral (
    select h.* from holdfast.holds h
    where h.workspace_id = p_workspace and h.spend_key = t.spend_key and h.generation = t.generation
    offset 0
  ) h;

  v_n := holdfast.take_audit_numbers(cardinality(p_requests));
  insert into holdfast.audit_events (
    workspace_id, xid, n, event_time, kind, actor_kind, actor_id, spend_key, generation, customer_id, billing_period,
    purpose, attempt_id, currency, amount_micros, trace_id, detail, vault_key_id
  )
  select p_workspace, pg_current_xact_id(),
    v_n + (row_number() over (order by x.ord))::integer - 1,
    p_now, 'spend.committed', x.actor_kind, x.actor_id, t.spend_key, t.generation, t.customer_id, t.billing_period,
    t.purpose, t.attempt_id, t.currency, t.amount_micros, x.trace_id,
    jsonb_build_object(
      'vendor_reference', x.vendor_reference, 'committed_micros', x.amount_micros, 'currency', x.currency,
      'previous_state', s.state, 'attempt_id', x.attempt_id,
      'over_committed', x.currency = t.currency and x.amount_micros > t.held_micros),
    t.vault_key_id
  from unnest(p_requests) as x
  join unnest(v_ords, v_states) as s (ord, state) on s.ord = x.ord
  join unnest(v_rows) as t on t.spend_key = x.spend_key and t.generation = x.generation
  order by x.ord;

  return query
    select x.ord, null::text, t.committed_currency = t.currency and t.committed_micros > t.held_micros, null::interval, t
    from unnest(p_requests) as x
    join unnest(v_rows) as t on t.spend_key = x.spend_key and t.generation = x.generation
    order by x.ord;
end
$$;

-- What the audit says of an operator's resolution; nothing of any other commit.
create function holdfast.resolution_detail(p_reason text) returns jsonb
language sql immutable parallel safe
as $$
  select case when p_reason is null then '{}' else jsonb_build_object('resolution', true, 'note', p_reason) end
$$;

-- One event of a call that was refused and changed nothing, so that an auditor sees that it was tried. Those of one
-- caller and authorization fold.
create function holdfast.append_refusal(
  p_workspace text, p_time timestamptz, p_call text, p_actor_kind text, p_actor_id text, p_trace_id text,
  p_spend_key text, p_generation integer, p_row holdfast.authorizations, p_reason text
) returns void
language plpgsql volatile
as $$
begin
  perform holdfast.append_folding(
    jsonb_build_array(p_call, p_actor_kind, p_actor_id, p_spend_key, p_generation, p_reason), p_workspace, p_time,
    'spend.' || p_call || '_refused', p_actor_kind, p_actor_id, p_trace_id,
    jsonb_build_object('authorization', p_spend_key || '-' || p_generation), p_row, null, p_reason);
end
$$;

-- Voids an authorization on evidence. Evidence that proves nothing makes it IN_DOUBT and is refused; absence that is not
-- proven yet is refused and changes nothing, for it is asked about again.
create function holdfast.void_spend(
  p_workspace text, p_spend_key text, p_generation integer, p_actor_kind text, p_actor_id text, p_attempt_id text,
  p_evidence text, p_vendor_status integer, p_vendor_replayed boolean, p_vendor_reference text, p_reason text,
  p_trace_id text, p_look_time timestamptz, p_look_account text
) returns table (error_reason text, hold_left interval, authorization_row holdfast.authorizations)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  v_now timestamptz;
  a holdfast.authorizations;
  v_error text;
  v_left interval;
  v_proven boolean;
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
  elsif p_evidence = 'OPERATOR' and p_actor_kind = 'operator' and a.state = 'HELD' and a.vendor_state = ''
    and a.hold_expire_time > v_now
  then
    -- The attempt in the middle of its call will know more than anybody can say now.
    v_error := 'STATE_NOT_ALLOWED';
    v_left := a.hold_expire_time - v_now;
  elsif a.state in ('HELD', 'IN_DOUBT') and p_actor_kind = 'vault_key' and a.attempt_id <> p_attempt_id
    -- A tombstone is a fact about the bound object, whoever has seen it.
    and (p_evidence = 'TOMBSTONE' and a.bind_time is not null and a.vendor_reference = p_vendor_reference) is not true
    -- Nor does it take the holding attempt to see that there is nothing.
    and p_evidence <> 'ABSENT_AFTER_QUARANTINE'
  then
    v_error := 'ATTEMPT_SUPERSEDED';
  elsif a.state in ('HELD', 'IN_DOUBT') then
    -- What an attempt, its evidence and the lists of a vendor prove, they prove by rows that may be missing here.
    if p_evidence not in ('TOMBSTONE', 'OPERATOR') then
      perform holdfast.where_granting('');
    end if;
    v_proven := case
      when p_evidence = 'OPERATOR' then p_actor_kind = 'operator' and p_reason <> ''
      when p_evidence = 'TOMBSTONE' then a.bind_time is not null and a.vendor_reference = p_vendor_reference
      when a.bind_time is not null then false
      when p_evidence = 'ABSENT_AFTER_QUARANTINE' then holdfast.absence_proven(a, p_look_time, v_now)
        and holdfast.account_in_question(a, p_look_account) is null
      -- What was sent, and what the vendor answered to it, only the holding attempt knows.
      when p_actor_kind <> 'vault_key' then false
      when p_evidence = 'NEVER_SENT' then not a.told_may_have_been_sent
      -- Turned away in front of the vendor's door: the first send, so that no earlier one can have been let in.
      when p_evidence = 'NOT_EXECUTED' then not a.told_may_have_been_sent and not p_vendor_replayed
        and p_vendor_status in (401, 403, 429)
      -- A definite refusal of the first send; on a replay only what speaks about the first send. Timeouts (408),
      -- conflicts (409), dependencies (424) and 5xx say nothing.
      when p_evidence = 'VENDOR_REFUSED' then p_vendor_status = 402 or (p_vendor_status = 400 and p_vendor_replayed)
        or (not a.told_may_have_been_sent and p_vendor_status between 400 and 499
          and p_vendor_status not in (408, 409, 424))
      else false
    end;
    if v_proven then
      perform holdfast.void_authorization(a, v_now, p_evidence, p_reason, p_actor_kind, p_actor_id, p_trace_id);
    elsif p_evidence = 'ABSENT_AFTER_QUARANTINE' then
      v_error := 'EVIDENCE_INSUFFICIENT';
    else
      v_error := 'EVIDENCE_INSUFFICIENT';
      perform holdfast.doubt_authorization(a, v_now);
      update holdfast.authorizations t set absent_since_time = null, look_from_time = v_now
        where t.workspace_id = p_workspace and t.spend_key = p_spend_key and t.generation = p_generation;
      perform holdfast.append_audit(
        p_workspace, v_now, 'spend.in_doubt', p_actor_kind, p_actor_id, p_trace_id,
        jsonb_build_object('evidence', p_evidence, 'vendor_status', p_vendor_status, 'note', p_reason), a, null,
        v_error);
    end if;
  end if;
  if v_error <> 'EVIDENCE_INSUFFICIENT' or (v_error is not null and p_evidence = 'ABSENT_AFTER_QUARANTINE') then
    perform holdfast.append_refusal(
      p_workspace, v_now, 'void', p_actor_kind, p_actor_id, p_trace_id, p_spend_key, p_generation, a, v_error);
  end if;
  return query
    select v_error, v_left, t from (select 1) as one
    left join holdfast.authorizations t
      on t.workspace_id = p_workspace and t.spend_key = a.spend_key and t.generation = a.generation;
end
$$;

-- The last moment at which any attempt may send.
create function holdfast.send_end_time(p_row holdfast.authorizations) returns timestamptz
language sql immutable parallel safe
as $$
  select greatest(p_row.latest_hold_expire_time, p_row.grant_time + p_row.resend_safe_for)
$$;

-- When everything that may have been sent has arrived.
create function holdfast.quarantine_end_time(p_row holdfast.authorizations) returns timestamptz
language sql immutable parallel safe
as $$
  select holdfast.send_end_time(p_row) + interval '25 hours'
$$;

-- Whether a look that began then says anything about absence. A time that is still to come is none of this database's.
create function holdfast.look_counts(
  p_row holdfast.authorizations, p_look_time timestamptz, p_now timestamptz
) returns boolean
language sql immutable parallel safe
as $$
  select coalesce(
    p_look_time <= p_now and p_look_time >= holdfast.quarantine_end_time(p_row)
      and p_look_time > coalesce(p_row.look_from_time, timestamptz '-infinity'),
    false)
$$;

-- That complete lists of the vendor show nothing proves that nothing exists only when no request could be on its way any
-- more when the vendor was looked at, and when an earlier such look has shown nothing: one may have met a vendor that was
-- behind. What counts is when a look began, and not when it is told: whoever looks may be stopped for days in between.
create function holdfast.absence_proven(
  p_row holdfast.authorizations, p_look_time timestamptz, p_now timestamptz
) returns boolean
language sql immutable parallel safe
as $$
  select p_row.state = 'IN_DOUBT' and p_row.vendor_reference is null and holdfast.look_counts(p_row, p_look_time, p_now)
    and coalesce(
      p_row.absent_since_time >= holdfast.quarantine_end_time(p_row)
        and p_row.absent_since_time <= p_look_time - interval '5 minutes',
      false)
$$;

-- The holding attempt does not know whether the vendor charged: it has sent, and cannot say later that it has not.
create function holdfast.report_unknown(
  p_workspace text, p_spend_key text, p_generation integer, p_vault_key_id text, p_attempt_id text, p_reason text,
  p_trace_id text
) returns table (error_reason text, authorization_row holdfast.authorizations)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  v_now timestamptz;
  a holdfast.authorizations;
  v_error text;
begin
  select t.* into a from holdfast.authorizations t
    where t.workspace_id = p_workspace and t.spend_key = p_spend_key and t.generation = p_generation for update;
  v_now := holdfast.clock();
  if not found then
    v_error := 'NOT_FOUND';
  elsif a.vault_key_id <> p_vault_key_id then
    v_error := 'OTHER_VAULT_KEY';
    a := null;
  elsif a.state = 'COMMITTED' then
    v_error := 'ALREADY_COMMITTED';
  elsif a.state = 'VOIDED' then
    v_error := 'ALREADY_VOIDED';
  elsif a.attempt_id <> p_attempt_id then
    v_error := 'ATTEMPT_SUPERSEDED';
  elsif a.state = 'HELD' or not a.told_may_have_been_sent then
    perform holdfast.doubt_authorization(a, v_now);
    -- It has sent, so that what was seen before says nothing.
    update holdfast.authorizations t set
        told_may_have_been_sent = true, absent_since_time = null, look_from_time = v_now
      where t.workspace_id = p_workspace and t.spend_key = p_spend_key and t.generation = p_generation;
    perform holdfast.append_audit(
      p_workspace, v_now, 'spend.in_doubt', 'vault_key', p_vault_key_id, p_trace_id,
      jsonb_build_object('note', p_reason), a, null, 'REPORTED_UNKNOWN');
  end if;
  if v_error is not null then
    perform holdfast.append_refusal(
      p_workspace, v_now, 'report', 'vault_key', p_vault_key_id, p_trace_id, p_spend_key, p_generation, a, v_error);
  end if;
  return query
    select v_error, t from (select 1) as one
    left join holdfast.authorizations t
      on t.workspace_id = p_workspace and t.spend_key = a.spend_key and t.generation = a.generation;
end
$$;

-- Whether a vendor object settles another authorization, or was charged for one that had been voided: the same spend may
-- bind it again then, no other one. An object whose authorization was voided and that charged nothing is free.
--
-- It claims the charge for a moment, as a commit does, so that of a bind and a commit at the same time the later one waits
-- for the earlier, and sees it.
create function holdfast.settles_another(p_row holdfast.authorizations, p_vendor_reference text) returns boolean
language plpgsql volatile
as $$
begin
  insert into holdfast.vendor_charges (workspace_id, vendor, vendor_reference, spend_key, generation)
  values (p_row.workspace_id, p_row.vendor, p_vendor_reference, p_row.spend_key, p_row.generation)
  on conflict (workspace_id, vendor, vendor_reference) do nothing;
  if not found then
    return true;
  end if;
  delete from holdfast.vendor_charges c
    where c.workspace_id = p_row.workspace_id and c.vendor = p_row.vendor
      and c.vendor_reference = p_vendor_reference;
  return exists (
    select from holdfast.contradictions c
    where c.workspace_id = p_row.workspace_id and c.vendor = p_row.vendor
      and c.vendor_reference = p_vendor_reference
      and c.kind = 'COMMIT_AFTER_VOID' and c.spend_key <> p_row.spend_key
  );
end
$$;

-- Binds the vendor object of this generation; the first writer wins, and an object belongs to one spend. A two-step binds
-- before it confirms. A one-call binds what it has sent, while that is in a known, unfinished state.
create function holdfast.bind_vendor_reference(
  p_workspace text, p_spend_key text, p_generation integer, p_vault_key_id text, p_attempt_id text,
  p_vendor_reference text, p_vendor_state text, p_follow_for interval, p_trace_id text
) returns table (error_reason text, authorization_row holdfast.authorizations)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  v_now timestamptz;
  a holdfast.authorizations;
  v_error text;
begin
  select t.* into a from holdfast.authorizations t
    where t.workspace_id = p_workspace and t.spend_key = p_spend_key and t.generation = p_generation for update;
  v_now := holdfast.clock();
  if not found then
    v_error := 'NOT_FOUND';
  elsif a.vault_key_id <> p_vault_key_id then
    v_error := 'OTHER_VAULT_KEY';
    a := null;
  elsif a.state = 'COMMITTED' then
    v_error := 'ALREADY_COMMITTED';
  elsif a.state = 'VOIDED' then
    v_error := 'ALREADY_VOIDED';
  elsif a.settlement <> 'TWO_STEP' and p_vendor_state = '' then
    v_error := 'STATE_NOT_ALLOWED';
  elsif a.vendor_reference is not null and a.vendor_reference <> p_vendor_reference then
    -- Also for a superseded attempt: it must learn the winner's reference to cancel its own object.
    v_error := 'ALREADY_BOUND';
  elsif a.attempt_id <> p_attempt_id then
    v_error := 'ATTEMPT_SUPERSEDED';
  else
    begin
      update holdfast.authorizations t set
          vendor_reference = p_vendor_reference, bind_time = coalesce(a.bind_time, v_now),
          state = case when p_vendor_state <> '' then 'HELD' else a.state end,
          in_doubt_time = case when p_vendor_state = '' then a.in_doubt_time end,
          vendor_state = p_vendor_state,
          follow_until_time = case when p_vendor_state <> '' then v_now + p_follow_for end,
          -- The attempt has just looked itself: what was found before is over.
          reconciliation_finding = null, reconciliation_first_time = null, reconciliation_time = null,
          reconciliation_next_time = case when p_vendor_state <> '' then v_now + interval '1 minute' end,
          reconciliation_count = 0, reconciliation_note = '', absent_since_time = null
        where t.workspace_id = p_workspace and t.spend_key = p_spend_key and t.generation = p_generation;
      -- Looked at after the update: the spend that it belonged to may have settled while this one waited for it.
      if a.vendor_reference is null and holdfast.settles_another(a, p_vendor_reference) then
        raise unique_violation;
      end if;
      perform holdfast.append_audit(
        p_workspace, v_now, case when a.bind_time is null then 'spend.bound' else 'spend.followed' end, 'vault_key',
        p_vault_key_id, p_trace_id,
        jsonb_build_object('vendor_reference', p_vendor_reference, 'vendor_state', p_vendor_state), a);
    exception when unique_violation then
      v_error := 'REFERENCE_BOUND_ELSEWHERE';
    end;
  end if;
  if v_error is not null then
    perform holdfast.append_refusal(
      p_workspace, v_now, 'bind', 'vault_key', p_vault_key_id, p_trace_id, p_spend_key, p_generation, a, v_error);
  end if;
  return query
    select v_error, t from (select 1) as one
    left join holdfast.authorizations t
      on t.workspace_id = p_workspace and t.spend_key = a.spend_key and t.generation = a.generation;
end
$$;

-- Writes down what the clock has decided: a two-step that ran out before it was bound is void (our own row is
-- the proof), every other hold that ran out is in doubt and keeps its headroom. Returns how many rows changed.
create function holdfast.sweep_expired(p_workspace text, p_limit integer) returns integer
language plpgsql volatile
as $$
declare
  v_now timestamptz := holdfast.clock();
  v_rows holdfast.authorizations[];
  a holdfast.authorizations;
begin
  -- Where acknowledged rows may be missing, a hold that was never bound here may have been bound and charged.
  if holdfast.instance_problem() is not null then
    return 0;
  end if;
  select coalesce(array_agg(t), '{}') into v_rows
  from (
    select t.* from holdfast.authorizations t
    where t.workspace_id = p_workspace and t.state in ('HELD', 'IN_DOUBT') and t.hold_expire_time <= v_now
      and (
        (t.settlement = 'TWO_STEP' and t.vendor_reference is null)
        or (t.state = 'HELD' and (t.vendor_state = '' or t.follow_until_time <= v_now))
      )
    order by t.generation, t.spend_key
    limit p_limit
    for update skip locked
  ) t;

  perform holdfast.lock_counters(
    p_workspace, array_agg(h.cap_id), array_agg(h.window_label), array_agg(h.subject))
  from unnest(v_rows) as t
  cross join lateral (
    select h.* from holdfast.holds h
    where h.workspace_id = p_workspace and h.spend_key = t.spend_key and h.generation = t.generation
    offset 0
  ) h
  where t.settlement = 'TWO_STEP' and t.vendor_reference is null;

  foreach a in array v_rows loop
    if a.settlement = 'TWO_STEP' and a.vendor_reference is null then
      perform holdfast.void_authorization(
        a, v_now, 'NEVER_BOUND', 'the hold ran out before anything was bound', 'server', 'sweep', '');
    else
      perform holdfast.doubt_authorization(a, v_now);
      perform holdfast.append_audit(
        p_workspace, v_now, 'spend.in_doubt', 'server', 'sweep', '', '{}', a, null, 'HOLD_EXPIRED');
    end if;
  end loop;
  return cardinality(v_rows);
end
$$;
