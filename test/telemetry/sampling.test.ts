import { afterEach, expect, test } from "vitest";
import { readConfig } from "../../server/config.ts";
import { dollar } from "../injection/spend-call.ts";
import { type OtlpReceiver, startOtlpReceiver } from "../support/otlp-receiver.ts";
import { startTestServer, type TestServer } from "../support/server.ts";

let server: TestServer | undefined;
let receiver: OtlpReceiver | undefined;
afterEach(async () => {
  await server?.close();
  await receiver?.close();
});

const traceId = "4bf92f3577b34da6a3ce929d0e0e4736";

/** The sampler, the flag of the caller's traceparent, and whether spans are to arrive. */
test.each([
  ["always_off", "01", false],
  ["always_off", "00", false],
  ["traceidratio", "01", false],
  ["parentbased_always_off", "01", true],
  ["parentbased_always_on", "00", false],
  ["always_on", "00", true],
] as const)(
  "%s and a caller's flag %s: every event of the audit has the caller's trace id",
  async (sampler, flag, spans) => {
    receiver = await startOtlpReceiver();
    const { traceSampling } = readConfig({ OTEL_TRACES_SAMPLER: sampler, OTEL_TRACES_SAMPLER_ARG: "0" }, []);
    server = await startTestServer({
      config: { otlpEndpoint: receiver.endpoint, ...(traceSampling === undefined ? {} : { traceSampling }) },
    });
    const token = await server.vaultKey("billing");
    await server.cap("all", "1");
    const headers = { traceparent: `00-${traceId}-00f067aa0ba902b7-${flag}` };
    const spends = server.spend(token);
    const request = dollar("c1");
    const { authorization } = await spends.authorizeSpend(request, { headers });
    await spends.authorizeSpend(dollar("c2"), { headers });
    await spends.reportUnknown({ authorization: authorization?.name ?? "", attemptId: request.attemptId }, { headers });
    const { rows } = await server.database.pool.query<{ kind: string; trace_id: string }>(
      "select e.kind, e.trace_id from holdfast.audit_events e where e.kind like 'spend.%' order by e.xid, e.n",
    );
    expect(rows.length).toBe(3);
    expect(new Set(rows.map(({ trace_id }) => trace_id))).toEqual(new Set([traceId]));
    await server.close();
    server = undefined;
    // What was not sent until the end of the server never will be.
    const arrived = receiver.spans.filter((span) => span.traceId === traceId);
    expect(arrived.length > 0).toBe(spans);
  },
);

test("a sampler that does not exist, and a ratio that is none, are refused", () => {
  expect(() => readConfig({ OTEL_TRACES_SAMPLER: "sometimes" }, [])).toThrow("OTEL_TRACES_SAMPLER");
  for (const ratio of ["2", "-0.1", "half", "1.5", "1e-3"]) {
    const env = { OTEL_TRACES_SAMPLER: "traceidratio", OTEL_TRACES_SAMPLER_ARG: ratio };
    expect(() => readConfig(env, []), ratio).toThrow("OTEL_TRACES_SAMPLER_ARG");
  }
  expect(
    readConfig({ OTEL_TRACES_SAMPLER: "traceidratio", OTEL_TRACES_SAMPLER_ARG: "0.25" }, []).traceSampling,
  ).toEqual({
    sampler: "traceidratio",
    ratio: 0.25,
  });
});
