import { invalidRequest } from "./errors.ts";
import { echoed } from "./echo.ts";
import { requiredParam, textParam } from "./params.ts";
import { type Endpoint, type Routes, type Stored, collectionOf, keep, newId } from "./state.ts";

interface MeterEvent extends Stored {
  event_name: string;
  identifier: string;
  livemode: false;
  seenAt: number;
}

const rememberedMs = 24 * 60 * 60 * 1000;

/**
 * POST /v1/billing/meter_events and /v2/billing/meter_events. Usage has a protection of its own: an `identifier` that was
 * seen in the last day is refused, which means that the usage is counted already.
 */
function countUsage(kind: string): Endpoint {
  return (context) => {
    const { params, clock, account } = context;
    const eventName = requiredParam(textParam(params, "event_name"), "event_name");
    const identifier = textParam(params, "identifier") ?? newId("mtr_event");
    return {
      lock: identifier,
      run: () => {
        const seen = collectionOf<MeterEvent>(account, kind).get(identifier);
        if (seen !== undefined && clock.now() - seen.seenAt < rememberedMs) {
          throw invalidRequest(`An event already exists with identifier ${identifier}.`, { param: "identifier" });
        }
        const now = clock.seconds();
        const { seenAt: _, ...event } = keep<MeterEvent>(account, {
          timestamp: now,
          ...echoed(params),
          id: identifier,
          object: kind,
          created: kind.startsWith("v2.") ? new Date(clock.now()).toISOString() : now,
          event_name: eventName,
          identifier,
          livemode: false,
          seenAt: clock.now(),
        } as MeterEvent);
        return event;
      },
    };
  };
}

export const meterEventRoutes: Routes = [
  ["POST", "/v1/billing/meter_events", countUsage("billing.meter_event")],
  ["POST", "/v2/billing/meter_events", countUsage("v2.billing.meter_event")],
];
