import { invalidRequest, noSuchObject } from "./errors.ts";
import { emit } from "./events.ts";
import type { Params } from "./form.ts";
import type { Metadata } from "./objects.ts";
import { flagParam, groupsParam, integerParam, mergedMetadata, requiredParam, textParam } from "./params.ts";
import { type Context, type Endpoint, type Routes, type Stored, collectionOf, keep, newId } from "./state.ts";
import { changeItem, endSubscription } from "./subscription-change.ts";
import { startSubscription } from "./subscription-create.ts";
import { type Subscription, subscriptionWithId } from "./subscription-object.ts";

interface Schedule extends Stored {
  object: "subscription_schedule";
  customer: string;
  end_behavior: string;
  livemode: false;
  metadata: Metadata;
  phases: Params[];
  released_at: number | null;
  status: "not_started" | "active" | "completed" | "released" | "canceled";
  subscription: string | null;
}

/** POST /v1/subscription_schedules: `start_date` now begins the first phase and charges it; later Stripe does. */
const createSchedule: Endpoint = (context) => {
  const { params } = context;
  const from = textParam(params, "from_subscription");
  const present = from === undefined ? undefined : subscriptionWithId(context, from);
  const customer = requiredParam(textParam(params, "customer") ?? present?.customer, "customer");
  const phases = groupsParam(params, "phases");
  const start = textParam(params, "start_date") ?? "now";
  const startsNow = start === "now" || Number(start) <= context.clock.seconds();
  const [first] = phases;
  const prepared =
    present === undefined && startsNow && first !== undefined ? startSubscription(context, first, customer) : undefined;
  const metadata = mergedMetadata(params);
  return {
    lock: customer,
    run: () => {
      const subscription = present ?? prepared?.run();
      const schedule: Schedule = {
        id: newId("sub_sched"),
        object: "subscription_schedule",
        created: context.clock.seconds(),
        customer,
        end_behavior: textParam(params, "end_behavior") ?? "release",
        livemode: false,
        metadata,
        phases,
        released_at: null,
        status: subscription === undefined ? "not_started" : "active",
        subscription: subscription?.id ?? null,
      };
      keep(context.account, schedule);
      if (subscription !== undefined) subscription.schedule = schedule.id;
      else if (first !== undefined) startLater(context, schedule, first, Number(start));
      emit(context, "subscription_schedule.created", schedule);
      if (subscription !== undefined) followPhases(context, schedule, subscription);
      return schedule;
    },
  };
};

function startLater(context: Context, schedule: Schedule, phase: Params, atSeconds: number): void {
  context.agenda.add(atSeconds * 1000, context.account.id, (later) => {
    if (schedule.status !== "not_started") return;
    const subscription = startSubscription(later, phase, schedule.customer).run();
    schedule.status = "active";
    schedule.subscription = subscription.id;
    subscription.schedule = schedule.id;
    followPhases(later, schedule, subscription);
  });
}

/** At the end of each phase with an `end_date` the items of the next one begin. */
function followPhases(context: Context, schedule: Schedule, subscription: Subscription): void {
  for (const [index, phase] of schedule.phases.entries()) {
    const end = integerParam(phase, "end_date");
    const next = schedule.phases[index + 1];
    if (end === undefined || next === undefined) continue;
    context.agenda.add(end * 1000, context.account.id, (later) => {
      if (schedule.status !== "active") return;
      const before = subscription.items.data.map(({ id }) => id);
      for (const item of groupsParam(next, "items")) changeItem(later, subscription, item, "create_prorations");
      for (const id of before) changeItem(later, subscription, { id, deleted: "true" }, "create_prorations");
      emit(later, "subscription_schedule.updated", schedule);
    });
  }
}

const updateSchedule: Endpoint = (context) => {
  const schedule = scheduleOf(context);
  const phases = groupsParam(context.params, "phases");
  const metadata = mergedMetadata(context.params, schedule.metadata);
  return {
    lock: schedule.id,
    run: () => {
      refuseUnlessOpen(schedule);
      if (phases.length > 0) schedule.phases = phases;
      schedule.metadata = metadata;
      emit(context, "subscription_schedule.updated", schedule);
      return schedule;
    },
  };
};

/** POST /v1/subscription_schedules/{id}/cancel: ends the subscription too, with `invoice_now` and `prorate`. */
const cancelSchedule: Endpoint = (context) => {
  const schedule = scheduleOf(context);
  const invoiceNow = flagParam(context.params, "invoice_now") ?? true;
  const prorate = flagParam(context.params, "prorate") ?? true;
  return {
    lock: schedule.id,
    run: () => {
      refuseUnlessOpen(schedule);
      schedule.status = "canceled";
      if (schedule.subscription !== null) {
        endSubscription(context, subscriptionWithId(context, schedule.subscription), { invoiceNow, prorate });
      }
      emit(context, "subscription_schedule.canceled", schedule);
      return schedule;
    },
  };
};

/** POST /v1/subscription_schedules/{id}/release: the subscription goes on without it. */
const releaseSchedule: Endpoint = (context) => {
  const schedule = scheduleOf(context);
  return {
    lock: schedule.id,
    run: () => {
      refuseUnlessOpen(schedule);
      schedule.status = "released";
      schedule.released_at = context.clock.seconds();
      if (schedule.subscription !== null) subscriptionWithId(context, schedule.subscription).schedule = null;
      emit(context, "subscription_schedule.released", schedule);
      return schedule;
    },
  };
};

function refuseUnlessOpen(schedule: Schedule): void {
  if (schedule.status === "active" || schedule.status === "not_started") return;
  throw invalidRequest(`This subscription schedule is ${schedule.status}.`);
}

function scheduleOf(context: Context): Schedule {
  const id = context.ids[0] ?? "";
  const schedule = collectionOf<Schedule>(context.account, "subscription_schedule").get(id);
  if (schedule === undefined) throw noSuchObject("subscription_schedule", id);
  return schedule;
}

export const scheduleRoutes: Routes = [
  ["POST", "/v1/subscription_schedules", createSchedule],
  ["POST", "/v1/subscription_schedules/:id", updateSchedule],
  ["POST", "/v1/subscription_schedules/:id/cancel", cancelSchedule],
  ["POST", "/v1/subscription_schedules/:id/release", releaseSchedule],
];
