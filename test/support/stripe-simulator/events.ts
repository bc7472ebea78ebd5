import { listPage } from "./lists.ts";
import type { StripeEvent } from "./objects.ts";
import { type Context, type Endpoint, newId } from "./state.ts";
import { noSuchObject } from "./errors.ts";
import { textParam } from "./params.ts";

const retentionMs = 30 * 24 * 60 * 60 * 1000;
export const apiVersion = "2026-10-28.endive";

/** Records an event with a copy of the object as it is now. */
export function emit(context: Context, type: string, object: object): void {
  const event: StripeEvent = {
    id: newId("evt"),
    object: "event",
    api_version: apiVersion,
    created: context.clock.seconds(),
    data: { object: structuredClone(object) },
    livemode: false,
    pending_webhooks: 0,
    request: context.origin,
    type,
  };
  context.account.events.set(event.id, event);
}

/** GET /v1/events: `type`, `types[]`, `created`; reaches back 30 days. */
export const listEvents: Endpoint = (context) => ({
  run: () => {
    const { params, account, clock, lag } = context;
    const type = textParam(params, "type");
    const types = Array.isArray(params["types"]) ? params["types"] : undefined;
    const oldest = Math.floor((clock.now() - retentionMs) / 1000);
    return listPage(context, account.events.values(), {
      url: "/v1/events",
      kind: "event",
      lagMs: lag.events,
      keep: (event) =>
        event.created >= oldest &&
        (type === undefined || event.type === type) &&
        (types === undefined || types.includes(event.type)),
    });
  },
});

export const retrieveEvent: Endpoint = (context) => ({
  run: () => {
    const id = context.ids[0] ?? "";
    const event = context.account.events.get(id);
    if (event === undefined) throw noSuchObject("event", id);
    return event;
  },
});
