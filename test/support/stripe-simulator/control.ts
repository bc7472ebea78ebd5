import type { IncomingMessage, ServerResponse } from "node:http";
import { StripeRefusal } from "./errors.ts";
import { parseFaultSpec } from "./fault-spec.ts";
import type { Fault } from "./faults.ts";
import { readMovements } from "./movements.ts";
import { settleProcessing } from "./payment-intent-bank.ts";
import { confirmFromBrowser } from "./payment-intent-confirm.ts";
import { type Reply, jsonReply, refusalReply } from "./reply.ts";
import { readBody } from "./server.ts";
import { type World, defaultAccount } from "./world.ts";

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
 *     POST   /_simulator/payment_intents/{id}/settle      {"account"?, "outcome": "succeeded" | "failed"}
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
    case "POST payment_intents":
      return actOnIntent(world, id, action, body);
    default:
      return undefined;
  }
}

function moveClock(world: World, body: Json): { now: number } {
  const { advanceMs, setTime } = body;
  if (typeof advanceMs === "number") world.moveClockTo(world.clock.now() + advanceMs);
  else if (typeof setTime === "number") world.moveClockTo(setTime);
  else throw new Error("Give advanceMs or setTime, a number of milliseconds.");
  return { now: world.clock.now() };
}

function actOnIntent(world: World, id: string, action: string, body: Json): unknown {
  const account = typeof body["account"] === "string" ? body["account"] : defaultAccount;
  if (action === "confirm") {
    const paymentMethod = typeof body["paymentMethod"] === "string" ? body["paymentMethod"] : undefined;
    return confirmFromBrowser(world.contextOf(account, id, { id: null, idempotency_key: null }), paymentMethod);
  }
  if (action !== "settle") return undefined;
  const outcome = body["outcome"];
  if (outcome !== "succeeded" && outcome !== "failed") throw new Error("outcome must be succeeded or failed.");
  return settleProcessing(world.contextOf(account, id, null), outcome);
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
