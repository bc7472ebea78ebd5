import { randomBytes } from "node:crypto";
import type { ConnectRouter, Transport } from "@connectrpc/connect";
import { AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import type pg from "pg";
import pino from "pino";
import { bootstrap } from "./bootstrap.ts";
import type { Config } from "./config.ts";
import type { ProxyListener } from "./proxy/listener.ts";
import { startStripeProxy, type StripeProxyParts } from "./proxy/start-stripe-proxy.ts";
import {
  type AuthorizeQueue,
  authorizeQueue,
  boundedBy,
  type CommitQueue,
  commitQueue,
  ownersOf,
  type Rehearse,
  rehearsal,
} from "./queues.ts";
import { auditMethods } from "./rpc/audit.ts";
import { type AuditWatch, createAuditWatch } from "./rpc/audit-watch.ts";
import { createFigures } from "./figures.ts";
import { describeError } from "./log-error.ts";
import { createLogDestination } from "./log-destination.ts";
import { type MetricsListener, startMetricsListener } from "./metrics-listener.ts";
import { createObservation } from "./observation.ts";
import { authGate, principalInterceptor } from "./rpc/auth.ts";
import { authorizationMethods } from "./rpc/authorizations.ts";
import { capMethods } from "./rpc/caps.ts";
import { secured } from "./rpc/certificate-watch.ts";
import { contradictionMethods } from "./rpc/contradictions.ts";
import { errorInterceptor } from "./rpc/errors.ts";
import { createInProcessTransport } from "./rpc/in-process.ts";
import { increaseHoldMethod } from "./rpc/increase-hold.ts";
import { killSwitchMethods } from "./rpc/kill-switches.ts";
import { leaseAdminMethods, leaseMethods } from "./rpc/lease.ts";
import { startListener } from "./rpc/listener.ts";
import type { TlsSettings } from "./rpc/listener-tls.ts";
import { operatorMethods } from "./rpc/operators.ts";
import { reconcileMethods } from "./rpc/reconcile.ts";
import { reconciliationRunMethods } from "./rpc/reconciliation-runs.ts";
import { resolveMethods } from "./rpc/resolve.ts";
import { spendMethods } from "./rpc/spend.ts";
import { spendStoryMethods } from "./rpc/spend-story.ts";
import { createHealth, createReflection, type HealthSwitch } from "./rpc/standard.ts";
import { traceGate, traceInterceptor } from "./rpc/trace.ts";
import { validationInterceptor, warmUpValidation } from "./rpc/validate.ts";
import { vendorCredentialMethods } from "./rpc/vendor-credentials.ts";
import { vaultKeyChangeMethods } from "./rpc/vault-key-changes.ts";
import { vaultKeyMethods } from "./rpc/vault-keys.ts";
import { createAuditUpkeep } from "./store/audit-partitions.ts";
import { checkDatabase, checkServer } from "./store/check-database.ts";
import type { Database } from "./store/database.ts";
import { startEmbeddedPostgres } from "./store/embedded-postgres.ts";
import { createInstanceWatch, type InstanceProblem, type InstanceWatch } from "./store/instance.ts";
import { migrate } from "./store/migrate.ts";
import { type ChangePolicy, createChangePolicy } from "./store/policy.ts";
import { createPool, inTransaction } from "./store/postgres.ts";
import { refusalFor, refusing } from "./store/refusal.ts";
import { startSweep } from "./store/sweep.ts";
import { createVaultKeyUses } from "./store/vault-key-use.ts";
import { startTelemetry, type Telemetry } from "./telemetry.ts";
import { vendorWrites } from "./vendor/vendor-writes.ts";
import { openVendors, type Vendors } from "./vendor/vendors.ts";

export interface AppOptions {
  /** Instead of the database of the configuration: one that a test has started. */
  readonly connection?: pg.ClientConfig;
  /** Only for tests, whose cluster need not survive a power failure. */
  readonly fsyncOff?: "allowed";
  /** Only for tests: the migrations of another version of this program. */
  readonly migrationsFolder?: string;
  /** Returns that many random bytes. */
  readonly random?: (size: number) => Uint8Array;
  readonly log?: pino.Logger;
}

/** A running server. */
export interface App {
  /** For example "http://127.0.0.1:7070". */
  readonly url: string;
  readonly port: number;
  /** The same RPCs without a socket, authenticated like any other call. Open until the server is closed. */
  readonly inProcess: Transport;
  /** Where Stripe's API is served, for example "http://127.0.0.1:7072"; undefined where it is not. */
  readonly stripeProxyUrl: string | undefined;
  /** Where Prometheus finds the metrics, for example "http://127.0.0.1:9464/metrics"; undefined where it does not. */
  readonly metricsUrl: string | undefined;
  /** Readiness off, drain, flush the queues, close. Never rejects; a second call waits for the first. */
  close(): Promise<void>;
}

const services = [SpendControlService, AdminService] as const;

/**
 * Starts everything that a server consists of, in order; what was started is stopped again if a later step fails.
 * Throws StartupError with the exit code of what is wrong.
 */
export async function startApp(config: Config, options: AppOptions = {}): Promise<App> {
  const log =
    options.log ?? pino({ level: config.logLevel, serializers: { err: describeError } }, createLogDestination(2));
  const closers: (() => Promise<void>)[] = [];
  let closing: Promise<void> | undefined;
  const close = () => {
    closing ??= closeInTurn(closers, log);
    return closing;
  };
  try {
    // Before the database is touched: an operator who mistyped a path is told so at once.
    const tls = config.tls === undefined ? undefined : secured(config.tls, { log, closers });
    const telemetry = startTelemetry({
      serviceName: "holdfast",
      instanceId: Buffer.from((options.random ?? randomBytes)(16)).toString("hex"),
      ...(config.otlpEndpoint === undefined ? {} : { otlpEndpoint: config.otlpEndpoint }),
      metricIntervalMs: config.metricIntervalMs,
      scraped: config.metricsPort !== undefined,
      ...(config.traceSampling === undefined ? {} : { traceSampling: config.traceSampling }),
    });
    closers.push(() => telemetry.shutdown());
    const instance = createInstanceWatch((problem) => logInstance(log, problem));
    const pool = await openDatabase(config, options, { log, closers, instance });
    const keepAudit = auditUpkeep(log);
    await keepAudit(pool);
    await bootstrap(pool, policyChanges(pool), config, log);
    const vendors = await openVendors(refusing(pool), config);
    warmUpValidation(services);
    const health = createHealth(services);
    const uses = createVaultKeyUses();
    closers.push(() => uses.write(pool));
    const figures = createFigures(config.workspace);
    const metricsPort = await openMetrics(config, { telemetry, pool, tls, log, closers });
    const authorizations = authorizeQueue(pool, config, uses, figures);
    const commits = commitQueue(pool, config, figures);
    const rehearse = rehearsal(pool, boundedBy(config, "dry runs"));
    closers.push(async () => void (await Promise.all([authorizations.idle(), commits.idle()])));
    closers.push(() => vendors.stop());
    vendors.start({
      commits,
      onError: (error) => log.warn({ err: error }, "a reconciliation failed; it is tried again"),
    });
    const sweep = startSweep({
      database: pool,
      intervalMs: config.sweepIntervalMs,
      proxyAnswerDays: config.proxyAnswerDays,
      before: async () => {
        await instance.look(pool);
        await uses.write(pool);
        await keepAudit(pool);
      },
      onResult: (error) => {
        health.setServing(error === undefined && closing === undefined);
        figures.swept(error);
        if (error !== undefined) log.warn({ err: error }, "the expiry sweep failed; it is tried again");
      },
    });
    closers.push(() => sweep.stop());
    const lookupToken = ownersOf(refusing(pool), config);
    const gate = authGate({ lookupToken, log });
    const auditWatch = createAuditWatch({ database: refusing(pool), authenticate: gate });
    const rpc = {
      routes: routesOf(pool, {
        authorizations,
        commits,
        rehearse,
        vendors,
        health,
        auditWatch,
        random: options.random ?? randomBytes,
        log,
      }),
      interceptors: [traceInterceptor(), errorInterceptor(log), principalInterceptor(), validationInterceptor()],
      requestGate: traceGate(gate),
      log,
    };
    const inProcess = createInProcessTransport(rpc);
    const listener = await startListener({
      host: config.host,
      port: config.port,
      ...(tls === undefined ? {} : { tls }),
      ...rpc,
    });
    const ports: { close(graceMs: number): Promise<void> }[] = [listener];
    closers.push(async () => {
      health.close();
      auditWatch.close();
      // At once, so that all of them together take no longer than one.
      await Promise.all(ports.map((port) => port.close(config.shutdownGraceMs)));
    });
    const proxy = await stripeProxyOf(config, { database: refusing(pool), vendors, lookupToken, inProcess, tls, log });
    if (proxy !== undefined) ports.push(proxy);
    health.setServing(true);
    const urls = { url: listener.url, stripeProxyUrl: proxy?.url, metricsUrl: metricsPort?.url };
    log.info({ url: urls.url, stripeProxy: urls.stripeProxyUrl, metrics: urls.metricsUrl }, "serving");
    return { ...urls, port: listener.port, inProcess, close };
  } catch (error) {
    await close();
    throw error;
  }
}

interface MetricsParts {
  readonly telemetry: Telemetry;
  readonly pool: pg.Pool;
  readonly tls: TlsSettings | undefined;
  readonly log: pino.Logger;
  readonly closers: (() => Promise<void>)[];
}

/** Shows what the database knows wherever metrics go to, and opens the port for Prometheus where it is asked for. */
async function openMetrics(
  { metricsPort: settings, poolSize, metricIntervalMs }: Config,
  { telemetry, pool, tls, log, closers }: MetricsParts,
): Promise<MetricsListener | undefined> {
  const maxAgeMs = settings?.maxAgeMs ?? Math.min(10_000, metricIntervalMs / 2);
  const onError = (error: unknown): void => log.warn({ err: error }, "the figures could not be read from the database");
  telemetry.observe(createObservation({ database: pool, pool, poolMax: poolSize, maxAgeMs, onError }));
  closers.push(() => Promise.resolve(telemetry.observe(undefined)));
  if (settings === undefined || telemetry.scrape === undefined) return undefined;
  const { host, port } = settings;
  const listener = await startMetricsListener({ host, port, scrape: telemetry.scrape, log, tls });
  closers.push(() => listener.close());
  return listener;
}

type ProxyParts = Omit<StripeProxyParts, "settings" | "cipher" | "stripeOrigin"> & { readonly vendors: Vendors };

/** The configuration asks for no proxy without the key that opens what is stored for it. */
async function stripeProxyOf(
  { stripeProxy, stripeOrigin }: Config,
  { vendors, ...parts }: ProxyParts,
): Promise<ProxyListener | undefined> {
  const { cipher } = vendors;
  if (stripeProxy === undefined || cipher === undefined) return undefined;
  return startStripeProxy({ ...parts, settings: stripeProxy, stripeOrigin, cipher });
}

async function closeInTurn(closers: readonly (() => Promise<void>)[], log: pino.Logger): Promise<void> {
  for (const closer of closers.toReversed()) {
    await closer().catch((error: unknown) => log.error({ err: error }, "a part of the server did not close cleanly"));
  }
}

function logInstance(log: pino.Logger, problem: InstanceProblem | undefined): void {
  if (problem === undefined) {
    log.info("the database was recovered; grants go on");
    return;
  }
  log.error(
    { problem },
    "this database was restored, promoted or replaced, and grants that callers have acted on may be missing in it. " +
      "Nothing is granted, raised or leased; reads and settlements go on. Make sure that nobody writes to the old " +
      'database any more, run "holdfast recover" with the same DATABASE_URL, and reconcile with the vendor.',
  );
}

interface DatabaseParts {
  readonly log: pino.Logger;
  readonly closers: (() => Promise<void>)[];
  readonly instance: InstanceWatch;
}

async function openDatabase(config: Config, options: AppOptions, parts: DatabaseParts): Promise<pg.Pool> {
  const { log, closers, instance } = parts;
  let connection = options.connection;
  if (connection === undefined && config.database.kind === "url")
    connection = { connectionString: config.database.url };
  if (connection === undefined && config.database.kind === "embedded") {
    const embedded = await startEmbeddedPostgres({
      dataFolder: config.database.dataFolder,
      log: (message) => log.info(message),
    });
    closers.push(() => embedded.close());
    connection = embedded.connection;
  }
  if (connection === undefined) throw new Error("the configuration names no database");
  const pool = createPool({
    connection,
    max: config.poolSize,
    preparedStatements: config.preparedStatements,
    onConnectionError: (error) => log.warn({ err: error }, "a database connection broke"),
    onSession: (client) => instance.look(client),
  });
  closers.push(() => pool.end());
  const fsyncOff = options.fsyncOff ?? "refused";
  await checkServer(pool, { fsyncOff });
  const folder = options.migrationsFolder;
  await migrate(connection, { log: (message) => log.info(message), ...(folder === undefined ? {} : { folder }) });
  await checkDatabase(pool, {
    alteredClock: config.alteredClock,
    fsyncOff,
    ...(folder === undefined ? {} : { migrationsFolder: folder }),
  });
  await instance.start(pool);
  return pool;
}

function auditUpkeep(log: pino.Logger): (database: Database) => Promise<void> {
  return createAuditUpkeep((result, error) => {
    if (error !== undefined) log.warn({ err: error }, "the partitions of the audit could not be seen to");
    if (result === "EXTENDED") log.info("the audit has a new partition ahead");
    if (result === "LARGE") {
      log.warn("the audit goes on in one partition without an end: see docs/operations/audit-growth.md");
    }
  });
}

/** Changes of caps, vault keys, kill switches and operators. */
function policyChanges(pool: pg.Pool): ChangePolicy {
  return createChangePolicy(async (work) => {
    try {
      return await inTransaction(pool, work);
    } catch (error) {
      throw refusalFor(error);
    }
  });
}

interface RouteParts {
  readonly authorizations: AuthorizeQueue;
  readonly commits: CommitQueue;
  readonly rehearse: Rehearse;
  readonly vendors: Vendors;
  readonly health: HealthSwitch;
  readonly auditWatch: AuditWatch;
  readonly random: (size: number) => Uint8Array;
  readonly log: pino.Logger;
}

function routesOf(pool: pg.Pool, parts: RouteParts): (router: ConnectRouter) => void {
  const { authorizations, commits, rehearse, vendors, health, auditWatch, random, log } = parts;
  const database = refusing(pool);
  const changePolicy = policyChanges(pool);
  return (router) => {
    router.service(SpendControlService, {
      ...spendMethods({ database, authorizations, commits, rehearse, log }),
      ...increaseHoldMethod(database),
      ...reconcileMethods(database),
      ...leaseMethods(database),
    });
    router.service(AdminService, {
      ...capMethods(database, changePolicy),
      ...vaultKeyMethods(database, changePolicy, random, vendorWrites),
      ...vaultKeyChangeMethods(database, changePolicy, random, vendorWrites),
      ...killSwitchMethods(database, changePolicy, random),
      ...operatorMethods(database, changePolicy, random),
      ...authorizationMethods(database),
      ...resolveMethods({ database, commits }),
      ...contradictionMethods(database),
      ...leaseAdminMethods(database),
      ...auditMethods(database),
      ...auditWatch.methods,
      ...spendStoryMethods(database),
      ...vendorCredentialMethods({ database, changePolicy, cipher: vendors.cipher, tryOut: vendors.tryOut }),
      ...reconciliationRunMethods(database, changePolicy, random),
    });
    health.routes(router);
    createReflection(services)(router);
  };
}
