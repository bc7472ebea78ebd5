import type { MessageInitShape } from "@bufbuild/protobuf";
import type { VaultKeySchema } from "@holdfast/api/holdfast/v1/vault_key_pb";
import type { Logger } from "pino";
import { type Config, readConfig } from "../../server/config.ts";
import { startTestServer, testSettings, type TestServer } from "../support/server.ts";
import { startStripeSimulator, type StripeSimulator } from "../support/stripe-simulator/index.ts";

export const secret = "sk_test_4eC39HqLyjWDarjtT1zdp7dc";

export interface ProxyWorld {
  readonly server: TestServer;
  readonly simulator: StripeSimulator;
  readonly url: string;
  /** Makes a vault key and gives its token. */
  key(id: string, policy?: MessageInitShape<typeof VaultKeySchema>): Promise<string>;
  /** A request with a form body, as curl would send it. */
  ask(method: string, path: string, asked?: Asked): Promise<Answered>;
  charges(): number;
  /** Events of the proxy, oldest first. */
  events(): Promise<readonly ProxyEventRow[]>;
  close(): Promise<void>;
}

export interface Asked {
  readonly token?: string;
  readonly fields?: Readonly<Record<string, string>>;
  readonly headers?: Readonly<Record<string, string>>;
  /** Which of the servers; counts from 0. */
  readonly server?: number;
}

export interface Answered {
  readonly status: number;
  readonly headers: Headers;
  readonly text: string;
  // oxlint-disable-next-line typescript/no-explicit-any -- an answer of any shape
  readonly body: any;
  /** The code of a refusal. */
  readonly code: string | undefined;
}

export interface ProxyEventRow {
  readonly actor_id: string;
  readonly disposition: string;
  readonly reason: string;
  readonly customer_id: string | null;
  readonly detail: Readonly<Record<string, unknown>>;
}

export const writes = [
  "POST /v1/payment_intents",
  "POST /v1/payment_intents/:id",
  "POST /v1/payment_intents/:id/confirm",
  "POST /v1/payment_intents/:id/capture",
  "POST /v1/payment_intents/:id/cancel",
  "POST /v1/charges",
  "POST /v1/refunds",
  "POST /v1/customers",
  "POST /v1/payouts",
  "GET /v1/payment_intents/:id",
  "GET /v1/charges/:id",
  "GET /v1/customers/:id",
  "GET /v1/charges",
];

function proxySettings(stripeOrigin: string): Partial<Config> {
  return {
    credentialKeys: { current: Buffer.alloc(32, 7), previous: undefined },
    stripeOrigin,
    stripeProxy: { host: "127.0.0.1", port: 0, names: [] },
  };
}

/** For a server that is started on the world's database later. */
export function proxyConfig(stripeOrigin: string): Config {
  return { ...readConfig({}, []), ...testSettings, ...proxySettings(stripeOrigin) };
}

export interface ProxyWorldOptions {
  readonly servers?: number;
  readonly config?: Partial<Config>;
  readonly log?: Logger;
  /** In USD, of the one cap over everything. */
  readonly cap?: string;
  /** Where the servers shall find the vendor instead of at the simulator itself. */
  readonly origin?: (simulator: StripeSimulator) => Promise<string>;
}

/** Servers with the proxy on, one database, and a vendor behind a socket. */
export async function startProxyWorld(options: ProxyWorldOptions = {}): Promise<ProxyWorld> {
  const simulator = await startStripeSimulator();
  const { servers = 1, config = {}, log, origin = ({ url }) => Promise.resolve(url) } = options;
  const server = await startTestServer({
    servers,
    config: { ...proxySettings(await origin(simulator)), ...config },
    ...(log === undefined ? {} : { log }),
  });
  await server.admin.createVendorCredential({ vendorCredentialId: "stripe", vendor: "stripe", secret });
  await server.cap("all", options.cap ?? "1000");
  const urlOf = (n: number): string => server.apps[n]?.stripeProxyUrl ?? "";
  return {
    server,
    simulator,
    url: urlOf(0),
    key: (id, policy = {}) => server.vaultKey(id, { allowedEndpoints: writes, ...policy }),
    async ask(method, path, { token, fields, headers = {}, server: n = 0 } = {}) {
      const response = await fetch(`${urlOf(n)}${path}`, {
        method,
        headers: { ...(token === undefined ? {} : { authorization: `Bearer ${token}` }), ...headers },
        ...(fields === undefined ? {} : { body: new URLSearchParams(fields) }),
      });
      const text = await response.text();
      // oxlint-disable-next-line typescript/no-unsafe-assignment -- an answer of any shape
      const body = JSON.parse(text);
      const code = (body as { error?: { code?: string } }).error?.code;
      // oxlint-disable-next-line typescript/no-unsafe-assignment -- as above
      return { status: response.status, headers: response.headers, text, body, code };
    },
    charges: () => simulator.movements().filter(({ kind }) => kind === "charge").length,
    async events() {
      const { rows } = await server.database.pool.query<ProxyEventRow>(
        `select e.actor_id, e.disposition, e.reason, e.customer_id, e.detail from holdfast.audit_events e
         where e.kind = 'proxy.request' order by e.xid, e.n`,
      );
      return rows;
    },
    async close() {
      await server.close();
      await simulator.close();
    },
  };
}

export const payment = { amount: "4900", currency: "usd", payment_method: "pm_card_visa", confirm: "true" } as const;
export const charge = { amount: "4900", currency: "usd", source: "tok_visa" } as const;
