import { randomBytes } from "node:crypto";
import { create, fromBinary, type MessageInitShape, toBinary } from "@bufbuild/protobuf";
import {
  AuthorizeSpendRequestSchema,
  AuthorizeSpendResponseSchema,
  BatchAuthorizeSpendRequestSchema,
  BatchAuthorizeSpendResponseSchema,
} from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { Disposition, Settlement } from "@holdfast/api/holdfast/v1/spend_pb";
import type * as controlPlane from "../../sdk/control-plane.ts";
import type * as retry from "../../sdk/retry.ts";
import type * as runtime from "../../sdk/runtime.ts";
import type * as transport from "../../sdk/transport.ts";
import { moduleOf } from "./checkout.ts";
import { nextAttempt, someCustomer } from "./contender.ts";
import type { GrpcClient } from "./grpc-client.ts";
import { endpoint } from "./policy.ts";

/** The server's limit of one batch. */
export const batchSize = 500;

const service = "/holdfast.v1.SpendControlService";

type Request = MessageInitShape<typeof AuthorizeSpendRequestSchema>;

/** A new spend, as the SDK asks for one before it makes a PaymentIntent. */
export function newRequest(): Request {
  return {
    spend: {
      customerId: someCustomer(),
      billingPeriod: "2026-11",
      purpose: `bench-${process.pid}-${nextAttempt()}`,
      amount: { currency: "usd", amount: "1.00" },
    },
    vendor: "stripe",
    endpoint,
    settlement: Settlement.TWO_STEP,
    attemptId: randomBytes(16).toString("hex"),
    bodyFingerprint: "0".repeat(64),
    // Longer than a bench takes: what is counted afterwards must still be held.
    holdDuration: { seconds: 86_400n, nanos: 0 },
  };
}

/** One AuthorizeSpend. Rejects unless granted. */
export async function authorizeOne(client: GrpcClient): Promise<void> {
  const message = toBinary(AuthorizeSpendRequestSchema, create(AuthorizeSpendRequestSchema, newRequest()));
  const answer = await client.call(`${service}/AuthorizeSpend`, message);
  const { disposition } = fromBinary(AuthorizeSpendResponseSchema, answer);
  requireGranted(disposition);
}

/** One BatchAuthorizeSpend, full. Rejects unless all of it is granted. */
export async function authorizeBatch(client: GrpcClient): Promise<void> {
  const requests = Array.from({ length: batchSize }, newRequest);
  const batch = create(BatchAuthorizeSpendRequestSchema, { requests });
  const answer = await client.call(`${service}/BatchAuthorizeSpend`, toBinary(BatchAuthorizeSpendRequestSchema, batch));
  const { results } = fromBinary(BatchAuthorizeSpendResponseSchema, answer);
  if (results.length !== batchSize) throw new Error(`${results.length} answers to ${batchSize} requests`);
  for (const { result } of results) {
    requireGranted(result.case === "response" ? result.value.disposition : undefined);
  }
}

/** A checkout's SDK, as far as it authorizes: many callers of one process over its own transport. */
export async function openSdk(root: string, url: string, token: string) {
  const { createControlPlane } = await moduleOf<typeof controlPlane>(root, "sdk/control-plane.ts");
  const { createRetryBudget } = await moduleOf<typeof retry>(root, "sdk/retry.ts");
  const { systemClock, systemRandom, systemTimers } = await moduleOf<typeof runtime>(root, "sdk/runtime.ts");
  const { createDefaultTransport } = await moduleOf<typeof transport>(root, "sdk/transport.ts");
  const opened = createDefaultTransport(url, undefined);
  const clock = systemClock();
  const plane = createControlPlane({
    transport: opened,
    runtime: { clock, timers: systemTimers, random: systemRandom },
    budget: createRetryBudget(clock),
    vaultKey: token,
    maxQueued: 10_000,
    settlementsWaiting: () => 0,
  });
  return {
    async authorize(): Promise<void> {
      const { disposition } = await plane.authorize(newRequest(), clock.now() + 30_000);
      requireGranted(disposition);
    },
    close: () => opened.close(),
  };
}

function requireGranted(disposition: Disposition | undefined): void {
  if (disposition !== Disposition.GRANTED) throw new Error(`disposition ${disposition} instead of a grant`);
}
