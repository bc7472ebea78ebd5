import type { Params } from "./form.ts";

/** One request as the simulator received it. */
export interface ReceivedRequest {
  readonly id: string;
  /** Milliseconds on the simulator's clock at arrival. */
  readonly at: number;
  readonly method: string;
  /** Without the query. */
  readonly path: string;
  readonly query: string;
  readonly account: string | null;
  readonly key: string | null;
  readonly stripeVersion: string | null;
  /** The body exactly as it arrived. */
  readonly body: string;
  /** The decoded body of a POST, or query of a GET; empty when it could not be decoded. */
  params: Params;
  /** The mode of the fault that it ran into. */
  fault: string | null;
  /** The answer came from an earlier request under the same key. */
  replayed: boolean;
  /** The endpoint ran, whatever it then answered. */
  executed: boolean;
  /** Null while it runs, and when the connection was cut instead of answered. */
  status: number | null;
}

const requestsMax = 100_000;

/** The newest requests, oldest first. Bounded, so that a long load run does not fill the memory. */
export class RequestLog {
  #requests: ReceivedRequest[] = [];

  add(request: ReceivedRequest): void {
    this.#requests.push(request);
    if (this.#requests.length > requestsMax) this.#requests = this.#requests.slice(requestsMax / 2);
  }

  all(): ReceivedRequest[] {
    return [...this.#requests];
  }
}
