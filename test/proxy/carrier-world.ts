import type { Authorization } from "@holdfast/api/holdfast/v1/spend_pb";
import { authorizationName, type SpendOption } from "@holdfast/sdk";
import {
  type CarriedRequest,
  createStripeCarrier,
  type StripeCarrier,
  type StripeCarrierOptions,
} from "../../server/proxy/stripe-carrier.ts";
import type { Carried } from "../../server/proxy/vendor.ts";
import { startTestServer, type TestServer } from "../support/server.ts";
import { startStripeSimulator, type StripeSimulator } from "../support/stripe-simulator/index.ts";

export const secret = "sk_test_4eC39HqLyjWDarjtT1zdp7dc";

export interface CarrierWorld {
  readonly server: TestServer;
  readonly simulator: StripeSimulator;
  readonly token: string;
  /** What no request waited for, and failed. */
  readonly errors: unknown[];
  readonly carrier: StripeCarrier;
  /** Another carrier to the same server; closed with the world. */
  open(options?: Partial<StripeCarrierOptions>): StripeCarrier;
  /** A request with a form body, of the world's vault key, carried by the world's carrier. */
  carry(method: string, path: string, fields?: Fields, more?: More): Promise<Carried>;
  /** Method, path and key of every write that reached the vendor. */
  writes(): string[];
  charges(): number;
  authorization(spend: SpendOption): Promise<Authorization>;
  /** What the one cap counts as spent or held, in cents. */
  used(): Promise<{ readonly committed: number; readonly held: number }>;
  close(): Promise<void>;
}

type Fields = Readonly<Record<string, string>>;
type More = Partial<CarriedRequest> & { readonly by?: StripeCarrier };

export const allowedEndpoints = [
  "POST /v1/payment_intents",
  "POST /v1/payment_intents/:id/confirm",
  "POST /v1/charges",
  "POST /v1/refunds",
  "POST /v1/payouts",
  "POST /v1/invoices",
  "POST /v1/invoices/:id/pay",
];

/** The real server's RPCs inside the process, a vendor behind a socket, and a carrier between them. */
export async function startCarrierWorld(options: Partial<StripeCarrierOptions> = {}): Promise<CarrierWorld> {
  const simulator = await startStripeSimulator();
  const server = await startTestServer();
  const token = await server.vaultKey("proxied", { allowedEndpoints });
  await server.cap("all", "1000");
  const errors: unknown[] = [];
  const opened: StripeCarrier[] = [];
  const open = (more: Partial<StripeCarrierOptions> = {}): StripeCarrier => {
    const { limits, ...others } = { ...options, ...more };
    const carrier = createStripeCarrier({
      transport: server.apps[0]?.inProcess as NonNullable<(typeof server.apps)[0]>["inProcess"],
      origin: simulator.url,
      onError: (error) => errors.push(error),
      ...others,
      limits: { timeoutMs: 10_000, vendorDeadlineMs: 5_000, ...limits },
    });
    opened.push(carrier);
    return carrier;
  };
  const carrier = open();
  return {
    server,
    simulator,
    token,
    errors,
    carrier,
    open,
    carry: (method, path, fields = {}, { by = carrier, ...more } = {}) =>
      by.carry({
        method,
        path,
        body: new URLSearchParams(fields).toString(),
        contentType: "",
        endpoint: `${method} ${path.replace(/\/\w+_\w{10,}/, "/:id")}`,
        token,
        secret,
        apiVersion: undefined,
        account: "",
        spend: undefined,
        sameBodyRequired: true,
        allow: new Set(),
        onDecline: "cancel",
        upstreamKey: undefined,
        beforeMoney: async () => {},
        ...more,
      }),
    writes: () =>
      simulator
        .requests()
        .filter(({ method }) => method !== "GET")
        .map(({ method, path, key }) => `${method} ${path.replace(/\/[a-z]+_\w{10,}/, "/:id")} ${key}`),
    charges: () => simulator.movements().filter(({ kind }) => kind === "charge" || kind === "capture").length,
    async authorization(spend) {
      const name = authorizationName(spend, (spend.retryAfterGeneration ?? 0) + 1);
      const { authorization } = await server.spend(token).getAuthorization({ lookup: { case: "name", value: name } });
      if (authorization === undefined) throw new Error(`${name} is not there`);
      return authorization;
    },
    async used() {
      const { rows } = await server.database.pool.query<{ committed: string; held: string }>(
        "select coalesce(sum(n.committed_micros), 0) as committed, coalesce(sum(n.held_micros), 0) as held from holdfast.counters n",
      );
      return { committed: Number(rows[0]?.committed) / 10_000, held: Number(rows[0]?.held) / 10_000 };
    },
    async close() {
      simulator.clearFaults();
      await Promise.all(opened.map((one) => one.close(5_000)));
      await server.close();
      await simulator.close();
    },
  };
}

let customers = 0;

/** A spend that nobody has asked for before. */
export function newSpend(more: Partial<SpendOption> = {}): SpendOption {
  customers += 1;
  return { customerId: `cust_${customers}`, billingPeriod: "2026-11", purpose: "subscription", ...more };
}

export const payment = { amount: "4900", currency: "usd", payment_method: "pm_card_visa", confirm: "true" } as const;
export const charge = { amount: "4900", currency: "usd", source: "tok_visa" } as const;

/** The object in an answer. */
export function objectOf({ body, refusal }: Carried): Readonly<Record<string, unknown>> {
  if (refusal !== undefined) throw new Error(`refused: ${refusal.message}`, { cause: refusal });
  return JSON.parse(body) as Readonly<Record<string, unknown>>;
}
