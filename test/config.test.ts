import { resolve } from "node:path";
import { describe, expect, test } from "vitest";
import { type Config, readConfig } from "../server/config.ts";
import { StartupError } from "../server/startup-error.ts";

const secret = "S".repeat(40);

function refusal(env: Record<string, string>, args: string[] = []): StartupError {
  try {
    readConfig(env, args);
  } catch (error) {
    if (error instanceof StartupError) return error;
    throw error;
  }
  throw new Error("the configuration was accepted");
}

test("an empty environment gives an embedded database in the working folder and the documented defaults", () => {
  expect(readConfig({}, [])).toEqual({
    database: { kind: "embedded", dataFolder: resolve(".holdfast") },
    host: "127.0.0.1",
    port: 7070,
    workspace: "default",
    logLevel: "info",
    poolSize: 10,
    batchMax: 500,
    queueMax: 10_000,
    sweepIntervalMs: 5000,
    proxyAnswerDays: 30,
    auditRetentionDays: 400,
    preparedStatements: true,
    alteredClock: "refused",
    metricIntervalMs: 60_000,
    shutdownGraceMs: 10_000,
    stripeOrigin: "https://api.stripe.com",
    reconcileIntervalMs: 5000,
    reconcileReadsPerSecond: 5,
    reconcileReadsPerAuthorization: 100,
  } satisfies Config);
});

test("every variable is read", () => {
  const config = readConfig(
    {
      DATABASE_URL: "postgres://app@db:5432/holdfast",
      HOLDFAST_HOST: "::",
      HOLDFAST_PORT: "0",
      HOLDFAST_WORKSPACE: "acme",
      HOLDFAST_OPERATOR_TOKEN: `op_acme_ops_${secret}`,
      HOLDFAST_LOG_LEVEL: "debug",
      HOLDFAST_POOL_SIZE: "20",
      HOLDFAST_BATCH_MAX: "100",
      HOLDFAST_QUEUE_MAX: "50",
      HOLDFAST_SWEEP_INTERVAL_MS: "200",
      HOLDFAST_PROXY_ANSWER_DAYS: "3650",
      HOLDFAST_AUDIT_RETENTION_DAYS: "31",
      HOLDFAST_PREPARED_STATEMENTS: "false",
      HOLDFAST_ALTERED_CLOCK: "allowed",
      HOLDFAST_SHUTDOWN_GRACE_MS: "1",
      HOLDFAST_TLS_CERT_FILE: "/tls/tls.crt",
      HOLDFAST_TLS_KEY_FILE: "/tls/tls.key",
      HOLDFAST_TLS_CLIENT_CA_FILE: "/tls/ca.crt",
      HOLDFAST_TLS_MIN_VERSION: "TLSv1.3",
      OTEL_EXPORTER_OTLP_ENDPOINT: "http://collector:4318",
      OTEL_METRIC_EXPORT_INTERVAL: "1000",
      HOLDFAST_CREDENTIAL_KEY: Buffer.alloc(32, 1).toString("base64"),
      HOLDFAST_CREDENTIAL_KEY_PREVIOUS: Buffer.alloc(32, 2).toString("base64"),
      HOLDFAST_STRIPE_ORIGIN: "http://127.0.0.1:4010",
      HOLDFAST_RECONCILE_INTERVAL_MS: "20",
      HOLDFAST_RECONCILE_READS_PER_SECOND: "50",
      HOLDFAST_RECONCILE_READS_PER_AUTHORIZATION: "7",
      OTEL_SERVICE_NAME: "anything",
      PATH: "/bin",
    },
    ["serve"],
  );
  expect(config).toEqual({
    database: { kind: "url", url: "postgres://app@db:5432/holdfast" },
    host: "::",
    port: 0,
    workspace: "acme",
    operatorToken: `op_acme_ops_${secret}`,
    logLevel: "debug",
    poolSize: 20,
    batchMax: 100,
    queueMax: 50,
    proxyAnswerDays: 3650,
    auditRetentionDays: 31,
    sweepIntervalMs: 200,
    preparedStatements: false,
    alteredClock: "allowed",
    otlpEndpoint: "http://collector:4318",
    metricIntervalMs: 1000,
    credentialKeys: { current: Buffer.alloc(32, 1), previous: Buffer.alloc(32, 2) },
    stripeOrigin: "http://127.0.0.1:4010",
    reconcileIntervalMs: 20,
    reconcileReadsPerSecond: 50,
    reconcileReadsPerAuthorization: 7,
    shutdownGraceMs: 1,
    tls: {
      certFile: "/tls/tls.crt",
      keyFile: "/tls/tls.key",
      clientCaFile: "/tls/ca.crt",
      minVersion: "TLSv1.3",
    },
  } satisfies Config);
});

describe("a port that other machines reach", () => {
  test.each(["0.0.0.0", "::", "10.0.0.7", "billing.internal"])(
    "is not opened in clear text on %s by accident",
    (host) => {
      expect(refusal({ HOLDFAST_HOST: host }).message).toMatch(/HOLDFAST_TLS_CERT_FILE.*HOLDFAST_ALLOW_PLAINTEXT=true/);
      expect(readConfig({ HOLDFAST_HOST: host, HOLDFAST_ALLOW_PLAINTEXT: "true" }, []).host).toBe(host);
    },
  );

  test.each(["127.0.0.1", "::1", "localhost"])("is another one than %s", (host) => {
    expect(readConfig({ HOLDFAST_HOST: host }, []).tls).toBeUndefined();
  });

  test.each([
    ["a certificate without its key", { HOLDFAST_TLS_CERT_FILE: "/c" }],
    ["a key without its certificate", { HOLDFAST_TLS_KEY_FILE: "/k" }],
    ["a client authority without a certificate", { HOLDFAST_TLS_CLIENT_CA_FILE: "/a" }],
  ])("is not secured by %s", (_, env) => {
    expect(refusal(env).message).toMatch(/HOLDFAST_TLS_CERT_FILE/);
  });
});

describe("where a vendor's secret is sent to, and what encrypts it", () => {
  test.each([
    "http://stripe.internal",
    "http://169.254.169.254",
    "https://u:p@host",
    "https://host/v1",
    "http:/x",
    "ftp://127.0.0.1",
    "127.0.0.1:80",
  ])("is not %s", (origin) => {
    expect(refusal({ HOLDFAST_STRIPE_ORIGIN: origin }).message).toMatch(/HOLDFAST_STRIPE_ORIGIN is not an origin/);
  });

  test.each(["https://stripe-mock.internal:8443", "http://localhost:4010", "http://[::1]:4010"])(
    "may be %s",
    (origin) => {
      expect(readConfig({ HOLDFAST_STRIPE_ORIGIN: origin }, []).stripeOrigin).toBe(origin);
    },
  );

  test.each([
    { HOLDFAST_CREDENTIAL_KEY: "c2hvcnQ=" },
    { HOLDFAST_CREDENTIAL_KEY: "x".repeat(44) },
    { HOLDFAST_CREDENTIAL_KEY_FILE: "/nowhere/key" },
    { HOLDFAST_CREDENTIAL_KEY_PREVIOUS: Buffer.alloc(32, 2).toString("base64") },
    { HOLDFAST_CREDENTIAL_KEY: Buffer.alloc(32).toString("base64"), HOLDFAST_CREDENTIAL_KEY_FILE: "/nowhere/key" },
  ])("is refused where it is no key, without repeating it: %j", (env) => {
    const { message } = refusal(env);
    expect(message).toContain("HOLDFAST_CREDENTIAL_KEY");
    for (const value of Object.values(env)) if (!value.startsWith("/")) expect(message).not.toContain(value);
  });
});

test("--embedded wins over DATABASE_URL, and the data folder can be moved", () => {
  const env = { DATABASE_URL: "postgres://db/x", HOLDFAST_DATA_FOLDER: "/srv/holdfast" };
  expect(readConfig(env, ["--embedded"]).database).toEqual({ kind: "embedded", dataFolder: "/srv/holdfast" });
});

test("all problems are reported together, each with its variable", () => {
  const error = refusal({
    DATABASE_URL: "mysql://db/x",
    HOLDFAST_PORT: "70000",
    HOLDFAST_WORKSPACE: "Not Allowed",
    HOLDFAST_LOG_LEVEL: "loud",
    HOLDFAST_BATCH_MAX: "1e3",
    HOLDFAST_ALTERED_CLOCK: "yes",
    HOLDFAST_POOL_SZIE: "3",
    OTEL_EXPORTER_OTLP_ENDPOINT: "collector",
  });
  expect(error.exitCode).toBe(78);
  const lines = error.message.split("\n").slice(1);
  expect(lines).toHaveLength(8);
  for (const name of [
    "DATABASE_URL",
    "HOLDFAST_PORT",
    "HOLDFAST_WORKSPACE",
    "HOLDFAST_LOG_LEVEL",
    "HOLDFAST_BATCH_MAX",
    "HOLDFAST_ALTERED_CLOCK",
    "HOLDFAST_POOL_SZIE",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
  ]) {
    expect(lines.filter((line) => line.startsWith(`- ${name} is`))).toHaveLength(1);
  }
});

test("a misspelt flag is a usage error, not a start on another database", () => {
  expect(refusal({ DATABASE_URL: "postgres://db/x" }, ["serve", "--embeded"]).exitCode).toBe(64);
});

describe("an operator token", () => {
  test.each([
    ["without the prefix", `vk_default_ops_${secret}`],
    ["with a short secret", `op_default_ops_${"S".repeat(31)}`],
    ["with an upper-case id", `op_default_OPS_${secret}`],
    ["of another workspace", `op_other_ops_${secret}`],
  ])("%s is refused and its value is not repeated", (_, token) => {
    const error = refusal({ HOLDFAST_OPERATOR_TOKEN: token });
    expect(error.message).toContain("HOLDFAST_OPERATOR_TOKEN");
    expect(error.message).not.toContain("SSSS");
  });
});

test("an empty variable counts as unset", () => {
  expect(readConfig({ HOLDFAST_PORT: "", DATABASE_URL: "", HOLDFAST_OPERATOR_TOKEN: " " }, [])).toEqual(
    readConfig({}, []),
  );
});

test("a malformed address is refused without repeating the password in it", () => {
  expect(refusal({ DATABASE_URL: "postgre://app:hunter2@db/x" }).message).not.toContain("hunter2");
});
