import { create } from "@bufbuild/protobuf";
import type { ConnectRouter, HandlerContext, Interceptor, ServiceImpl, Transport } from "@connectrpc/connect";
import { AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import { AuthorizationState, Disposition } from "@holdfast/api/holdfast/v1/spend_pb";
import {
  type AuthorizeSpendRequest,
  AuthorizeSpendRequestSchema,
  SpendControlService,
} from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { authGate, createToken, principalInterceptor, type TokenKind, tokenHash } from "@holdfast/server/rpc/auth";
import { errorInterceptor } from "@holdfast/server/rpc/errors";
import { createInProcessTransport } from "@holdfast/server/rpc/in-process";
import { type Listener, startListener } from "@holdfast/server/rpc/listener";
import type { ListenerLimits } from "@holdfast/server/rpc/listener-limits";
import type { TlsSettings } from "@holdfast/server/rpc/listener-tls";
import { createHealth, createReflection, type HealthSwitch } from "@holdfast/server/rpc/standard";
import { traceGate, traceInterceptor } from "@holdfast/server/rpc/trace";
import { validationInterceptor } from "@holdfast/server/rpc/validate";

type SpendControl = Partial<ServiceImpl<typeof SpendControlService>>;

export interface StubServer extends Listener {
  /** The same RPCs without a socket. */
  readonly inProcess: Transport;
  readonly health: HealthSwitch;
  readonly vaultKeyToken: string;
  readonly operatorToken: string;
  /** Every defect that was logged. */
  readonly defects: { readonly fields: Record<string, unknown>; readonly message: string }[];
  /** How often a handler of SpendControlService was entered. */
  readonly handled: () => number;
}

/** The real RPC plumbing in its real order, around handlers without a database. */
export async function startStubServer(
  options: {
    limits?: Partial<ListenerLimits>;
    spend?: SpendControl;
    interceptors?: Interceptor[];
    tls?: TlsSettings;
    /** Full names; the server's own without it. */
    leanMethods?: ReadonlySet<string>;
  } = {},
): Promise<StubServer> {
  const vaultKeyToken = createToken("vk", "acme", "billing");
  const operatorToken = createToken("op", "acme", "alice");
  const hashes: Record<TokenKind, [string, Buffer]> = {
    vk: ["billing", tokenHash(vaultKeyToken)],
    op: ["alice", tokenHash(operatorToken)],
  };
  const defects: StubServer["defects"] = [];
  const log = {
    error: (fields: object, message: string) =>
      void defects.push({ fields: fields as Record<string, unknown>, message }),
  };
  let handled = 0;
  const count: Interceptor = (next) => (request) => {
    if (request.service.typeName === SpendControlService.typeName) handled += 1;
    return next(request);
  };
  const health = createHealth([SpendControlService, AdminService]);
  health.setServing(true);
  const reflection = createReflection([SpendControlService, AdminService]);
  const rpc = {
    log,
    ...(options.limits === undefined ? {} : { limits: options.limits }),
    requestGate: traceGate(
      authGate({
        log,
        lookupToken: (kind, workspace, id) =>
          Promise.resolve({
            role: kind === "vk" ? "vault_key" : "operator",
            secrets:
              workspace === "acme" && hashes[kind][0] === id
                ? [{ sha256: hashes[kind][1], validForMs: undefined }]
                : [],
          }),
      }),
    ),
    interceptors: [
      traceInterceptor(),
      errorInterceptor(log),
      principalInterceptor(),
      validationInterceptor(),
      ...(options.interceptors ?? []),
      count,
    ],
    routes: (router: ConnectRouter) => {
      health.routes(router);
      reflection(router);
      router.service(SpendControlService, { ...stubSpend, ...options.spend });
      router.service(AdminService, { listCaps: () => ({}) });
    },
  };
  const listener = await startListener({
    host: "127.0.0.1",
    port: 0,
    ...rpc,
    ...(options.tls === undefined ? {} : { tls: options.tls }),
    ...(options.leanMethods === undefined ? {} : { leanMethods: options.leanMethods }),
  });
  return {
    ...listener,
    inProcess: createInProcessTransport(rpc),
    health,
    vaultKeyToken,
    operatorToken,
    defects,
    handled: () => handled,
  };
}

const stubSpend: SpendControl = {
  authorizeSpend: (request) => ({
    disposition: Disposition.GRANTED,
    authorization: {
      name: `authorizations/${"0".repeat(36)}-1`,
      state: AuthorizationState.HELD,
      ...(request.spend === undefined ? {} : { spend: request.spend }),
    },
  }),
  batchAuthorizeSpend: (request) => ({
    results: request.requests.map(() => ({
      result: { case: "response" as const, value: { disposition: Disposition.GRANTED } },
    })),
  }),
};

/** A request that breaks no rule. */
export function validRequest(): AuthorizeSpendRequest {
  return create(AuthorizeSpendRequestSchema, {
    spend: {
      customerId: "cust_123",
      billingPeriod: "2026-11",
      purpose: "subscription",
      amount: { currency: "usd", amount: "49.90" },
    },
    vendor: "stripe",
    endpoint: "POST /v1/charges",
    attemptId: "0123456789abcdef0123456789abcdef",
  });
}

/** Resolves when the handler was entered; the handler then waits for its signal. */
export function hangingHandler(): {
  readonly entered: Promise<HandlerContext>;
  readonly authorizeSpend: (request: AuthorizeSpendRequest, context: HandlerContext) => Promise<never>;
} {
  const entered = Promise.withResolvers<HandlerContext>();
  return {
    entered: entered.promise,
    authorizeSpend(_request, context) {
      entered.resolve(context);
      return new Promise((_resolve, reject) => {
        context.signal.addEventListener("abort", () => reject(new Error("interrupted")));
      });
    },
  };
}
