import { type Client, createClient, type Interceptor, type Transport } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import { CapWindow } from "@holdfast/api/holdfast/v1/cap_pb";

export const capName = "caps/everything";

/** The workspace of a test: one cap over everything, and a key that may charge. */
export interface Policy {
  readonly admin: Client<typeof AdminService>;
  readonly vaultKey: string;
  /** What the cap counts, as decimal strings. */
  usage(): Promise<{ committed: string; held: string }>;
  setLimit(amount: string): Promise<void>;
}

/** Speaks gRPC as the bearer of a token. */
export function transportOf(baseUrl: string, token: string, interceptors: Interceptor[] = []): Transport {
  const authorization: Interceptor = (next) => (request) => {
    request.header.set("Authorization", `Bearer ${token}`);
    return next(request);
  };
  return createGrpcTransport({ baseUrl, interceptors: [...interceptors, authorization] });
}

export async function createPolicy(url: string, operatorToken: string, limit = "1000"): Promise<Policy> {
  const admin = createClient(AdminService, transportOf(url, operatorToken));
  await admin.createCap({
    capId: capName.slice("caps/".length),
    cap: { limit: { currency: "usd", amount: limit }, window: CapWindow.LIFETIME },
  });
  const { token } = await admin.createVaultKey({
    vaultKeyId: "billing",
    vaultKey: { vendor: "stripe", allowedEndpoints: ["POST /v1/payment_intents", "POST /v1/charges"] },
  });
  return {
    admin,
    vaultKey: token,
    async usage() {
      const { usage } = await admin.getCap({ name: capName });
      return { committed: usage?.committed?.amount ?? "", held: usage?.held?.amount ?? "" };
    },
    async setLimit(amount) {
      await admin.updateCap({
        cap: { name: capName, limit: { currency: "usd", amount } },
        updateMask: { paths: ["limit"] },
      });
    },
  };
}
