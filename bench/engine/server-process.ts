import { createClient, type Interceptor } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import { CapWindow } from "@holdfast/api/holdfast/v1/cap_pb";
import type pg from "pg";
import type * as app from "../../server/app.ts";
import type * as config from "../../server/config.ts";
import type * as auth from "../../server/rpc/auth.ts";
import { given, serveParent } from "../child.ts";
import { moduleOf } from "./checkout.ts";
import { endpoint, vaultKeyId } from "./policy.ts";

/** A checkout's server on a database of the bench, with one cap that every spend draws on. */
const { connection = "{}", folder = "", root = "" } = given();
const { startApp } = await moduleOf<typeof app>(root, "server/app.ts");
const { readConfig } = await moduleOf<typeof config>(root, "server/config.ts");
const { createToken } = await moduleOf<typeof auth>(root, "server/rpc/auth.ts");
const operatorToken = createToken("op", "default", "bench");
const server = await startApp(
  readConfig(
    {
      HOLDFAST_DATA_FOLDER: folder,
      HOLDFAST_PORT: "0",
      HOLDFAST_OPERATOR_TOKEN: operatorToken,
      HOLDFAST_LOG_LEVEL: "warn",
    },
    ["--embedded"],
  ),
  { connection: JSON.parse(connection) as pg.ClientConfig },
);
const bearer: Interceptor = (next) => (request) => {
  request.header.set("authorization", `Bearer ${operatorToken}`);
  return next(request);
};
const admin = createClient(AdminService, createGrpcTransport({ baseUrl: server.url, interceptors: [bearer] }));
await admin.createCap({
  capId: "all",
  cap: { limit: { currency: "usd", amount: "1000000000" }, window: CapWindow.LIFETIME },
});
const { token } = await admin.createVaultKey({
  vaultKeyId,
  vaultKey: { vendor: "stripe", allowedEndpoints: [endpoint] },
});
serveParent({ url: server.url, token }, () => server.close());
