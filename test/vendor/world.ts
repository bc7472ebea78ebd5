import { randomBytes } from "node:crypto";
import { type Authorization, type AuthorizationState, Settlement } from "@holdfast/api/holdfast/v1/spend_pb";
import type { Logger } from "pino";
import Stripe from "stripe";
import { expect } from "vitest";
import { type Config } from "../../server/config.ts";
import { startTestServer, type TestServer } from "../support/server.ts";
import {
  type SimulatorOptions,
  startStripeSimulator,
  type StripeSimulator,
} from "../support/stripe-simulator/index.ts";

export const secret = "sk_test_4eC39HqLyjWDarjtT1zdp7dc";
export const otherSecret = "sk_test_51Nv0dFrTz8QpWmKcXbYhGjLsR";
/** Of the same account, but of its other world. */
export const liveSecret = "sk_live_51Nv0dFrTz8QpWmKcXbYhGjLsR";
export const strangersSecret = "rk_live_9ZyXwVuTsRqPoNmLkJiHgFeDcBa";
export const platform = "acct_platform";

export const credentialKey = Buffer.alloc(32, 7);

export interface VendorWorld {
  readonly server: TestServer;
  readonly simulator: StripeSimulator;
  /** What a service of the account calls by itself. */
  readonly plain: Stripe;
  readonly token: string;
  /** Stores the credential of the account. */
  store(): Promise<void>;
  /** Moves the clocks of the database and of the vendor. */
  advance(ms: number): Promise<void>;
  /** An authorization whose attempt does not know what became of it. */
  doubted(options?: Doubted): Promise<Authorization>;
  get(name: string): Promise<Authorization>;
  /** Waits until the reconciler has brought it there. */
  becomes(name: string, state: AuthorizationState): Promise<Authorization>;
  /** The kinds and actors of what the audit says about it. */
  events(name: string): Promise<readonly string[]>;
  close(): Promise<void>;
}

export interface Doubted {
  readonly endpoint?: string;
  readonly account?: string;
  readonly amount?: string;
  /** What Stripe charges meanwhile, in cents; nothing if it is missing. */
  readonly charged?: number;
  readonly holdSeconds?: number;
}

export async function startVendorWorld(
  options: {
    servers?: number;
    config?: Partial<Config>;
    simulator?: SimulatorOptions;
    log?: Logger;
    withoutKey?: true;
  } = {},
): Promise<VendorWorld> {
  const secrets = {
    [secret]: platform,
    [otherSecret]: platform,
    [liveSecret]: platform,
    [strangersSecret]: "acct_stranger",
  };
  const simulator = await startStripeSimulator({ secrets, ...options.simulator });
  const server = await startTestServer({
    servers: options.servers ?? 1,
    ...(options.log === undefined ? {} : { log: options.log }),
    config: {
      ...(options.withoutKey === true ? {} : { credentialKeys: { current: credentialKey, previous: undefined } }),
      stripeOrigin: simulator.url,
      reconcileIntervalMs: 20,
      reconcileReadsPerSecond: 1000,
      ...options.config,
    },
  });
  const { host, port } = simulator;
  const plain = new Stripe(secret, { host, port, protocol: "http", telemetry: false, maxNetworkRetries: 0 });
  const token = await server.vaultKey("billing", {
    allowedEndpoints: ["POST /v1/charges", "POST /v1/payment_intents", "POST /v1/billing/credit_grants"],
  });
  await server.cap("all", "1000");
  const spends = server.spend(token);
  const get = async (name: string): Promise<Authorization> => {
    const { authorization } = await spends.getAuthorization({ lookup: { case: "name", value: name } });
    if (authorization === undefined) throw new Error(`${name} is not there`);
    return authorization;
  };
  return {
    server,
    simulator,
    plain,
    token,
    get,
    async store() {
      await server.admin.createVendorCredential({ vendorCredentialId: "stripe", vendor: "stripe", secret });
    },
    async advance(ms) {
      await server.clock.advance(ms);
      simulator.advance(ms);
    },
    async doubted({ endpoint = "POST /v1/charges", account = "", amount = "49", charged, holdSeconds = 600 } = {}) {
      const attemptId = randomBytes(16).toString("hex");
      const customerId = `cust_${randomBytes(6).toString("hex")}`;
      const { authorization } = await spends.authorizeSpend({
        spend: { customerId, billingPeriod: "2026-11", purpose: "subscription", amount: { currency: "usd", amount } },
        vendor: "stripe",
        vendorAccount: account,
        endpoint,
        attemptId,
        settlement: Settlement.SEND_ONCE,
        holdDuration: { seconds: BigInt(holdSeconds), nanos: 0 },
      });
      if (authorization === undefined) throw new Error("it was not granted");
      if (charged !== undefined) {
        await charge({ plain, authorization, amount: charged, account });
      }
      await spends.reportUnknown({ authorization: authorization.name, attemptId });
      return await get(authorization.name);
    },
    async becomes(name, state) {
      await expect.poll(async () => (await get(name)).state).toBe(state);
      return await get(name);
    },
    async events(name) {
      const [spendKey, generation] = name.slice("authorizations/".length).split("-");
      const { rows } = await server.database.pool.query<{ event: string }>(
        `select e.kind || ' ' || e.actor_kind || '/' || e.actor_id as event from holdfast.audit_events e
         where e.spend_key = $1 and e.generation = $2::integer order by e.xid, e.n`,
        [spendKey, generation],
      );
      return rows.map(({ event }) => event);
    },
    async close() {
      simulator.clearFaults();
      await server.close();
      await simulator.close();
    },
  };
}

/** What the guard sends for an authorization: with its key and its mark. */
export async function charge(options: {
  readonly plain: Stripe;
  readonly authorization: Authorization;
  readonly amount: number;
  readonly account?: string;
  readonly key?: string;
}): Promise<Stripe.Charge> {
  const { plain, authorization, amount, account = "", key = authorization.idempotencyKey } = options;
  return await plain.charges.create(
    { amount, currency: "usd", source: "tok_visa", metadata: { holdfast_authorization: markOf(authorization) } },
    { idempotencyKey: key, ...(account === "" ? {} : { stripeAccount: account }) },
  );
}

export function markOf({ name }: Authorization): string {
  return name.slice("authorizations/".length);
}
