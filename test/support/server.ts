import { type Client, createClient, type Interceptor, type Transport } from "@connectrpc/connect";
import { createConnectTransport, createGrpcTransport } from "@connectrpc/connect-node";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import { type CapSchema, CapWindow } from "@holdfast/api/holdfast/v1/cap_pb";
import { type VaultKeySchema } from "@holdfast/api/holdfast/v1/vault_key_pb";
import { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import type { Logger } from "pino";
import { type App, startApp } from "../../server/app.ts";
import { type Config, readConfig } from "../../server/config.ts";
import { createToken, tokenHash } from "../../server/rpc/auth.ts";
import { insertOperator } from "../../server/store/operator.ts";
import { replaceClock, type TestClock } from "./clock.ts";
import { createTestDatabase, type TestDatabase } from "./postgres.ts";

/** The fields of a cap, not the message itself. */
type CapFields = Exclude<MessageInitShape<typeof CapSchema>, { $typeName: string }>;

export interface TestServerOptions {
  /** How many servers share the database; 1 by default. */
  readonly servers?: number;
  readonly protocol?: "connect" | "grpc";
  readonly config?: Partial<Config>;
  readonly log?: Logger;
}

export interface TestServer {
  readonly database: TestDatabase;
  /** The servers' clock. It runs until it is set. */
  readonly clock: TestClock;
  readonly apps: readonly App[];
  readonly operatorToken: string;
  readonly admin: Client<typeof AdminService>;
  /** A client for spends with that token, or with none; `server` counts from 0. */
  spend(token?: string, server?: number): Client<typeof SpendControlService>;
  /** A client for the operators' calls with that token, or with none. */
  adminAs(token?: string, server?: number): Client<typeof AdminService>;
  transport(token?: string, server?: number): Transport;
  /** Creates a vault key for `POST /v1/payment_intents` at Stripe and returns its token. */
  vaultKey(vaultKeyId: string, policy?: MessageInitShape<typeof VaultKeySchema>): Promise<string>;
  /** Creates a LIFETIME cap in USD. */
  cap(capId: string, limit: string, options?: CapFields): Promise<void>;
  close(): Promise<void>;
}

/** Real servers on free ports and a database of their own. */
export async function startTestServer(options: TestServerOptions = {}): Promise<TestServer> {
  const closers: (() => Promise<unknown>)[] = [];
  const close = async (): Promise<void> => {
    for (const closer of closers.splice(0).toReversed()) await closer();
  };
  try {
    const database = await createTestDatabase();
    closers.push(() => database.close());
    const clock = await replaceClock(database.pool);
    const config: Config = { ...readConfig({}, []), ...testSettings, ...options.config };
    const apps: App[] = [];
    for (let n = 0; n < (options.servers ?? 1); n += 1) {
      const app = await startApp(config, {
        connection: database.connection,
        fsyncOff: "allowed",
        ...(options.log === undefined ? {} : { log: options.log }),
      });
      closers.push(() => app.close());
      apps.push(app);
    }
    const operatorToken = createToken("op", config.workspace, "test");
    await insertOperator(database.pool, config.workspace, {
      operatorId: "test",
      role: "OPERATOR",
      secretSha256: tokenHash(operatorToken),
    });
    const clients = clientsOf(apps, options.protocol ?? "connect");
    const admin = clients.adminAs(operatorToken);
    return { database, clock, apps, operatorToken, admin, ...clients, ...policyOf(admin), close };
  } catch (error) {
    await close();
    throw error;
  }
}

export const testSettings = {
  port: 0,
  logLevel: "silent",
  // Tests sweep when they mean to.
  sweepIntervalMs: 3_600_000,
  alteredClock: "allowed",
  shutdownGraceMs: 1000,
} as const satisfies Partial<Config>;

function clientsOf(
  apps: readonly App[],
  protocol: "connect" | "grpc",
): Pick<TestServer, "transport" | "spend" | "adminAs"> {
  const transport = (token?: string, server = 0): Transport => {
    const baseUrl = (apps[server] as App).url;
    const interceptors = token === undefined ? [] : [bearer(token)];
    if (protocol === "grpc") return createGrpcTransport({ baseUrl, interceptors });
    return createConnectTransport({ baseUrl, httpVersion: "2", interceptors });
  };
  return {
    transport,
    spend: (token, server) => createClient(SpendControlService, transport(token, server)),
    adminAs: (token, server) => createClient(AdminService, transport(token, server)),
  };
}

function bearer(token: string): Interceptor {
  return (next) => async (request) => {
    request.header.set("authorization", `Bearer ${token}`);
    return await next(request);
  };
}

function policyOf(admin: Client<typeof AdminService>): Pick<TestServer, "vaultKey" | "cap"> {
  return {
    vaultKey: async (vaultKeyId, policy = {}) => {
      const vaultKey = { vendor: "stripe", allowedEndpoints: ["POST /v1/payment_intents"], ...policy };
      const { token } = await admin.createVaultKey({ vaultKeyId, vaultKey });
      return token;
    },
    cap: async (capId, limit, cap = {}) => {
      await admin.createCap({
        capId,
        cap: { limit: { currency: "usd", amount: limit }, window: CapWindow.LIFETIME, ...cap },
      });
    },
  };
}
