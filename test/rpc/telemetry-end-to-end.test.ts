import { createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { createHoldfast, type Holdfast } from "@holdfast/sdk";
import { context, ROOT_CONTEXT, type Span, trace } from "@opentelemetry/api";
import Stripe from "stripe";
import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { GroupCommit } from "../../server/store/group-commit.ts";
import { type OtlpReceiver, type ReceivedSpan, startOtlpReceiver } from "../support/otlp-receiver.ts";
import { startTestServer, type TestServer } from "../support/server.ts";
import { startStripeSimulator, type StripeSimulator } from "../support/stripe-simulator/index.ts";

const service = "holdfast.v1.SpendControlService";
let receiver: OtlpReceiver;
let server: TestServer;
let simulator: StripeSimulator;
let holdfast: Holdfast;
let vaultKey: string;
let baseUrl: string;
beforeAll(async () => {
  receiver = await startOtlpReceiver();
  server = await startTestServer({ config: { otlpEndpoint: receiver.endpoint } });
  simulator = await startStripeSimulator();
  vaultKey = await server.vaultKey("billing");
  await server.cap("everything", "1000");
  baseUrl = server.apps[0]?.url ?? "";
  holdfast = createHoldfast({ baseUrl, vaultKey });
});
afterAll(async () => {
  await holdfast.close();
  await server.close();
  await simulator.close();
  await receiver.close();
});

/** Calls as the service does, without the SDK. */
function client() {
  const transport = createGrpcTransport({
    baseUrl,
    interceptors: [
      (next) => (request) => {
        request.header.set("authorization", `Bearer ${vaultKey}`);
        return next(request);
      },
    ],
  });
  return createClient(SpendControlService, transport);
}

/** Runs `fn` below a new root span of the application. */
async function inTrace<T>(name: string, fn: (span: Span) => Promise<T>): Promise<{ traceId: string; value: T }> {
  const span = trace.getTracer("application").startSpan(name, {}, ROOT_CONTEXT);
  try {
    const value = await context.with(trace.setSpan(ROOT_CONTEXT, span), () => fn(span));
    return { traceId: span.spanContext().traceId, value };
  } finally {
    span.end();
  }
}

function spend(customerId: string) {
  const what = { amount: "4.90", currency: "usd", vendor: "stripe", endpoint: "POST /v1/payment_intents" };
  return holdfast.spend({ customerId, billingPeriod: "2026-11", purpose: "subscription" }, what, () =>
    Promise.resolve({ vendorReference: `pi_${customerId}` }),
  );
}

async function auditTraces(customerId: string): Promise<{ kind: string; trace_id: string }[]> {
  const { rows } = await server.database.pool.query<{ kind: string; trace_id: string }>(
    "select kind, trace_id from holdfast.audit_events where customer_id = $1 order by xid, n",
    [customerId],
  );
  return rows;
}

/** The spans from one up to its root, by name. */
async function pathOf(span: ReceivedSpan): Promise<string[]> {
  const path = [span.name];
  for (let one = span; one.parentSpanId !== ""; ) {
    const { traceId, parentSpanId } = one;
    one = await receiver.waitFor((other) => other.spanId === parentSpanId && other.traceId === traceId);
    path.unshift(one.name);
  }
  return path;
}

test("a lone charge is one trace from the application to the SQL and the vendor, and the audit names it", async () => {
  const stripe = holdfast.stripe(
    new Stripe("sk_test_1", { host: simulator.host, port: simulator.port, protocol: "http", telemetry: false }),
  );
  const { traceId } = await inTrace("billing run", () =>
    stripe.paymentIntents.create(
      { amount: 490, currency: "usd", payment_method: "pm_card_visa", confirm: true },
      { spend: { customerId: "lone", billingPeriod: "2026-11", purpose: "subscription" } },
    ),
  );
  const named = (name: string) => receiver.waitFor((span) => span.traceId === traceId && span.name === name);
  expect(await pathOf(await named("postgresql authorize_batch"))).toEqual([
    "billing run",
    "holdfast.authorize",
    `${service}/AuthorizeSpend`,
    "holdfast.batch authorize",
    "postgresql authorize_batch",
  ]);
  expect(await pathOf(await named("postgresql commit_batch"))).toEqual([
    "billing run",
    "holdfast.commit",
    `${service}/CommitSpend`,
    "holdfast.batch commit",
    "postgresql commit_batch",
  ]);
  expect(await pathOf(await named("holdfast.vendor_call"))).toEqual(["billing run", "holdfast.vendor_call"]);
  const batch = await named("holdfast.batch authorize");
  const request = await named(`${service}/AuthorizeSpend`);
  expect(batch.links).toEqual([{ traceId, spanId: request.spanId }]);
  const audited = await auditTraces("lone");
  expect(audited.map(({ kind }) => kind)).toEqual(["spend.granted", "spend.bound", "spend.committed"]);
  expect(new Set(audited.map(({ trace_id }) => trace_id))).toEqual(new Set([traceId]));
});

test("calls that the SDK sends together are one span, linked to the call of every other trace", async () => {
  const customers = ["together-1", "together-2", "together-3"];
  const traces = (await Promise.all(customers.map((one) => inTrace(`run ${one}`, () => spend(one))))).map(
    ({ traceId }) => traceId,
  );
  const [first, ...others] = traces;
  const batch = await receiver.waitFor((span) => span.name === "holdfast.batch_authorize" && span.traceId === first);
  const calls = await Promise.all(
    others.map((other) => receiver.waitFor((span) => span.traceId === other && span.name === "holdfast.authorize")),
  );
  expect(batch.links).toEqual(calls.map(({ traceId, spanId }) => ({ traceId, spanId })));
  const sql = await receiver.waitFor((span) => span.name === "postgresql authorize_batch" && span.traceId === first);
  expect(await pathOf(sql)).toEqual([
    "run together-1",
    "holdfast.authorize",
    "holdfast.batch_authorize",
    `${service}/BatchAuthorizeSpend`,
    "holdfast.batch authorize",
    "postgresql authorize_batch",
  ]);
});

test("each spend of one SDK batch has its own caller's trace in the audit, and the server's batch leads to each", async () => {
  const customers = ["own-1", "own-2", "own-3"];
  const traces = (await Promise.all(customers.map((one) => inTrace(`run ${one}`, () => spend(one))))).map(
    ({ traceId }) => traceId,
  );
  for (const [n, customerId] of customers.entries()) {
    const audited = await auditTraces(customerId);
    expect(audited.map(({ kind }) => kind)).toEqual(["spend.granted", "spend.committed"]);
    expect(new Set(audited.map(({ trace_id }) => trace_id))).toEqual(new Set([traces[n]]));
  }
  for (const [batchName, called, step] of [
    ["holdfast.batch authorize", "BatchAuthorizeSpend", "holdfast.authorize"],
    ["holdfast.batch commit", "BatchCommitSpend", "holdfast.commit"],
  ] as const) {
    const batch = await receiver.waitFor((span) => span.name === batchName && span.traceId === traces[0]);
    const call = await receiver.waitFor((span) => span.name === `${service}/${called}` && span.traceId === traces[0]);
    expect(batch.parentSpanId).toBe(call.spanId);
    const steps = await Promise.all(
      traces.map((traceId) => receiver.waitFor((span) => span.traceId === traceId && span.name === step)),
    );
    // The call once, however many came with it, and the step of each trace.
    expect(batch.links).toEqual([call, ...steps].map(({ traceId, spanId }) => ({ traceId, spanId })));
  }
});

test("a request of a batch names its trace in any language; one that names none, or nothing well-formed, has the call's", async () => {
  const client = createClient(SpendControlService, createGrpcTransport({ baseUrl }));
  const call = { traceId: "c".repeat(32), spanId: "c".repeat(16) };
  const own = { traceId: "d".repeat(32), spanId: "d".repeat(16) };
  const parents = [`00-${own.traceId}-${own.spanId}-01`, "", "mistyped", `00-${"0".repeat(32)}-${own.spanId}-01`];
  const headers = { authorization: `Bearer ${vaultKey}`, traceparent: `00-${call.traceId}-${call.spanId}-01` };
  const amount = { currency: "usd", amount: "4.90" };
  const { results } = await client.batchAuthorizeSpend(
    {
      requests: parents.map((traceParent, n) => ({
        spend: { customerId: `named-${n}`, billingPeriod: "2026-11", purpose: "subscription", amount },
        vendor: "stripe",
        endpoint: "POST /v1/payment_intents",
        attemptId: `${n}`.repeat(32),
        traceParent,
      })),
    },
    { headers },
  );
  const names = results.map(({ result }) =>
    result.case === "response" ? result.value.authorization?.name : undefined,
  );
  await client.batchCommitSpend(
    {
      requests: parents.map((traceParent, n) => ({
        authorization: names[n] ?? "",
        amount,
        vendorReference: `pi_named_${n}`,
        traceParent,
      })),
    },
    { headers },
  );
  for (const n of parents.keys()) {
    const trace_id = n === 0 ? own.traceId : call.traceId;
    expect(await auditTraces(`named-${n}`)).toEqual([
      { kind: "spend.granted", trace_id },
      { kind: "spend.committed", trace_id },
    ]);
  }
  // By its trace an auditor finds it.
  const { auditEvents } = await server.admin.listAuditEvents({ traceId: own.traceId, newestFirst: true });
  expect(auditEvents.map(({ customerId }) => customerId)).toEqual(["named-0", "named-0"]);
});

test("requests that the server carries out together are linked from their batch, each one", async () => {
  const callers = Array.from({ length: 8 }, (_, n) => `apart-${n}`);
  const submit = Reflect.get(GroupCommit.prototype, "submit") as (...args: unknown[]) => Promise<unknown>;
  const together = Promise.withResolvers<void>();
  const gate = vi.spyOn(GroupCommit.prototype, "submit").mockImplementation(async function (this: object, ...args) {
    if (gate.mock.calls.length === callers.length) together.resolve();
    await together.promise;
    return await Reflect.apply(submit, this, args);
  });
  const ids = callers.map((_, n) => ({ traceId: `${n + 1}`.repeat(32), spanId: `${n + 1}`.repeat(16) }));
  const answers = callers.map((customerId, n) => {
    // A caller in any language: one connection and one trace each.
    const client = createClient(SpendControlService, createGrpcTransport({ baseUrl }));
    return client.authorizeSpend(
      {
        spend: {
          customerId,
          billingPeriod: "2026-11",
          purpose: "subscription",
          amount: { currency: "usd", amount: "4.90" },
        },
        vendor: "stripe",
        endpoint: "POST /v1/payment_intents",
        attemptId: `${n}`.repeat(32),
      },
      {
        headers: {
          authorization: `Bearer ${vaultKey}`,
          traceparent: `00-${ids[n]?.traceId}-${ids[n]?.spanId}-01`,
        },
      },
    );
  });
  await Promise.all(answers);
  gate.mockRestore();
  const requests = await Promise.all(
    ids.map(({ traceId, spanId }) =>
      receiver.waitFor((span) => span.traceId === traceId && span.parentSpanId === spanId),
    ),
  );
  const linked = async (request: ReceivedSpan) =>
    await receiver.waitFor(
      (span) =>
        span.name === "holdfast.batch authorize" &&
        span.links.some((link) => link.spanId === request.spanId && link.traceId === request.traceId),
    );
  const batches = new Set(await Promise.all(requests.map(linked)));
  expect(batches.size).toBeLessThan(requests.length);
  for (const batch of batches) {
    expect(batch.attributes["holdfast.batch.size"]).toBe(batch.links.length);
    expect(requests.map(({ spanId }) => spanId)).toContain(batch.parentSpanId);
  }
  for (const [n, customerId] of callers.entries()) {
    expect(await auditTraces(customerId)).toEqual([{ kind: "spend.granted", trace_id: ids[n]?.traceId }]);
  }
});

test("a billing job's lease is in its trace: asked for, kept by heartbeats, and given back", async () => {
  const { traceId, value } = await inTrace("nightly job", (job) =>
    holdfast.withBillingLease({ lease: "nightly", billingPeriod: "2026-11", ttlMs: 1_000 }, async () => {
      const { traceId: ours } = job.spanContext();
      await receiver.waitFor((span) => span.traceId === ours && span.name === "holdfast.renew_lease");
    }),
  );
  expect(value.acquired).toBe(true);
  for (const [step, called] of [
    ["holdfast.acquire_lease", "AcquireBillingLease"],
    ["holdfast.renew_lease", "RenewBillingLease"],
    ["holdfast.release_lease", "ReleaseBillingLease"],
  ] as const) {
    const call = await receiver.waitFor((span) => span.traceId === traceId && span.name === `${service}/${called}`);
    expect(await pathOf(call)).toEqual(["nightly job", step, `${service}/${called}`]);
    const asked = await receiver.waitFor((span) => span.spanId === call.parentSpanId);
    expect(asked.attributes).toEqual({ "holdfast.lease.name": "nightly", "holdfast.billing_period": "2026-11" });
  }
  const { auditEvents } = await server.admin.listAuditEvents({ traceId, newestFirst: true });
  expect(auditEvents.map(({ kind }) => kind)).toEqual(["lease.release", "lease.acquire"]);
}, 60_000);

test("a service's reconciliation is one trace, from what it was called in to what it read and reported", async () => {
  const lost = await client().authorizeSpend({
    spend: {
      customerId: "doubted",
      billingPeriod: "2026-11",
      purpose: "subscription",
      amount: { currency: "usd", amount: "4.90" },
    },
    vendor: "stripe",
    endpoint: "POST /v1/payment_intents",
    attemptId: "d".repeat(32),
  });
  const name = lost.authorization?.name ?? "";
  await client().reportUnknown({ authorization: name, attemptId: "d".repeat(32) });
  const stripe = new Stripe("sk_test_1", {
    host: simulator.host,
    port: simulator.port,
    protocol: "http",
    telemetry: false,
  });
  const { traceId, value } = await inTrace("reconciliation", () => holdfast.reconcile(stripe, { includeNotDue: true }));
  expect(value.steps.map(({ authorization, outcome }) => [authorization, outcome])).toEqual([[name, "absent"]]);
  const read = await receiver.waitFor((span) => span.traceId === traceId && span.name === "holdfast.vendor_read");
  expect((await pathOf(read)).slice(0, 2)).toEqual(["reconciliation", "holdfast.reconcile"]);
  const reported = await receiver.waitFor(
    (span) => span.traceId === traceId && span.name === `${service}/ReportReconciliation`,
  );
  expect(await pathOf(reported)).toEqual([
    "reconciliation",
    "holdfast.reconcile",
    "holdfast.reconcile_step",
    `${service}/ReportReconciliation`,
  ]);
  expect((await auditTraces("doubted")).at(-1)).toEqual({ kind: "spend.reconciled", trace_id: traceId });
});

test("what was exported holds no token and no secret", () => {
  const exported = receiver.bytes();
  for (const secret of [vaultKey, server.operatorToken, vaultKey.split("_").at(-1) ?? "", "sk_test_1"]) {
    expect(exported.includes(secret)).toBe(false);
  }
});
