import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type OtlpReceiver, type ReceivedSpan, startOtlpReceiver } from "../support/otlp-receiver.ts";
import { charge, type ProxyWorld, secret, startProxyWorld } from "./world.ts";

const service = "holdfast.v1.SpendControlService";
const parentSpanId = "b7ad6b7169203331";
let receiver: OtlpReceiver;
let world: ProxyWorld;
let token: string;
let traces = 0;

beforeAll(async () => {
  receiver = await startOtlpReceiver();
  world = await startProxyWorld({ config: { otlpEndpoint: receiver.endpoint } });
  token = await world.key("traced");
});

afterAll(async () => {
  await world.close();
  await receiver.close();
});

/** Asks as a client that is traced itself. */
async function askTraced(method: string, path: string, asked: Parameters<ProxyWorld["ask"]>[2] = {}) {
  traces += 1;
  const traceId = traces.toString(16).padStart(32, "a");
  const headers = { ...asked.headers, traceparent: `00-${traceId}-${parentSpanId}-01` };
  const answer = await world.ask(method, path, { token, ...asked, headers });
  const root = await receiver.waitFor((span) => span.traceId === traceId && span.parentSpanId === parentSpanId);
  return { traceId, answer, root };
}

/** The names of the spans from one up to the client's. */
async function pathOf(span: ReceivedSpan): Promise<string[]> {
  if (span.parentSpanId === parentSpanId) return [span.name];
  const parent = await receiver.waitFor(
    ({ spanId, traceId }) => spanId === span.parentSpanId && traceId === span.traceId,
  );
  return [...(await pathOf(parent)), span.name];
}

async function auditOf(requestId: string) {
  const { rows } = await world.server.database.pool.query<{ kind: string; trace_id: string }>(
    `select e.kind, e.trace_id from holdfast.audit_events e where e.detail ->> 'request_id' = $1`,
    [requestId],
  );
  return rows;
}

describe("a proxied request is one trace, the client's", () => {
  test("from the request to the SQL and to the vendor; the audit names it", async () => {
    const headers = { "idempotency-key": "traced-1" };
    const { traceId, answer, root } = await askTraced("POST", "/v1/charges", { fields: charge, headers });
    expect(answer.status).toBe(200);
    const requestId = answer.headers.get("request-id") ?? "";
    expect(root).toMatchObject({
      name: "holdfast.proxy POST /v1/charges",
      kind: 2,
      statusCode: 0,
      attributes: {
        "holdfast.workspace": "default",
        "holdfast.vault_key": "traced",
        "holdfast.vendor": "stripe",
        "holdfast.vendor_endpoint": "POST /v1/charges",
        "holdfast.disposition": "FORWARDED",
        "holdfast.request_id": requestId,
        "http.request.method": "POST",
        "http.response.status_code": 200,
      },
    });
    const named = (name: string) => receiver.waitFor((span) => span.traceId === traceId && span.name === name);
    expect(await pathOf(await named("postgresql authorize_batch"))).toEqual([
      root.name,
      "holdfast.authorize",
      `${service}/AuthorizeSpend`,
      "holdfast.batch authorize",
      "postgresql authorize_batch",
    ]);
    expect(await pathOf(await named("holdfast.upstream"))).toEqual([
      root.name,
      "holdfast.vendor_call",
      "holdfast.upstream",
    ]);
    expect(await pathOf(await named("postgresql commit_batch"))).toEqual([
      root.name,
      "holdfast.commit",
      `${service}/CommitSpend`,
      "holdfast.batch commit",
      "postgresql commit_batch",
    ]);
    expect(await pathOf(await named("postgresql record_proxy_events"))).toEqual([
      root.name,
      "holdfast.batch proxy_record",
      "postgresql record_proxy_events",
    ]);
    expect(await auditOf(requestId)).toEqual([{ kind: "proxy.request", trace_id: traceId }]);
  });

  test("also where it is passed on, or refused", async () => {
    const passed = await askTraced("POST", "/v1/customers", { fields: { name: "Ada" } });
    expect(passed.root.attributes).toMatchObject({ "holdfast.disposition": "PASSED" });
    const upstream = await receiver.waitFor(
      (span) => span.traceId === passed.traceId && span.name === "holdfast.upstream",
    );
    expect(await pathOf(upstream)).toEqual(["holdfast.proxy POST /v1/customers", "holdfast.upstream"]);
    const refused = await askTraced("POST", "/v1//charges", { fields: charge });
    // Nothing of a request that could not be read is in its span.
    expect(refused.root).toMatchObject({
      name: "holdfast.proxy",
      statusCode: 0,
      attributes: {
        "holdfast.vault_key": "traced",
        "holdfast.disposition": "REFUSED",
        "holdfast.reason": "invalid_target",
        "http.response.status_code": 400,
      },
    });
    expect(await auditOf(refused.answer.headers.get("request-id") ?? "")).toEqual([
      { kind: "proxy.request", trace_id: refused.traceId },
    ]);
    const stranger = await askTraced("GET", "/v1/charges/ch_1", { token: `vk_default_nobody_${"x".repeat(43)}` });
    expect(stranger.root.attributes).toMatchObject({ "holdfast.reason": "invalid_credentials" });
  });

  test("two parents are none: the request begins a trace of its own", async () => {
    const traceparent = `00-${"c".repeat(32)}-${parentSpanId}-01`;
    const headers = new Headers({ authorization: `Bearer ${token}` });
    headers.append("traceparent", traceparent);
    headers.append("traceparent", traceparent);
    const response = await fetch(`${world.url}/v1/charges/ch_2`, { headers });
    const requestId = response.headers.get("request-id") ?? "";
    await response.text();
    const root = await receiver.waitFor(({ attributes }) => attributes["holdfast.request_id"] === requestId);
    expect([root.parentSpanId, root.traceId === "c".repeat(32)]).toEqual(["", false]);
  });
});

test("the database is asked no more often than a request needs", async () => {
  const asksOf = async (method: string, path: string, asked: Parameters<ProxyWorld["ask"]>[2]) => {
    const { traceId, answer } = await askTraced(method, path, asked);
    expect(answer.status).toBe(200);
    // The root is exported when everything below it is.
    const below = receiver.spans.filter((span) => span.traceId === traceId && span.name.startsWith("postgresql "));
    return { answer, asks: below.map(({ name }) => name.replace("postgresql ", "")).toSorted() };
  };
  const charged = { fields: charge, headers: { "idempotency-key": "counted-1" } };
  const first = await asksOf("POST", "/v1/charges", charged);
  expect(first.asks).toEqual([
    "authorize_batch",
    "claim_proxied_request",
    "commit_batch",
    "open_proxied_request",
    "proxy_key_state",
    "record_proxy_events",
    "remember_vendor_objects",
    "store_proxied_answer",
  ]);
  const again = await asksOf("POST", "/v1/charges", charged);
  expect(again.asks).toEqual(["claim_proxied_request", "open_proxied_request", "record_proxy_events"]);
  const passed = await asksOf("POST", "/v1/customers", { fields: { name: "Ada" } });
  expect(passed.asks).toEqual([
    "open_proxied_request",
    "proxy_key_state",
    "record_proxy_events",
    "remember_vendor_objects",
  ]);
  const path = `/v1/charges/${(first.answer.body as { id: string }).id}`;
  await asksOf("GET", path, {});
  expect((await asksOf("GET", path, {})).asks).toEqual(["open_proxied_request", "record_proxy_events"]);
});

test("requests that end at the same time are one event each, with the trace of each", async () => {
  const asked = Array.from({ length: 12 }, (_, n) => askTraced("POST", "/v1/customers", { fields: { name: `c${n}` } }));
  for (const { traceId, answer } of await Promise.all(asked)) {
    expect(await auditOf(answer.headers.get("request-id") ?? "")).toEqual([
      { kind: "proxy.request", trace_id: traceId },
    ]);
  }
});

test("no secret is exported", () => {
  const exported = receiver.bytes();
  for (const hidden of [token, token.split("_").at(-1) ?? "", secret, "tok_visa", "traced-1"]) {
    expect(exported.includes(hidden)).toBe(false);
  }
});
