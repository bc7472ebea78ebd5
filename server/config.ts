import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import type { TlsFiles } from "./rpc/certificates.ts";
import { type Environment, Settings } from "./settings.ts";
import { exitCodes, StartupError } from "./startup-error.ts";
import type { TraceSampling } from "./telemetry.ts";

export type LogLevel = "trace" | "debug" | "info" | "warn" | "error" | "silent";

export type DatabaseConfig =
  | { readonly kind: "embedded"; readonly dataFolder: string }
  | { readonly kind: "url"; readonly url: string };

/** The settings of one server. Times are in milliseconds; sizes are counts. */
export interface Config {
  readonly database: DatabaseConfig;
  readonly host: string;
  /** 0 takes a free port. */
  readonly port: number;
  readonly workspace: string;
  /** `op_<workspace>_<id>_<secret>`: an operator that exists from the first start. */
  readonly operatorToken?: string;
  readonly logLevel: LogLevel;
  readonly poolSize: number;
  /** The most requests that travel to the database in one batch. */
  readonly batchMax: number;
  /** The most requests that wait for a batch before new ones are refused. */
  readonly queueMax: number;
  readonly sweepIntervalMs: number;
  /** How long the vendors' answers to the proxy's requests are kept, encrypted. */
  readonly proxyAnswerDays: number;
  /** How old an event is at least before `audit detach` takes it out of the audit. */
  readonly auditRetentionDays: number;
  /** False behind PgBouncer in transaction mode: no named statements and no session settings. */
  readonly preparedStatements: boolean;
  /** A replaced `holdfast.clock()` is accepted only where the money is not real. */
  readonly alteredClock: "refused" | "allowed";
  readonly otlpEndpoint?: string;
  readonly metricIntervalMs: number;
  /** Which traces are recorded; all of them, or as the caller has decided, without it. */
  readonly traceSampling?: TraceSampling;
  /** Where Prometheus finds the metrics; nowhere without it. */
  readonly metricsPort?: MetricsPortConfig;
  readonly shutdownGraceMs: number;
  /** The keys that encrypt stored vendor credentials, 32 bytes each. */
  readonly credentialKeys?: { readonly current: Uint8Array; readonly previous: Uint8Array | undefined };
  /** Where Stripe is: scheme, host and port. */
  readonly stripeOrigin: string;
  readonly reconcileIntervalMs: number;
  /** Reads of a vendor per second and credential. */
  readonly reconcileReadsPerSecond: number;
  /** How many reads of a vendor one authorization may cost at a time. */
  readonly reconcileReadsPerAuthorization: number;
  /** The files that secure the ports; cleartext without them. */
  readonly tls?: TlsFiles;
  /** Where Stripe's API is served to clients of any language; nowhere without it. */
  readonly stripeProxy?: ProxyConfig;
}

export interface MetricsPortConfig {
  readonly host: string;
  /** 0 takes a free port. */
  readonly port: number;
  /** How long the figures that the database knows are shown before they are read again. */
  readonly maxAgeMs: number;
}

export interface ProxyConfig {
  readonly host: string;
  /** 0 takes a free port. */
  readonly port: number;
  /** Lower-case host names that clients may mean, without a port; empty for any. */
  readonly names: readonly string[];
}

const operatorTokenPattern = /^op_([a-z0-9]{1,32})_[a-z0-9]{1,32}_[A-Za-z0-9]{32,128}$/;
const logLevels = ["trace", "debug", "info", "warn", "error", "silent"] as const;

/**
 * The configuration from the environment and the flags of `serve`.
 *
 * @throws StartupError (exit code 78) that lists every problem at once, each with its variable and its remedy. No
 * message repeats the value of a secret.
 */
export function readConfig(env: Environment, args: readonly string[]): Config {
  const settings = new Settings(env);
  const database = readDatabase(settings, args.includes("--embedded"));
  const workspace = settings.matching("HOLDFAST_WORKSPACE", {
    pattern: /^[a-z0-9]{1,32}$/,
    fallback: "default",
    remedy: "set 1 to 32 lower-case letters and digits.",
  });
  const operatorToken = readOperatorToken(settings, workspace);
  const otlpEndpoint = readOtlpEndpoint(settings);
  const host = readHost(settings, "HOLDFAST_HOST", "127.0.0.1");
  const credentialKeys = readCredentialKeys(settings);
  const stripeProxy = readStripeProxy(settings, host);
  const metricsPort = readMetricsPort(settings);
  const traceSampling = readTraceSampling(settings);
  const tls = readTls(settings, [
    ["HOLDFAST_HOST", host],
    ...(metricsPort === undefined ? [] : [["HOLDFAST_METRICS_HOST", metricsPort.host] as const]),
    ...(stripeProxy === undefined ? [] : [["HOLDFAST_STRIPE_PROXY_HOST", stripeProxy.host] as const]),
  ]);
  const config: Config = {
    database,
    host,
    port: settings.integer("HOLDFAST_PORT", { fallback: 7070, min: 0, max: 65_535 }),
    workspace,
    ...(operatorToken === undefined ? {} : { operatorToken }),
    logLevel: settings.oneOf("HOLDFAST_LOG_LEVEL", logLevels, "info"),
    poolSize: settings.integer("HOLDFAST_POOL_SIZE", { fallback: 10, min: 2, max: 500 }),
    batchMax: settings.integer("HOLDFAST_BATCH_MAX", { fallback: 500, min: 1, max: 1000 }),
    queueMax: settings.integer("HOLDFAST_QUEUE_MAX", { fallback: 10_000, min: 1, max: 1_000_000 }),
    sweepIntervalMs: settings.integer("HOLDFAST_SWEEP_INTERVAL_MS", { fallback: 5000, min: 100, max: 3_600_000 }),
    proxyAnswerDays: settings.integer("HOLDFAST_PROXY_ANSWER_DAYS", { fallback: 30, min: 1, max: 3650 }),
    auditRetentionDays: settings.integer("HOLDFAST_AUDIT_RETENTION_DAYS", { fallback: 400, min: 31, max: 36_500 }),
    preparedStatements: settings.oneOf("HOLDFAST_PREPARED_STATEMENTS", ["true", "false"], "true") === "true",
    alteredClock: settings.oneOf("HOLDFAST_ALTERED_CLOCK", ["refused", "allowed"], "refused"),
    ...(otlpEndpoint === undefined ? {} : { otlpEndpoint }),
    metricIntervalMs: settings.integer("OTEL_METRIC_EXPORT_INTERVAL", { fallback: 60_000, min: 100, max: 3_600_000 }),
    ...(traceSampling === undefined ? {} : { traceSampling }),
    ...(metricsPort === undefined ? {} : { metricsPort }),
    ...(credentialKeys === undefined ? {} : { credentialKeys }),
    stripeOrigin: readStripeOrigin(settings),
    reconcileIntervalMs: settings.integer("HOLDFAST_RECONCILE_INTERVAL_MS", {
      fallback: 5000,
      min: 10,
      max: 3_600_000,
    }),
    reconcileReadsPerSecond: settings.integer("HOLDFAST_RECONCILE_READS_PER_SECOND", {
      fallback: 5,
      min: 1,
      max: 1000,
    }),
    reconcileReadsPerAuthorization: settings.integer("HOLDFAST_RECONCILE_READS_PER_AUTHORIZATION", {
      fallback: 100,
      min: 1,
      max: 100_000,
    }),
    shutdownGraceMs: settings.integer("HOLDFAST_SHUTDOWN_GRACE_MS", { fallback: 10_000, min: 0, max: 600_000 }),
    ...(tls === undefined ? {} : { tls }),
    ...(stripeProxy === undefined ? {} : { stripeProxy }),
  };
  settings.refuseUnknown();
  refuse(settings.problems, args);
  return config;
}

function refuse(problems: readonly string[], args: readonly string[]): void {
  const flags = args
    .filter((arg) => arg.startsWith("-") && arg !== "--embedded")
    .map((flag) => `${flag} is not a flag of serve; the only one is --embedded.`);
  const all = [...problems, ...flags];
  if (all.length === 0) return;
  const code = problems.length === 0 ? "usage" : "config";
  throw new StartupError(
    code,
    `The server cannot start (exit code ${exitCodes[code]}):\n${all.map((line) => `- ${line}`).join("\n")}`,
  );
}

function readDatabase(settings: Settings, embedded: boolean): DatabaseConfig {
  const url = settings.text("DATABASE_URL");
  const dataFolder = resolve(settings.text("HOLDFAST_DATA_FOLDER") ?? ".holdfast");
  if (embedded || url === undefined) return { kind: "embedded", dataFolder };
  const parsed = URL.parse(url);
  if (parsed === null || !["postgres:", "postgresql:"].includes(parsed.protocol)) {
    settings.problems.push(
      "DATABASE_URL is not a Postgres address; set postgres://user:password@host:5432/database, " +
        "or unset it for the embedded Postgres.",
    );
  }
  return { kind: "url", url };
}

function readOperatorToken(settings: Settings, workspace: string): string | undefined {
  const token = settings.text("HOLDFAST_OPERATOR_TOKEN");
  if (token === undefined) return undefined;
  const owner = operatorTokenPattern.exec(token)?.[1];
  if (owner === undefined) {
    settings.problems.push(
      "HOLDFAST_OPERATOR_TOKEN is malformed; set op_<workspace>_<id>_<secret> with 32 to 128 letters and digits as secret.",
    );
  } else if (owner !== workspace) {
    settings.problems.push(
      `HOLDFAST_OPERATOR_TOKEN is for the workspace "${owner}"; use one for "${workspace}", or set HOLDFAST_WORKSPACE.`,
    );
  }
  return token;
}

const stripeOriginDefault = "https://api.stripe.com";

/** Only a server's own setting can lead the vendor's secret to another place, and never without TLS to another machine. */
function readStripeOrigin(settings: Settings): string {
  const text = settings.text("HOLDFAST_STRIPE_ORIGIN");
  if (text === undefined) return stripeOriginDefault;
  const url = URL.parse(text);
  const isOrigin = url !== null && [url.origin, `${url.origin}/`].includes(text);
  const isSafe =
    url?.protocol === "https:" || (url?.protocol === "http:" && loopback.test(url.hostname.replace(/^\[|\]$/g, "")));
  if (isOrigin && isSafe) return url.origin;
  settings.problems.push(
    "HOLDFAST_STRIPE_ORIGIN is not an origin that a secret may be sent to; set https://host[:port] without a path " +
      `(http only on this machine), or unset it for ${stripeOriginDefault}.`,
  );
  return stripeOriginDefault;
}

function readHost(settings: Settings, name: string, fallback: string): string {
  return settings.matching(name, {
    pattern: /^[A-Za-z0-9.:_-]{1,253}$/,
    fallback,
    remedy: "set an address or a host name to listen on, without a port.",
  });
}

function readStripeProxy(settings: Settings, fallbackHost: string): ProxyConfig | undefined {
  const isAsked = settings.text("HOLDFAST_STRIPE_PROXY_PORT") !== undefined;
  const port = settings.integer("HOLDFAST_STRIPE_PROXY_PORT", { fallback: 0, min: 0, max: 65_535 });
  const host = readHost(settings, "HOLDFAST_STRIPE_PROXY_HOST", fallbackHost);
  const names = (settings.text("HOLDFAST_STRIPE_PROXY_NAMES") ?? "")
    .split(",")
    .map((name) => name.trim().toLowerCase())
    .filter((name) => name !== "");
  if (!names.every((name) => /^(?:[a-z0-9._-]{1,253}|\[[0-9a-f:.]{2,45}\])$/.test(name))) {
    settings.problems.push(
      "HOLDFAST_STRIPE_PROXY_NAMES is not a list of host names; set them with commas between and without ports, or " +
        "unset it to answer for any.",
    );
  }
  if (!isAsked) return undefined;
  const key = settings.text("HOLDFAST_CREDENTIAL_KEY") ?? settings.text("HOLDFAST_CREDENTIAL_KEY_FILE");
  if (key === undefined) {
    settings.problems.push(
      "HOLDFAST_STRIPE_PROXY_PORT needs HOLDFAST_CREDENTIAL_KEY (or HOLDFAST_CREDENTIAL_KEY_FILE), which encrypts the " +
        'Stripe key that the proxy sends; set it to what "openssl rand -base64 32" prints.',
    );
  }
  return { host, port, names };
}

function readCredentialKeys(settings: Settings): NonNullable<Config["credentialKeys"]> | undefined {
  const text = settings.text("HOLDFAST_CREDENTIAL_KEY");
  const file = settings.text("HOLDFAST_CREDENTIAL_KEY_FILE");
  const previous = settings.text("HOLDFAST_CREDENTIAL_KEY_PREVIOUS");
  if (text !== undefined && file !== undefined) {
    settings.problems.push("HOLDFAST_CREDENTIAL_KEY and HOLDFAST_CREDENTIAL_KEY_FILE are both set; set one of them.");
  }
  const current = text === undefined ? readKeyFile(settings, file) : readKey(settings, "HOLDFAST_CREDENTIAL_KEY", text);
  const before = previous === undefined ? undefined : readKey(settings, "HOLDFAST_CREDENTIAL_KEY_PREVIOUS", previous);
  if (text === undefined && file === undefined && previous !== undefined) {
    settings.problems.push("HOLDFAST_CREDENTIAL_KEY_PREVIOUS is set without HOLDFAST_CREDENTIAL_KEY; set both.");
  }
  return current === undefined ? undefined : { current, previous: before };
}

function readKeyFile(settings: Settings, file: string | undefined): Uint8Array | undefined {
  if (file === undefined) return undefined;
  try {
    return readKey(settings, "HOLDFAST_CREDENTIAL_KEY_FILE", readFileSync(file, "utf8").trim());
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code ?? "it cannot be read";
    settings.problems.push(
      `HOLDFAST_CREDENTIAL_KEY_FILE cannot be read (${code}); name a file with the key in base64.`,
    );
    return undefined;
  }
}

function readKey(settings: Settings, name: string, text: string): Uint8Array | undefined {
  const key = /^[A-Za-z0-9+/]{43}=?$/.test(text) ? Buffer.from(text, "base64") : Buffer.alloc(0);
  if (key.length === 32) return key;
  settings.problems.push(
    `${name} is not a key; set 32 random bytes in base64, as "openssl rand -base64 32" prints them.`,
  );
  return undefined;
}

const loopback = /^(127(\.[0-9]{1,3}){3}|::1|localhost)$/;

/** `hosts`: what is listened on, and the setting that says so. */
function readTls(
  settings: Settings,
  hosts: readonly (readonly [setting: string, host: string])[],
): TlsFiles | undefined {
  const certFile = settings.text("HOLDFAST_TLS_CERT_FILE");
  const keyFile = settings.text("HOLDFAST_TLS_KEY_FILE");
  const clientCaFile = settings.text("HOLDFAST_TLS_CLIENT_CA_FILE");
  const minVersion = settings.oneOf("HOLDFAST_TLS_MIN_VERSION", ["TLSv1.2", "TLSv1.3"], "TLSv1.2");
  const plaintext = settings.oneOf("HOLDFAST_ALLOW_PLAINTEXT", ["true", "false"], "false");
  if (certFile !== undefined && keyFile !== undefined) {
    return { certFile, keyFile, minVersion, ...(clientCaFile === undefined ? {} : { clientCaFile }) };
  }
  if (certFile !== undefined || keyFile !== undefined) {
    settings.problems.push("HOLDFAST_TLS_CERT_FILE and HOLDFAST_TLS_KEY_FILE belong together: set both, or none.");
  } else if (clientCaFile !== undefined) {
    settings.problems.push("HOLDFAST_TLS_CLIENT_CA_FILE needs HOLDFAST_TLS_CERT_FILE and HOLDFAST_TLS_KEY_FILE.");
  } else if (plaintext === "false") {
    const [open] = hosts.filter(([, host]) => !loopback.test(host));
    if (open === undefined) return undefined;
    // Tokens would travel in clear text, and whoever sees one can spend.
    settings.problems.push(
      `${open[0]} is "${open[1]}", which other machines reach, without TLS; set HOLDFAST_TLS_CERT_FILE and ` +
        "HOLDFAST_TLS_KEY_FILE, or HOLDFAST_ALLOW_PLAINTEXT=true where something in front of the server ends TLS.",
    );
  }
  return undefined;
}

/** On this machine only unless told: whoever reaches it learns the names of caps and what they leave. */
function readMetricsPort(settings: Settings): MetricsPortConfig | undefined {
  const isAsked = settings.text("HOLDFAST_METRICS_PORT") !== undefined;
  const port = settings.integer("HOLDFAST_METRICS_PORT", { fallback: 0, min: 0, max: 65_535 });
  const host = readHost(settings, "HOLDFAST_METRICS_HOST", "127.0.0.1");
  const maxAgeMs = settings.integer("HOLDFAST_METRICS_MAX_AGE_MS", { fallback: 10_000, min: 0, max: 600_000 });
  return isAsked ? { host, port, maxAgeMs } : undefined;
}

const samplers = [
  "always_on",
  "always_off",
  "traceidratio",
  "parentbased_always_on",
  "parentbased_always_off",
  "parentbased_traceidratio",
] as const;

function readTraceSampling(settings: Settings): TraceSampling | undefined {
  const isAsked = settings.text("OTEL_TRACES_SAMPLER") !== undefined;
  const sampler = settings.oneOf("OTEL_TRACES_SAMPLER", samplers, "parentbased_always_on");
  const text = settings.text("OTEL_TRACES_SAMPLER_ARG") ?? "1";
  const ratio = /^(?:0|1|0?\.\d{1,9}|[01]\.\d{1,9})$/.test(text) ? Number(text) : Number.NaN;
  if (isAsked && sampler.endsWith("ratio") && !(ratio <= 1)) {
    settings.problems.push(`OTEL_TRACES_SAMPLER_ARG is "${text}"; set a ratio from 0 to 1, or unset it for 1.`);
  }
  return isAsked ? { sampler, ratio: sampler.endsWith("ratio") ? ratio : 1 } : undefined;
}

function readOtlpEndpoint(settings: Settings): string | undefined {
  const endpoint = settings.text("OTEL_EXPORTER_OTLP_ENDPOINT");
  const disabled = settings.text("OTEL_SDK_DISABLED")?.toLowerCase() === "true";
  if (endpoint === undefined || disabled) return undefined;
  const protocol = URL.parse(endpoint)?.protocol;
  if (protocol !== "http:" && protocol !== "https:") {
    settings.problems.push("OTEL_EXPORTER_OTLP_ENDPOINT is not an address; set http://host:4318, or unset it.");
  }
  return endpoint;
}
