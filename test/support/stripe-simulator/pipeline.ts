import { setTimeout as delay } from "node:timers/promises";
import {
  StripeRefusal,
  internalError,
  invalidRequest,
  keyInUse,
  lockTimeout,
  rateLimited,
  unauthorized,
} from "./errors.ts";
import { expanded } from "./expand.ts";
import type { FaultMode, FaultSpec } from "./fault-spec.ts";
import type { ActiveFault } from "./faults.ts";
import { type Reply, htmlReply, jsonReply, refusalReply } from "./reply.ts";
import type { ReceivedRequest } from "./request-log.ts";
import { routeOf } from "./routes.ts";
import type { Prepared } from "./state.ts";
import type { World } from "./world.ts";

const keyLengthMax = 255;

/** What goes back to the client; `original` is the request whose execution the answer tells of. */
export interface Answer {
  readonly reply: Reply;
  readonly original?: string;
}

/**
 * Takes a request through Stripe's stations: credentials, limiter, validation, idempotency layer, execution.
 * `refusal` is set when it could not even be decoded. "reset" means: cut the connection instead of answering.
 */
export async function answer(
  world: World,
  request: ReceivedRequest,
  fault: ActiveFault | undefined,
  refusal: StripeRefusal | undefined,
): Promise<Answer | "reset"> {
  try {
    if (request.account === null) throw unauthorized("Invalid API Key provided.");
    const early = await beforeLayer(world, request, fault);
    if (early !== undefined) return early;
    if (refusal !== undefined) throw refusal;
    if (request.key !== null && request.key.length > keyLengthMax) {
      throw invalidRequest(`Idempotency keys may be at most ${keyLengthMax} characters long.`);
    }
    return await throughLayer(world, request, fault);
  } catch (error) {
    if (error instanceof StripeRefusal) return { reply: refusalReply(error) };
    throw error;
  }
}

async function beforeLayer(
  world: World,
  request: ReceivedRequest,
  fault: ActiveFault | undefined,
): Promise<Answer | "reset" | undefined> {
  switch (fault?.spec.mode) {
    case "drop_before_execute":
      await pause(world, fault.spec);
      return "reset";
    case "rate_limit_429":
      throw rateLimited(fault.spec.reason ?? "global-rate");
    case "conflict_409":
      throw keyInUse(request.key ?? "");
    case "html_502":
      return { reply: htmlReply() };
    case "hold_in_transit":
      await passGate(world, fault);
      return undefined;
    default:
      return undefined;
  }
}

async function throughLayer(world: World, request: ReceivedRequest, fault: ActiveFault | undefined): Promise<Answer> {
  // The header means nothing on a GET, and in v1 nothing on a DELETE.
  const isWrite = request.method === "POST" || (request.method === "DELETE" && request.path.startsWith("/v2/"));
  const isKeyed = isWrite && request.key !== null;
  const replay = isKeyed ? world.keys.find(request) : undefined;
  if (replay !== undefined) {
    request.replayed = true;
    return { reply: replay.reply, original: replay.originalRequest };
  }
  const prepared = prepare(world, request, fault?.spec);
  // From here to the end of begin() nothing may await: two requests must not both find the key free.
  const save = isKeyed ? world.keys.begin(request) : undefined;
  request.executed = true;
  const reply = await execute(world, prepared, fault);
  save?.(reply);
  return { reply, original: request.id };
}

/** Validation: what it throws is not saved. */
function prepare(world: World, request: ReceivedRequest, fault: FaultSpec | undefined): Prepared {
  const { endpoint, ids } = routeOf(request.method, request.path);
  const account = world.account(request.account ?? "");
  const prepared = endpoint({
    account,
    params: request.params,
    ids,
    origin: { id: request.id, idempotency_key: request.key },
    clock: world.clock,
    agenda: world.agenda,
    ledger: world.ledger,
    lag: world.lag,
    ...(fault?.mode === "declined_402" ? { forcedDecline: fault.code ?? "generic_decline" } : {}),
  });
  const { expand } = request.params;
  if (!Array.isArray(expand)) return prepared;
  const paths = expand.filter((path) => typeof path === "string");
  return { ...prepared, run: () => expanded(account, prepared.run(), paths) };
}

/** Runs an endpoint with the object it works on locked. Never throws a refusal: it is an outcome like any other. */
async function execute(world: World, prepared: Prepared, fault: ActiveFault | undefined): Promise<Reply> {
  const { lock } = prepared;
  if (lock !== undefined && world.locks.has(lock)) return refusalReply(lockTimeout());
  if (lock !== undefined) world.locks.add(lock);
  try {
    await delayExecution(world, fault);
    const instead = insteadOfEndpoint(fault?.spec);
    if (instead !== undefined) throw instead;
    const reply = runEndpoint(prepared);
    if (fault?.spec.mode === "hold_after_execute") await passGate(world, fault);
    if (fault?.spec.mode === "slow_after_execute") await pause(world, fault.spec);
    if (fault?.spec.mode === "error_500_after") throw internalError();
    return reply;
  } catch (error) {
    if (error instanceof StripeRefusal) return refusalReply(error);
    throw error;
  } finally {
    if (lock !== undefined) world.locks.delete(lock);
  }
}

async function delayExecution(world: World, fault: ActiveFault | undefined): Promise<void> {
  if (world.executionMs > 0) await delay(world.executionMs, undefined, { signal: world.closing });
  if (fault?.spec.mode === "hold") await passGate(world, fault);
  if (fault?.spec.mode === "slow_before_execute") await pause(world, fault.spec);
}

function insteadOfEndpoint(fault: FaultSpec | undefined): StripeRefusal | undefined {
  switch (fault?.mode) {
    case "error_500_before":
      return internalError();
    case "lock_timeout_429":
      return lockTimeout();
    case "bad_request_400":
      return invalidRequest("The request was refused in execution.", { code: fault.code ?? "invalid_request" });
    default:
      return undefined;
  }
}

/** The answer is written down at once: the object may change before it is sent. */
function runEndpoint(prepared: Prepared): Reply {
  try {
    const value = prepared.run();
    return { ...jsonReply(value), current: () => jsonReply(value) };
  } catch (error) {
    if (error instanceof StripeRefusal) return refusalReply(error);
    throw error;
  }
}

/** What the way back makes of the answer. */
export async function wayBack(
  world: World,
  fault: FaultSpec | undefined,
  given: Answer,
): Promise<Answer | "reset" | "truncate"> {
  const mode: FaultMode | undefined = fault?.mode;
  switch (mode) {
    case "drop_after_execute":
      await pause(world, fault);
      return "reset";
    case "truncate_body":
      return "truncate";
    case "slow_reply":
      await pause(world, fault);
      return given;
    case "html_502_after":
      return { reply: htmlReply() };
    case "invalid_json_200":
      return { ...given, reply: { ...given.reply, status: 200, body: '{"id": "ch_' } };
    default:
      return given;
  }
}

/** A gate opened after the simulator closed lets nobody through: money must not move behind a test's back. */
async function passGate(world: World, fault: ActiveFault): Promise<void> {
  await fault.gate;
  world.closing.throwIfAborted();
}

async function pause(world: World, fault: FaultSpec | undefined): Promise<void> {
  if ((fault?.afterMs ?? 0) > 0) await delay(fault?.afterMs, undefined, { signal: world.closing });
}
