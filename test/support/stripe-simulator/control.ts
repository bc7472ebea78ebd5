import type { IncomingMessage, ServerResponse } from "node:http";
import { type Outcome, actsOn } from "./acts.ts";
import { StripeRefusal } from "./errors.ts";
import { parseFaultSpec } from "./fault-spec.ts";
import type { Fault } from "./faults.ts";
import { readMovements } from "./movements.ts";
import { type Reply, jsonReply, refusalReply } from "./reply.ts";
import { readBody } from "./server.ts";
import type { World } from "./world.ts";

type Json = Record<string, unknown>;

/**
 * The control API, for tests whose simulator runs in another process. JSON in, JSON out.
 *
 *     GET    /_simulator/requests | /_simulator/movements | /_simulator/clock
 *     POST   /_simulator/clock                            {"advanceMs": 1} or {"setTime": epoch ms}
 *     POST   /_simulator/faults                           a FaultSpec → {"id"}
 *     DELETE /_simulator/faults[/{id}]
 *     GET    /_simulator/faults/{id}/arrivals?count=1     answers when that many requests met the fault
 *     POST   /_simulator/faults/{id}/release
 *     POST   /_simulator/payment_intents/{id}/confirm     {"account"?, "paymentMethod"?}, as from a browser
 *     POST   /_simulator/payment_intents/{id}/fail        {"account"?}, as from a browser
 *     POST   /_simulator/payment_intents/{id}/settle      {"account"?, "outcome": "succeeded" | "failed"}
 *     POST   /_simulator/checkout_sessions/{id}/complete  {"account"?, "paymentMethod"?}, as from a browser
 *     POST   /_simulator/payment_links/{id}/open          {"account"?, "customer"?}, as from a browser
 *     POST   /_simulator/payment_links/{id}/pay           {"account"?, "paymentMethod"?, "customer"?}, as from a browser
 *     POST   /_simulator/{refunds|payouts|topups}/{id}/settle   {"account"?, "outcome": "succeeded" | "failed"}
 *     POST   /_simulator/objects                          {"account"?, "object", ...}: what no API call makes
 *
 * Moving the clock lets Stripe do what it does by itself until then: charge invoices, renew, expire.
 */
export async function serveControl(world: World, message: IncomingMessage, response: ServerResponse): Promise<void> {
  const reply = await control(world, message);
  response.writeHead(reply.status, reply.headers).end(reply.body);
}

async function control(world: World, message: IncomingMessage): Promise<Reply> {
  try {
    const url = new URL(message.url ?? "/", "http://simulator");
    const [, , thing = "", id = "", action = ""] = url.pathname.split("/");
    const body = await readJson(message);
    const value = await perform(world, `${message.method} ${thing}`, { id, action, body, url });
    return value === undefined ? problem(404, "Unknown control call.") : jsonReply(value);
  } catch (error) {
    if (error instanceof StripeRefusal) return refusalReply(error);
    return problem(400, error instanceof Error ? error.message : String(error));
  }
}

async function perform(
  world: World,
  call: string,
  { id, action, body, url }: { id: string; action: string; body: Json; url: URL },
): Promise<unknown> {
  switch (call) {
    case "GET requests":
      return world.log.all();
    case "GET movements":
      return readMovements(world.ledger.file);
    case "GET clock":
      return { now: world.clock.now() };
    case "POST clock":
      return moveClock(world, body);
    case "POST faults":
      if (id === "") return { id: world.faults.set(parseFaultSpec(body)).id };
      if (action !== "release") return undefined;
      faultOf(world, id).release();
      return { id };
    case "DELETE faults":
      if (id === "") world.faults.clear();
      else faultOf(world, id).remove();
      return {};
    case "GET faults":
      return await faultOf(world, id).arrivals(Number(url.searchParams.get("count") ?? "1"));
    case "POST objects":
      return place(world, body);
    default:
      return call.startsWith("POST ") ? act(world, `${call.slice(5)} ${action}`, id, body) : undefined;
  }
}

function moveClock(world: World, body: Json): { now: number } {
  const { advanceMs, setTime } = body;
  if (typeof advanceMs === "number") world.moveClockTo(world.clock.now() + advanceMs);
  else if (typeof setTime === "number") world.moveClockTo(setTime);
  else throw new Error("Give advanceMs or setTime, a number of milliseconds.");
  return { now: world.clock.now() };
}

/** Calls an act on the object with this id; undefined when there is no such act. */
function act(world: World, name: string, id: string, body: Json): unknown {
  const acts = actsOn(world);
  const options = pick(body, ["account", "paymentMethod", "customer"]);
  switch (name) {
    case "payment_intents confirm":
      return acts.confirmFromBrowser(id, options);
    case "payment_intents fail":
      return acts.failFromBrowser(id, options);
    case "payment_intents settle":
      return acts.settleProcessing(id, outcomeOf(body), options);
    case "checkout_sessions complete":
      return acts.completeCheckout(id, options);
    case "payment_links open":
      return acts.openLink(id, options);
    case "payment_links pay":
      return acts.payLink(id, options);
    case "refunds settle":
      return acts.settleRefund(id, outcomeOf(body), options);
    case "payouts settle":
      return acts.settlePayout(id, outcomeOf(body), options);
    case "topups settle":
      return acts.settleTopup(id, outcomeOf(body), options);
    default:
      return undefined;
  }
}

function place(world: World, { account, ...fields }: Json): unknown {
  const { object } = fields;
  if (typeof object !== "string") throw new Error("Give object, the kind of the object.");
  return actsOn(world).place({ ...fields, object }, typeof account === "string" ? { account } : {});
}

function outcomeOf(body: Json): Outcome {
  const { outcome } = body;
  if (outcome !== "succeeded" && outcome !== "failed") throw new Error("outcome must be succeeded or failed.");
  return outcome;
}

/** The texts among these fields. */
function pick(body: Json, names: readonly string[]): Record<string, string> {
  return Object.fromEntries(
    names.flatMap((name) => {
      const value = body[name];
      return typeof value === "string" ? [[name, value] as const] : [];
    }),
  );
}

function faultOf(world: World, id: string): Fault {
  const fault = world.faults.get(id);
  if (fault === undefined) throw new Error(`There is no fault ${id}.`);
  return fault;
}

async function readJson(message: IncomingMessage): Promise<Json> {
  const text = await readBody(message);
  const value: unknown = text === "" ? {} : JSON.parse(text);
  if (typeof value !== "object" || value === null) throw new Error("The body must be a JSON object.");
  return value as Json;
}

function problem(status: number, message: string): Reply {
  return jsonReply({ error: message }, status);
}
