import type { IncomingMessage, ServerResponse } from "node:http";
import { devNull } from "node:os";
import type { StripeHttpClient, StripeHttpResponse } from "../../sdk/stripe-http.ts";
import type { FaultMode } from "../support/stripe-simulator/fault-spec.ts";
import type { Movement } from "../support/stripe-simulator/movements.ts";
import { serveStripe } from "../support/stripe-simulator/server.ts";
import { World } from "../support/stripe-simulator/world.ts";
import type { EventLoop } from "./event-loop.ts";
import { epochMs } from "./machine.ts";
import type { Link, Network } from "./network.ts";
import type { Chance } from "./random.ts";

/** A request as it reached the vendor. Instants of the simulation. */
export interface VendorRequest {
  readonly method: string;
  readonly path: string;
  readonly key: string;
  readonly sentAt: number;
  readonly arrivedAt: number;
  /** How many movements there were when it had been carried out; before it, there were `movementsBefore`. */
  readonly movementsBefore: number;
  movementsAfter: number;
}

export interface Vendor {
  readonly world: World;
  readonly movements: readonly Movement[];
  readonly requests: readonly VendorRequest[];
  /** Lets the vendor's time pass up to now. */
  catchUp(): void;
  /** The client of a process's Stripe library. `key` lets a defect replace the keys. */
  httpClient(network: Network, link: Link, key?: (key: string) => string): StripeHttpClient;
  serve(request: WireRequest, sentAt: number): Promise<WireAnswer>;
}

interface WireRequest {
  readonly method: string;
  readonly path: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
}

interface WireAnswer {
  readonly status: number;
  readonly headers: Record<string, string>;
  readonly body: string;
  readonly ending: "whole" | "truncated" | "reset";
}

const faults: readonly FaultMode[] = [
  "drop_before_execute",
  "rate_limit_429",
  "conflict_409",
  "html_502",
  "error_500_before",
  "error_500_after",
  "lock_timeout_429",
  "declined_402",
  "drop_after_execute",
  "truncate_body",
  "html_502_after",
  "invalid_json_200",
];

/** The Stripe simulator without its socket: the same routes, keys, states and faults. */
export function createVendor(loop: EventLoop, chance: Chance, faultRate: () => number): Vendor {
  const world = new World({ movementsFile: devNull });
  let now = epochMs;
  world.clock.now = () => now;
  world.clock.setTime = (instant) => {
    now = instant;
  };
  const movements: Movement[] = [];
  world.ledger.append = (movement) => void movements.push(movement);
  const requests: VendorRequest[] = [];
  const catchUp = (): void => world.moveClockTo(epochMs + loop.now());
  const vendor: Vendor = {
    world,
    movements,
    requests,
    catchUp,
    async serve(request, sentAt) {
      catchUp();
      if (chance.happens(faultRate())) world.faults.set({ mode: chance.pick(faults), times: 1 });
      const received: VendorRequest = {
        method: request.method,
        path: request.path,
        key: request.headers["idempotency-key"] ?? "",
        sentAt,
        arrivedAt: loop.now(),
        movementsBefore: movements.length,
        movementsAfter: 0,
      };
      requests.push(received);
      const answer = await served(world, request);
      received.movementsAfter = movements.length;
      return answer;
    },
    httpClient: (network, link, key) => createHttpClient(vendor, network, link, key ?? ((given) => given)),
  };
  return vendor;
}

async function served(world: World, { method, path, headers, body }: WireRequest): Promise<WireAnswer> {
  const answer = {
    status: 0,
    headers: {} as Record<string, string>,
    body: "",
    ending: "whole" as WireAnswer["ending"],
  };
  const end = (chunk: Buffer): void => {
    answer.body = chunk.toString("utf8");
  };
  const message = {
    method,
    url: path,
    headers,
    socket: { resetAndDestroy: () => (answer.ending = "reset") },
    [Symbol.asyncIterator]: () => [Buffer.from(body)][Symbol.iterator](),
  };
  const response = {
    writeHead(status: number, given: Record<string, unknown>) {
      answer.status = status;
      answer.headers = Object.fromEntries(Object.entries(given).map(([name, value]) => [name, String(value)]));
    },
    write(chunk: Buffer) {
      answer.ending = "truncated";
      end(chunk);
    },
    end,
  };
  await serveStripe(world, message as unknown as IncomingMessage, response as unknown as ServerResponse);
  return answer;
}

function createHttpClient(
  vendor: Vendor,
  network: Network,
  link: Link,
  keyOf: (key: string) => string,
): StripeHttpClient {
  return {
    getClientName: () => "simulated",
    async makeRequest(_host, _port, path, method, headers, requestData, _protocol, timeoutMs) {
      const lower = Object.entries(headers).map(([name, value]) => [name.toLowerCase(), String(value)]);
      const request = {
        method,
        path,
        headers: Object.fromEntries(lower),
        body: typeof requestData === "string" ? requestData : "",
      };
      const key = request.headers["idempotency-key"];
      if (method === "POST" && key !== undefined) request.headers["idempotency-key"] = keyOf(key);
      const label = `${method} ${path}`;
      const exchange = network.exchange(link, label, (sentAt) => vendor.serve(request, sentAt));
      const delivery = await inTime(exchange, timeoutMs);
      if ("reset" in delivery) throw broken(delivery.reset === "refused" ? "ECONNREFUSED" : "ECONNRESET");
      if (delivery.answer.ending === "reset") throw broken("ECONNRESET");
      return responseOf(delivery.answer);
    },
  };
}

/** The socket's own timeout, in the time of the process. */
function inTime<Value>(work: Promise<Value>, timeoutMs: number): Promise<Value> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(broken("ETIMEDOUT")), timeoutMs);
    void work.then((value) => {
      clearTimeout(timer);
      resolve(value);
    }, reject);
  });
}

function broken(code: string): Error {
  return Object.assign(new Error(`simulated ${code}`), {
    code,
    ...(code === "ECONNREFUSED" ? { syscall: "connect" } : {}),
  });
}

function responseOf({ status, headers, body, ending }: WireAnswer): StripeHttpResponse {
  return {
    getStatusCode: () => status,
    getHeaders: () => headers,
    getRawResponse: () => ({ statusCode: status, headers }),
    toStream: () => {
      throw new Error("nothing streams here");
    },
    toJSON: () => {
      if (ending === "truncated") return Promise.reject(broken("ECONNRESET"));
      try {
        return Promise.resolve(JSON.parse(body));
      } catch (error) {
        return Promise.reject(error);
      }
    },
  };
}
