import { existsSync, mkdirSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { type Client, Code, ConnectError, createClient, type Interceptor } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-node";
import { AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import { CapWindow } from "@holdfast/api/holdfast/v1/cap_pb";
import { VaultKeyState } from "@holdfast/api/holdfast/v1/vault_key_pb";
import type { Config } from "./config.ts";
import { createToken } from "./rpc/auth.ts";

/** What the first start on the embedded database made, so that the next one can show it again. */
interface Credentials {
  readonly operatorToken: string;
  readonly vaultKey?: string;
}

export interface Quickstart {
  readonly url: string;
  readonly operatorToken: string;
  readonly vaultKey: string;
  readonly dataFolder: string;
}

const fileName = "credentials.json";
const capId = "quickstart-daily";
const quickstartEndpoints = [
  "POST /v1/payment_intents",
  "POST /v1/charges",
  "POST /v1/refunds",
  "POST /v1/invoices",
  "POST /v1/invoices/:id/pay",
  "POST /v1/subscriptions",
  "POST /v1/checkout/sessions",
  "POST /v1/payouts",
  "POST /v1/transfers",
];

/** The configuration with the operator token of the data folder, made on the first start. */
export function quickstartConfig(config: Config, dataFolder: string): Config {
  if (config.operatorToken !== undefined) return config;
  const known = readCredentials(dataFolder);
  const operatorToken = known?.operatorToken ?? createToken("op", config.workspace, "root");
  if (known === undefined) writeCredentials(dataFolder, { operatorToken });
  return { ...config, operatorToken };
}

/**
 * A vault key with a cap for the first calls; the same one on every later start. Undefined where the operator token is
 * not accepted any more, because it was rotated or its operator revoked.
 */
export async function openQuickstart(url: string, config: Config, dataFolder: string): Promise<Quickstart | undefined> {
  const operatorToken = config.operatorToken ?? "";
  const known = readCredentials(dataFolder);
  try {
    const admin = adminClient(url, operatorToken);
    const usable =
      known?.vaultKey !== undefined && (await isActive(admin, known.vaultKey)) ? known.vaultKey : undefined;
    const vaultKey = usable ?? (await createQuickstart(admin));
    // Also a token that came from the environment: it replaced the one before it, which opens nothing any more.
    if (usable === undefined || known?.operatorToken !== operatorToken) {
      writeCredentials(dataFolder, { operatorToken, vaultKey });
    }
    return { url, operatorToken, vaultKey, dataFolder };
  } catch (error) {
    if (error instanceof ConnectError && error.code === Code.Unauthenticated) return undefined;
    throw error;
  }
}

type Admin = Client<typeof AdminService>;

function adminClient(url: string, operatorToken: string): Admin {
  const authorize: Interceptor = (next) => (request) => {
    request.header.set("authorization", `Bearer ${operatorToken}`);
    return next(request);
  };
  return createClient(
    AdminService,
    createConnectTransport({ baseUrl: url, httpVersion: "1.1", interceptors: [authorize] }),
  );
}

/** A key that was revoked is of no use to somebody who follows what is printed. */
async function isActive(admin: Admin, token: string): Promise<boolean> {
  const vaultKeyId = token.split("_")[2] ?? "";
  try {
    const { vaultKey } = await admin.getVaultKey({ name: `vaultKeys/${vaultKeyId}` });
    return vaultKey?.state === VaultKeyState.ACTIVE;
  } catch (error) {
    if (error instanceof ConnectError && error.code === Code.NotFound) return false;
    throw error;
  }
}

async function createQuickstart(admin: Admin): Promise<string> {
  await unlessExists(
    admin.createCap({
      capId,
      cap: {
        limit: { currency: "usd", amount: "1000" },
        maxPerSpend: { currency: "usd", amount: "250" },
        window: CapWindow.DAY,
        timeZone: "UTC",
      },
    }),
  );
  // The key of the first start was revoked, or the file with its token lost: make the next one.
  for (let number = 1; ; number += 1) {
    const created = await unlessExists(
      admin.createVaultKey({
        vaultKeyId: number === 1 ? "quickstart" : `quickstart${number}`,
        vaultKey: {
          vendor: "stripe",
          allowedEndpoints: quickstartEndpoints,
        },
      }),
    );
    if (created !== undefined) return created.token;
  }
}

async function unlessExists<Response>(call: Promise<Response>): Promise<Response | undefined> {
  try {
    return await call;
  } catch (error) {
    if (error instanceof ConnectError && error.code === Code.AlreadyExists) return undefined;
    throw error;
  }
}

function readCredentials(dataFolder: string): Credentials | undefined {
  const file = join(dataFolder, fileName);
  return existsSync(file) ? (JSON.parse(readFileSync(file, "utf8")) as Credentials) : undefined;
}

/** Readable by its owner only, and never half-written: a crash leaves the old file. */
function writeCredentials(dataFolder: string, credentials: Credentials): void {
  mkdirSync(dataFolder, { recursive: true, mode: 0o700 });
  const file = join(dataFolder, fileName);
  writeFileSync(`${file}.new`, `${JSON.stringify(credentials, undefined, 2)}\n`, { mode: 0o600 });
  renameSync(`${file}.new`, file);
}

/** Shows what a user can do next. The tokens are shown on purpose: this database is on the user's own machine. */
export function printQuickstart(quickstart: Quickstart): void {
  process.stdout.write(quickstartText(quickstart));
}

/** What is shown instead where the operator token of the data folder was replaced. */
export function printRefusedToken(url: string, dataFolder: string): void {
  process.stdout.write(`
Holdfast is running at ${url}. Its data is in ${dataFolder}.

The operator token that it remembers, or that HOLDFAST_OPERATOR_TOKEN names, was rotated or its operator revoked. Start it
once with HOLDFAST_OPERATOR_TOKEN set to the token that the rotation showed, or to one of a new operator
(op_<workspace>_<id>_ and 32 to 128 letters and digits): it is remembered from then on.
`);
}

function quickstartText({ url, operatorToken, vaultKey, dataFolder }: Quickstart): string {
  const address = url.replace(/^http:\/\//, "");
  const body = `{
    "spend": {"customer_id": "cust_123", "billing_period": "2026-11", "purpose": "subscription",
      "amount": {"currency": "usd", "amount": "49.00"}},
    "vendor": "stripe", "endpoint": "POST /v1/payment_intents", "settlement": "SETTLEMENT_TWO_STEP",
    "attempt_id": "00112233445566778899aabbccddeeff"}`;
  return `
Holdfast is running at ${url} (Connect, gRPC and gRPC-Web). Its data is in ${dataFolder}.

  operator token   ${operatorToken}
  vault key        ${vaultKey}
  cap              caps/${capId}: 1,000 USD a day, 250 USD per spend; it counts every key of the workspace

Ask for permission to spend, once with each tool; the answer is the same authorization:

  npx buf curl --http2-prior-knowledge -H 'Authorization: Bearer ${vaultKey}' -d '${body}' \\
    ${url}/holdfast.v1.SpendControlService/AuthorizeSpend

  grpcurl -plaintext -H 'Authorization: Bearer ${vaultKey}' -d '${body}' \\
    ${address} holdfast.v1.SpendControlService/AuthorizeSpend

Look after it from a terminal in this folder (npx holdfast --help):

  export HOLDFAST_URL=${url} HOLDFAST_OPERATOR_TOKEN='${operatorToken}'
  npx holdfast doctor

See what the cap has left:

  npx buf curl --http2-prior-knowledge -H 'Authorization: Bearer ${operatorToken}' -d '{"name": "caps/${capId}"}' \\
    ${url}/holdfast.v1.AdminService/GetCap

Charge through it from TypeScript: save as charge.ts in this folder and run
  STRIPE_KEY=sk_test_… node tools/run.cjs charge.ts

  import Stripe from "stripe";
  import { createHoldfast } from "@holdfast/sdk";

  const holdfast = createHoldfast({ baseUrl: "${url}", vaultKey: "${vaultKey}" });
  const stripe = holdfast.stripe(new Stripe(process.env.STRIPE_KEY!));
  const intent = await stripe.paymentIntents.create(
    { amount: 4900, currency: "usd", payment_method: "pm_card_visa", confirm: true,
      automatic_payment_methods: { enabled: true, allow_redirects: "never" } },
    { spend: { customerId: "cust_456", billingPeriod: "2026-11", purpose: "subscription" } });
  console.log(intent.id, intent.status); // run it again: the same intent, no second charge
  await holdfast.close();

Stop with Ctrl-C; the next start keeps everything.
`;
}
