import { createClient, type Interceptor } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-node";
import { AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import { CapWindow } from "@holdfast/api/holdfast/v1/cap_pb";
import { startApp } from "../../server/app.ts";
import { readConfig } from "../../server/config.ts";
import { createToken } from "../../server/rpc/auth.ts";
import { given, serveParent } from "../child.ts";

/** A server as `npm start` has it: its own Postgres, durable, and the proxy in front of the bench's vendor. */
const { vendorUrl = "", secret = "", folder = "" } = given();
const operatorToken = createToken("op", "default", "bench");
const app = await startApp(
  readConfig(
    {
      HOLDFAST_DATA_FOLDER: folder,
      HOLDFAST_PORT: "0",
      HOLDFAST_STRIPE_PROXY_PORT: "0",
      HOLDFAST_STRIPE_ORIGIN: vendorUrl,
      HOLDFAST_CREDENTIAL_KEY: Buffer.alloc(32, 7).toString("base64"),
      HOLDFAST_OPERATOR_TOKEN: operatorToken,
      HOLDFAST_LOG_LEVEL: "warn",
    },
    ["--embedded"],
  ),
);
const bearer: Interceptor = (next) => (request) => {
  request.header.set("authorization", `Bearer ${operatorToken}`);
  return next(request);
};
const admin = createClient(
  AdminService,
  createConnectTransport({ baseUrl: app.url, httpVersion: "2", interceptors: [bearer] }),
);
await admin.createVendorCredential({ vendorCredentialId: "stripe", vendor: "stripe", secret });
await admin.createCap({
  capId: "all",
  cap: { limit: { currency: "usd", amount: "1000000000" }, window: CapWindow.LIFETIME },
});
const allowedEndpoints = [
  "POST /v1/charges",
  "GET /v1/charges/:id",
  "POST /v1/customers",
  "POST /v1/payment_intents",
  "POST /v1/payment_intents/:id/confirm",
];
const { token } = await admin.createVaultKey({
  vaultKeyId: "bench",
  vaultKey: { vendor: "stripe", allowedEndpoints },
});
serveParent({ url: app.stripeProxyUrl ?? "", token }, () => app.close());
