import { type Asked, counterDenial, counterOf, counterNamed, capDenial, takes } from "./model-cap.ts";
import { rules } from "./model-rules.ts";
import { inZone, windowLabel } from "./model-window.ts";
import {
  chargeName,
  holdRuns,
  isLive,
  voidWith,
  type Generation,
  type Hold,
  type Rules,
  type World,
} from "./model-world.ts";

function refundedBy(world: World, refund: Generation): readonly Generation[] {
  const original = world.charges.get(chargeName(refund, refund.refundOf));
  return original === undefined || original === refund ? [] : [original];
}

function isAsked(one: Generation, asked: Asked): boolean {
  return one.customer === asked.customer && one.period === asked.period && one.purpose === asked.purpose;
}

/** Defects that peers really had, each planted into the model by replacing one rule. */
export const plantedBugs: Readonly<Record<string, Rules>> = {
  "a hold that expires is released": {
    ...rules,
    expire: (generation) => voidWith(generation, "ABSENT_AFTER_QUARANTINE"),
  },
  "in doubt is not counted": {
    ...rules,
    toDoubt: (generation, now) => {
      if (generation.state === "IN_DOUBT") return;
      rules.toDoubt(generation, now);
      for (const hold of generation.holds) hold.counter.held -= hold.amount;
    },
  },
  "absence proves without a quarantine": {
    ...rules,
    lookCounts: (generation, look, now) =>
      rules.lookCounts({ ...generation, holdExpireMax: 0, grantTime: 0, resendSafeForMs: null }, look, now),
  },
  "the quarantine begins with the grant": {
    ...rules,
    lookCounts: (generation, look, now) => rules.lookCounts({ ...generation, holdExpireMax: 0 }, look, now),
  },
  "the quarantine forgets that a request may be sent again": {
    ...rules,
    lookCounts: (generation, look, now) => rules.lookCounts({ ...generation, resendSafeForMs: null }, look, now),
  },
  "absence is judged by when it is told": {
    ...rules,
    lookCounts: (generation, look, now) => rules.lookCounts(generation, { ...look, at: now }, now),
    provesAbsence: (generation, look, now) => rules.provesAbsence(generation, { ...look, at: now }, now),
  },
  "a look at a time that is still to come counts": {
    ...rules,
    lookCounts: (generation, look) => rules.lookCounts(generation, look, Number.POSITIVE_INFINITY),
  },
  "a look counts though something else was found after it began": {
    ...rules,
    lookCounts: (generation, look, now) => rules.lookCounts({ ...generation, looksAfter: null }, look, now),
  },
  "what one account does not show is believed of another": { ...rules, maybeElsewhere: () => false },
  "a single look proves absence": {
    ...rules,
    provesAbsence: ({ asked, ...generation }, look, now) => {
      const since = asked === null || asked.absentSince === null ? null : asked.absentSince - 300_000;
      const seen = asked === null ? null : { ...asked, absentSince: since };
      return rules.provesAbsence({ ...generation, holdExpireMax: 0, resendSafeForMs: null, asked: seen }, look, now);
    },
  },
  "absence proves whatever was seen last": {
    ...rules,
    provesAbsence: ({ asked, ...generation }, look, now) => {
      const seen = asked === null ? null : { ...asked, absentSince: asked.absentSince ?? asked.firstTime };
      return rules.provesAbsence({ ...generation, looksAfter: null, asked: seen }, look, now);
    },
  },
  "a bound object that is not listed is absent": {
    ...rules,
    provesAbsence: (generation, look, now) => rules.provesAbsence({ ...generation, bound: false }, look, now),
  },
  "what was absent is tried again without being asked": {
    ...rules,
    mayFollow: (voided, request) => voided.evidence === "ABSENT_AFTER_QUARANTINE" || rules.mayFollow(voided, request),
  },
  "one object pays for two spends": { ...rules, belongsElsewhere: () => false },
  "an operator settles what an attempt is in the middle of": { ...rules, isMidCall: () => false },
  "a new generation follows one in doubt": {
    ...rules,
    takeover: (live, request, now) => {
      const meant = rules.takeover(live, request, now);
      return meant === "IN_DOUBT" ? "START_ANEW" : meant;
    },
  },
  "a denial leaves the caps before it reserved": {
    ...rules,
    reserve: (world, request, caps) => {
      const holds: Hold[] = [];
      for (const cap of caps) {
        const denied = capDenial(world, cap, request);
        if (denied !== null) return denied;
        const counter = counterOf(world, cap, request);
        const amount = takes(cap, request);
        counter.held += amount;
        holds.push({ counter, amount, returned: 0n, counts: cap.rule.currency === null });
      }
      return holds;
    },
  },
  "a replayed 500 voids": {
    ...rules,
    proves: (generation, request) =>
      rules.proves(generation, request) ||
      (!generation.bound && request.evidence === "VENDOR_REFUSED" && request.replayed),
  },
  "an attempt that may have sent voids as never sent": {
    ...rules,
    proves: (generation, request) =>
      rules.proves(generation, request) || (!generation.bound && request.evidence === "NEVER_SENT"),
  },
  "a bound authorization is voided without its tombstone": {
    ...rules,
    proves: (generation, request) =>
      rules.proves({ ...generation, bound: false }, request) || rules.proves(generation, request),
  },
  "a cap lets one micro too much through": {
    ...rules,
    fits: (cap, counter, amount) => rules.fits(cap, counter, amount - 1n),
  },
  "a day is the day in UTC": {
    ...rules,
    label: (world, rule, period) => rules.label(world, inZone(rule, "UTC"), period),
  },
  "the window is chosen before the lock": {
    ...rules,
    label: (world, rule, period) => rules.label({ ...world, now: world.before }, rule, period),
  },
  "an anchor day is not clamped": {
    ...rules,
    label: (world, rule, period) => windowLabel(rule, period, world.now, (_year, _month, wanted) => wanted),
  },
  "a week begins on Monday": {
    ...rules,
    label: (world, rule, period) =>
      rules.label(world, { ...rule, calendar: { ...rule.calendar, weekStart: 1 } }, period),
  },
  "a window begins at midnight": {
    ...rules,
    label: (world, rule, period) =>
      rules.label(world, { ...rule, calendar: { ...rule.calendar, startHour: 0 } }, period),
  },
  "a fixed time counts for ever": {
    ...rules,
    counts: (cap, now) => rules.counts({ ...cap, rule: { ...cap.rule, fixed: null } }, now),
  },
  "an archived cap still denies": {
    ...rules,
    counts: (cap, now) => rules.counts({ ...cap, archived: false }, now),
  },
  "an archived cap is raised": {
    ...rules,
    raise: (world, generation, total) => {
      const caps = new Map([...world.caps].map(([id, cap]) => [id, { ...cap, archived: false }]));
      return rules.raise({ ...world, caps }, generation, total);
    },
  },
  "a cap in the shadow denies": {
    ...rules,
    reserve: (world, request, caps) =>
      rules.reserve(
        world,
        request,
        caps.map((cap) => ({ ...cap, enforcement: "ENFORCE" as const })),
      ),
  },
  "a cap in the shadow does not count": {
    ...rules,
    reserve: (world, request, caps) =>
      rules.reserve(
        world,
        request,
        caps.filter(({ enforcement }) => enforcement === "ENFORCE"),
      ),
  },
  "a place is not given back on a void": {
    ...rules,
    reserve: (world, request, caps) => {
      const holds = rules.reserve(world, request, caps);
      if (Array.isArray(holds)) {
        for (const hold of holds as Hold[]) if (hold.counts) hold.amount = 0n;
      }
      return holds;
    },
    settle: (world, generation, amount) => {
      for (const hold of generation.holds) if (hold.counts) hold.amount = 1n;
      rules.settle(world, generation, amount);
    },
  },
  "a charge above its hold takes a second place": {
    ...rules,
    settle: (world, generation, amount) => {
      rules.settle(world, generation, amount);
      for (const { counter, counts } of generation.holds) {
        if (counts && amount > generation.held) counter.committed += 1n;
      }
    },
  },
  "an increase takes a second place": {
    ...rules,
    raise: (world, generation, total) => {
      const denied = rules.raise(world, generation, total);
      if (denied === null) {
        for (const hold of generation.holds.filter(({ counts }) => counts)) {
          hold.amount += 1n;
          hold.counter.held += 1n;
        }
      }
      return denied;
    },
  },
  "a hold moves into the window of the commit": {
    ...rules,
    settle: (world, generation, amount) => {
      for (const hold of generation.holds) {
        hold.counter.held -= hold.amount;
        const rule = world.caps.get(hold.counter.name.cap)?.rule;
        const { window } = hold.counter.name;
        const now = rule === undefined ? window : rules.label(world, rule, window);
        hold.counter = counterNamed(world, { ...hold.counter.name, window: now });
        hold.counter.committed += hold.counts ? 1n : amount;
      }
    },
  },
  "a commit settles the held amount": {
    ...rules,
    settle: (world, generation) => rules.settle(world, generation, generation.amount),
  },
  "a repeat reserves again": {
    ...rules,
    repeat: (_world, generation) => {
      for (const hold of generation.holds) hold.counter.held += hold.amount;
    },
  },
  "a repeat is not compared": { ...rules, differences: () => [] },
  "a stale fencing token is accepted": {
    ...rules,
    fenceHolds: (leases, fence) => leases.has(`${fence.lease}:${fence.period}`),
  },
  "a failed spend is tried again without being asked": { ...rules, mayFollow: () => true },
  "a request is sent again after the vendor forgot its key": {
    ...rules,
    takeover: (live, request, now) =>
      live.settlement === "RESEND_SAFE"
        ? rules.takeover(live, request, live.grantTime)
        : rules.takeover(live, request, now),
  },
  "a one-call request is sent again with another body": {
    ...rules,
    takeover: (live, request, now) => rules.takeover(live, { ...request, fingerprint: "" }, now),
  },
  "a one-call request is sent again with another credential": {
    ...rules,
    takeover: (live, request, now) => rules.takeover(live, { ...request, credential: live.credential }, now),
  },
  "a spend is answered for another body although that is ruled out": {
    ...rules,
    differences: (live, request) => rules.differences(live, { ...request, sameBodyRequired: false }),
  },
  "a committed spend is answered for another body although that is ruled out": {
    ...rules,
    differences: (live, request) =>
      rules.differences(live, { ...request, sameBodyRequired: request.sameBodyRequired && live.state !== "COMMITTED" }),
  },
  "another body is refused where nobody has ruled it out": {
    ...rules,
    differences: (live, request) => rules.differences(live, { ...request, sameBodyRequired: true }),
  },
  "an object is continued that the caller did not name": {
    ...rules,
    continues: (live, request, now) =>
      rules.continues(live, { ...request, continueReference: live.reference ?? "" }, now),
  },
  "an attempt in the middle of a call is overtaken by naming its object": {
    ...rules,
    continues: (live, request) => live.bound && live.reference === request.continueReference,
  },
  "a followed object cannot be continued": { ...rules, continues: () => false },
  "a one-call request is sent again although its object is bound": {
    ...rules,
    takeover: (live, request, now) => rules.takeover({ ...live, bound: false }, request, now),
  },
  "an attempt that reported an unknown outcome voids as never sent": { ...rules, reportSent: () => {} },
  "the holding attempt sends again after the vendor forgot its key": { ...rules, mayRepeat: () => true },
  "what a replay was not executed for voids the first send": {
    ...rules,
    proves: (generation, request) =>
      rules.proves(generation, request) ||
      (!generation.bound &&
        request.evidence === "NOT_EXECUTED" &&
        rules.proves({ ...generation, told: false }, request)),
  },
  "what was not executed waits to be asked for": {
    ...rules,
    mayFollow: (voided, request) =>
      rules.mayFollow(voided.evidence === "NOT_EXECUTED" ? { ...voided, evidence: "VENDOR_REFUSED" } : voided, request),
  },
  "a refund gives back more than was committed": {
    ...rules,
    adjust: (world, refund, amount) => {
      for (const one of refundedBy(world, refund)) one.holds.forEach((hold) => (hold.returned -= amount));
      rules.adjust(world, refund, amount);
    },
  },
  "a refund gives headroom back to every cap": {
    ...rules,
    adjust: (world, refund, amount) => {
      const caps = new Map([...world.caps].map(([id, cap]) => [id, { ...cap, restores: true }]));
      rules.adjust({ ...world, caps }, refund, amount);
    },
  },
  "a refund gives nothing back": { ...rules, adjust: () => {} },
  "a refund lowers what was committed": {
    ...rules,
    adjust: (world, refund, amount) => {
      rules.adjust(world, refund, amount);
      for (const one of refundedBy(world, refund)) one.committed = (one.committed ?? 0n) - amount;
    },
  },
  "a refund in another currency gives headroom back": {
    ...rules,
    adjust: (world, refund, amount) => {
      const [original] = refundedBy(world, refund);
      rules.adjust(world, original === undefined ? refund : { ...refund, currency: original.currency }, amount);
    },
  },
  "a repeat may turn a spend into a refund": {
    ...rules,
    differences: (live, request) =>
      rules.differences(live, { ...request, direction: live.direction, refundOf: live.refundOf }),
  },
  "an attempt that another one has superseded holds more": {
    ...rules,
    mayRaise: () => true,
  },
  "an increase asks no cap": {
    ...rules,
    raise: (world, generation, total) => rules.raise({ ...world, caps: new Map() }, generation, total),
  },
  "an increase asks for headroom that it holds already": {
    ...rules,
    raise: (world, generation, total) => {
      const denied = generation.holds.map(({ counter }) => {
        const cap = world.caps.get(counter.name.cap);
        return cap === undefined ? null : counterDenial(world, cap, counter, { total, more: total });
      });
      return denied.find((one) => one !== null) ?? rules.raise(world, generation, total);
    },
  },
  "a void gives back the amount instead of what is held": {
    ...rules,
    raise: (world, generation, total) => {
      const amounts = generation.holds.map(({ amount }) => amount);
      const denied = rules.raise(world, generation, total);
      generation.holds.forEach((hold, i) => (hold.amount = amounts[i] ?? hold.amount));
      return denied;
    },
  },
  "a charge that is told twice counts twice": { ...rules, counted: () => 0n },
  "a kill switch is cached for a while": {
    ...rules,
    denies: (world, key, asked) => {
      const known = [...world.switches].filter(([, one]) => world.now - one.since >= 10_000);
      return rules.denies({ ...world, switches: new Map(known) }, key, asked);
    },
  },
  "a released switch still denies": {
    ...rules,
    denies: (world, key, asked) => {
      const all = [...world.switches].map(([name, one]) => [name, { ...one, engaged: true }] as const);
      return rules.denies({ ...world, switches: new Map(all) }, key, asked);
    },
  },
  "a customer's switch stops every customer": {
    ...rules,
    denies: (world, key, asked) => {
      const any = [...world.switches.values()].some((one) => one.engaged && one.target.kind === "CUSTOMER");
      return rules.denies(world, key, asked) ?? (any ? "KILL_SWITCH" : null);
    },
  },
  "a suspended key takes over": {
    ...rules,
    denies: (world, key, asked) => {
      const denied = rules.denies(world, key, asked);
      const live = [...world.spends.values()]
        .flat()
        .some((one) => isLive(one) && !holdRuns(one, world.now) && isAsked(one, asked));
      return denied === "VAULT_KEY_SUSPENDED" && live ? null : denied;
    },
  },
  "a suspended key spends until it is revoked": {
    ...rules,
    denies: (world, key, asked) => rules.denies(world, { ...key, suspended: false }, asked),
  },
  "a commit settles a charge of another spend": {
    ...rules,
    settle: (world, generation, amount) => {
      rules.settle(world, generation, amount);
      world.charges.delete(chargeName(generation, generation.reference ?? ""));
    },
  },
};
