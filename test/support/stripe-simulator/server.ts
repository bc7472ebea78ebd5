import type { IncomingMessage, ServerResponse } from "node:http";
import { StripeRefusal, invalidRequest } from "./errors.ts";
import { parseForm, parseJson } from "./form.ts";
import { type Answer, answer, wayBack } from "./pipeline.ts";
import type { ReceivedRequest } from "./request-log.ts";
import { newId } from "./state.ts";
import type { World } from "./world.ts";

const bodyBytesMax = 1024 * 1024;

/** Answers one request to the Stripe API, or cuts its connection. */
export async function serveStripe(world: World, message: IncomingMessage, response: ServerResponse): Promise<void> {
  const request = receive(world, message, await readBody(message));
  const refusal = decode(request, message);
  world.log.add(request);
  const fault = world.faults.take(request);
  request.fault = fault?.spec.mode ?? null;
  const given = await answer(world, request, fault, refusal);
  const sent = given === "reset" ? given : await wayBack(world, fault?.spec, given);
  if (sent === "reset" || given === "reset") {
    message.socket.resetAndDestroy();
    return;
  }
  const final = sent === "truncate" ? given : sent;
  request.status = final.reply.status;
  send(request, response, final, sent === "truncate");
}

/** Reads a whole body. Throws a plain Error above 1 MiB: no test needs more. */
export async function readBody(message: IncomingMessage): Promise<string> {
  const chunks: Buffer[] = [];
  let length = 0;
  for await (const chunk of message as AsyncIterable<Buffer>) {
    length += chunk.length;
    if (length > bodyBytesMax) throw new Error("Request body is larger than 1 MiB.");
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString("utf8");
}

function receive(world: World, message: IncomingMessage, body: string): ReceivedRequest {
  const [path = "", query = ""] = (message.url ?? "/").split("?", 2);
  const owner = world.accountOf(secretOf(message));
  const other = headerOf(message, "stripe-account") ?? headerOf(message, "stripe-context");
  return {
    id: newId("req"),
    at: world.clock.now(),
    method: message.method ?? "GET",
    path,
    query,
    account: owner === null ? null : (other ?? owner),
    key: headerOf(message, "idempotency-key"),
    stripeVersion: headerOf(message, "stripe-version"),
    body,
    params: {},
    fault: null,
    replayed: false,
    executed: false,
    status: null,
  };
}

/** Fills in the parameters; the refusal, if any, is only answered once the stations before validation are passed. */
function decode(request: ReceivedRequest, message: IncomingMessage): StripeRefusal | undefined {
  try {
    const type = headerOf(message, "content-type");
    const wanted = request.path.startsWith("/v2/") ? "application/json" : "application/x-www-form-urlencoded";
    if (request.body !== "" && type?.split(";")[0]?.trim() !== wanted) {
      throw invalidRequest(`Invalid content type: ${type ?? "none"}. Use ${wanted}.`);
    }
    if (request.body !== "" && wanted === "application/json") request.params = parseJson(request.body);
    else request.params = parseForm(request.method === "POST" ? request.body : request.query);
    return undefined;
  } catch (error) {
    if (error instanceof StripeRefusal) return error;
    throw error;
  }
}

/** Bearer token, or the user name of Basic. */
function secretOf(message: IncomingMessage): string {
  const [scheme, value = ""] = (message.headers.authorization ?? "").split(" ", 2);
  if (scheme === "Bearer") return value;
  if (scheme === "Basic") return Buffer.from(value, "base64").toString("utf8").split(":")[0] ?? "";
  return "";
}

function headerOf(message: IncomingMessage, name: string): string | null {
  const value = message.headers[name];
  return typeof value === "string" && value !== "" ? value : null;
}

function send(request: ReceivedRequest, response: ServerResponse, given: Answer, isTruncated: boolean): void {
  const body = Buffer.from(given.reply.body);
  response.writeHead(given.reply.status, {
    ...given.reply.headers,
    "content-length": body.length,
    "request-id": request.id,
    ...(request.stripeVersion === null ? {} : { "stripe-version": request.stripeVersion }),
    ...(request.key === null ? {} : { "idempotency-key": request.key }),
    ...(request.key === null || given.original === undefined ? {} : { "original-request": given.original }),
    ...(request.replayed ? { "idempotent-replayed": "true" } : {}),
  });
  if (!isTruncated) {
    response.end(body);
    return;
  }
  // Closed and not reset: a reset may overtake the half that was sent, and then looks like no answer at all.
  response.write(body.subarray(0, Math.floor(body.length / 2)), () => response.socket?.destroy());
}
