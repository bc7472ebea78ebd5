import { randomUUID } from "node:crypto";
import Stripe from "stripe";
import type { BillingJob } from "./billing-job.ts";

/** A plain Stripe client. It never retries by itself: in this demo the code around it does. */
export function createStripe(job: BillingJob, onStop: () => void): Stripe {
  return new Stripe("sk_test_demo", {
    host: "127.0.0.1",
    port: job.stripePort,
    protocol: "http",
    telemetry: false,
    maxNetworkRetries: 0,
    timeout: 10_000,
    httpClient: new WatchedClient(Stripe.createNodeHttpClient(), job, onStop),
  });
}

type HttpClient = InstanceType<typeof Stripe.HttpClient>;

/** Counts accepted charges, and stands still at the one after which this process is to be killed. */
class WatchedClient extends Stripe.HttpClient {
  readonly #inner: HttpClient;
  readonly #job: BillingJob;
  readonly #onStop: () => void;
  #accepted = 0;
  #isStopped = false;

  constructor(inner: HttpClient, job: BillingJob, onStop: () => void) {
    super();
    this.#inner = inner;
    this.#job = job;
    this.#onStop = onStop;
  }

  override getClientName(): string {
    return this.#inner.getClientName();
  }

  override async makeRequest(...args: Parameters<HttpClient["makeRequest"]>): ReturnType<HttpClient["makeRequest"]> {
    const [host, port, path, method, headers, body, protocol, timeout] = args;
    if (this.#isStopped) return await standStill();
    const sent = this.#job.plantRandomKeys ? withRandomKey(method, headers) : headers;
    const response = await this.#inner.makeRequest(host, port, path, method, sent, body, protocol, timeout);
    if (movesMoney(method, path, body) && response.getStatusCode() === 200) {
      this.#accepted += 1;
      if (this.#accepted === this.#job.stopAfterCharges) {
        this.#isStopped = true;
        this.#onStop();
      }
    }
    return this.#isStopped ? await standStill() : response;
  }
}

function movesMoney(method: string, path: string, body: unknown): boolean {
  if (method !== "POST") return false;
  if (path === "/v1/charges" || path.endsWith("/confirm")) return true;
  return path === "/v1/payment_intents" && String(body).includes("confirm=true");
}

function withRandomKey<Headers extends object>(method: string, headers: Headers): Headers {
  return method === "POST" ? { ...headers, "Idempotency-Key": randomUUID() } : headers;
}

function standStill(): Promise<never> {
  return new Promise(() => {});
}
