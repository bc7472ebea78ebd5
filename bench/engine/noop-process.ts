import { createServer } from "node:http2";
import type { AddressInfo } from "node:net";
import type { ConnectRouter } from "@connectrpc/connect";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import type pg from "pg";
import pino from "pino";
import { readConfig } from "../../server/config.ts";
import { ownersOf } from "../../server/queues.ts";
import { authGate, principalInterceptor } from "../../server/rpc/auth.ts";
import { errorInterceptor } from "../../server/rpc/errors.ts";
import { startListener } from "../../server/rpc/listener.ts";
import { traceGate, traceInterceptor } from "../../server/rpc/trace.ts";
import { validationInterceptor } from "../../server/rpc/validate.ts";
import { createPool } from "../../server/store/postgres.ts";
import { refusing } from "../../server/store/refusal.ts";
import { startTelemetry } from "../../server/telemetry.ts";
import { given, serveParent } from "../child.ts";
import { noopName, noopService } from "./noop-service.ts";

/**
 * An RPC that does nothing, twice. `stack`: on the lean path of a server's listener, with its limits, tracing,
 * authentication (the token is looked up in the database and remembered), roles, validation and errors, all of it as the
 * server puts them together. `stock`: what connect-node gives by default, with none of that.
 */
const { connection = "{}", folder = "" } = given();
const config = readConfig({ HOLDFAST_DATA_FOLDER: folder }, ["--embedded"]);
const telemetry = startTelemetry({
  serviceName: "holdfast",
  instanceId: "bench",
  metricIntervalMs: config.metricIntervalMs,
});
const pool = createPool({ connection: JSON.parse(connection) as pg.ClientConfig, max: config.poolSize });
const log = pino({ level: "warn" }, pino.destination(2));
const routes = (router: ConnectRouter): void => {
  router.service(noopService(), { noop: () => ({}) } as never);
};

const stack = await startListener({
  host: "127.0.0.1",
  port: 0,
  routes,
  leanMethods: new Set([noopName]),
  interceptors: [traceInterceptor(), errorInterceptor(log), principalInterceptor(), validationInterceptor()],
  requestGate: traceGate(authGate({ lookupToken: ownersOf(refusing(pool), config), log })),
  log,
});
const stock = createServer(connectNodeAdapter({ routes }));
await new Promise<void>((resolve) => stock.listen(0, "127.0.0.1", resolve));
serveParent({ stack: stack.url, stock: `http://127.0.0.1:${(stock.address() as AddressInfo).port}` }, async () => {
  stock.close();
  await stack.close(1_000);
  await pool.end();
  await telemetry.shutdown();
});
