import { randomUUID } from "node:crypto";
import type { Interceptor, Transport } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import type { BatchCommitSpendRequest, CommitSpendRequest } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import Stripe from "stripe";
import type { Plant } from "./worker-call.ts";

type HttpClient = InstanceType<typeof Stripe.HttpClient>;

/** Stripe's own client, or one whose every write leaves with another key. */
export function plainClient(port: number, plant: Plant | undefined): Stripe {
  const inner = Stripe.createNodeHttpClient();
  return new Stripe("sk_test_1", {
    host: "127.0.0.1",
    port,
    protocol: "http",
    telemetry: false,
    maxNetworkRetries: 0,
    httpClient: plant === "random_key" ? new ForgetfulClient(inner) : inner,
  });
}

class ForgetfulClient extends Stripe.HttpClient {
  readonly #inner: HttpClient;

  constructor(inner: HttpClient) {
    super();
    this.#inner = inner;
  }

  override getClientName(): string {
    return this.#inner.getClientName();
  }

  override makeRequest(...args: Parameters<HttpClient["makeRequest"]>): ReturnType<HttpClient["makeRequest"]> {
    const [host, port, path, method, headers, ...rest] = args;
    const sent = method === "POST" ? { ...(headers as object), "Idempotency-Key": randomUUID() } : headers;
    return this.#inner.makeRequest(host, port, path, method, sent, ...rest);
  }
}

/** A transport on which every commit says one cent more than was charged. */
export function plantedTransport(baseUrl: string): Transport {
  const oneMore: Interceptor = (next) => async (request) => {
    if (!request.stream && /Commit/.test(request.method.name)) {
      const message = request.message as BatchCommitSpendRequest | CommitSpendRequest;
      for (const { amount } of "requests" in message ? message.requests : [message]) {
        if (amount !== undefined) amount.amount = (Number(amount.amount) + 0.01).toFixed(2);
      }
    }
    return next(request);
  };
  return createGrpcTransport({ baseUrl, interceptors: [oneMore] });
}
