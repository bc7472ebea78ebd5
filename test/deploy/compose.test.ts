import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { parse } from "yaml";
import { describe, expect, test } from "vitest";
import { readConfig } from "../../server/config.ts";
import { composeShape } from "./compose-shape.ts";
import { operatorToken } from "../injection/server-process.ts";
import { root } from "./container.ts";
import { misfits } from "./shape.ts";

interface Service {
  readonly image: string;
  readonly command?: readonly string[];
  readonly environment?: Readonly<Record<string, string>>;
  readonly ports?: readonly string[];
  readonly volumes?: readonly string[];
  readonly depends_on?: Readonly<Record<string, { readonly condition: string }>>;
  readonly healthcheck?: { readonly test?: readonly string[] };
  readonly networks?: { readonly default?: { readonly aliases?: readonly string[] } };
  readonly stop_grace_period?: string;
  readonly read_only?: boolean;
  readonly cap_drop?: readonly string[];
}

interface Compose {
  readonly services: Readonly<Record<string, Service>>;
  readonly volumes: Readonly<Record<string, unknown>>;
}

const deploy = join(root, "deploy");
const { "x-server": _template, ...compose } = parse(readFileSync(join(deploy, "compose.yaml"), "utf8"), {
  merge: true,
}) as Compose & { "x-server": unknown };
const services = Object.entries(compose.services);
const servers = services.filter(([name]) => /^holdfast-\d$/.test(name)).map(([, service]) => service);

/** As Compose puts the variables of the shell into a value. */
function interpolated(environment: Readonly<Record<string, string>> = {}): Record<string, string> {
  const shell: Record<string, string> = {
    HOLDFAST_OPERATOR_TOKEN: operatorToken,
    POSTGRES_PASSWORD: "secret",
    HOLDFAST_CREDENTIAL_KEY: Buffer.alloc(32, 1).toString("base64"),
  };
  return Object.fromEntries(
    Object.entries(environment).map(([name, value]) => [
      name,
      value.replaceAll(/\$\{(\w+):([?-])([^}]*)\}/g, (_, variable: string, kind: string, rest: string) => {
        const found = shell[variable] ?? (kind === "-" ? rest : undefined);
        if (found === undefined) throw new Error(`${variable} is needed and not described.`);
        return found;
      }),
    ]),
  );
}

const imageEnv = Object.fromEntries(
  [...readFileSync(join(deploy, "Dockerfile"), "utf8").matchAll(/^ENV (HOLDFAST_\w+)=(\S+)$/gm)].map(
    ([, name = "", value = ""]) => [name, value],
  ),
);

test("the file has only what Compose knows", () => {
  expect(misfits(compose, composeShape)).toEqual([]);
});

test("every image is pinned to a version", () => {
  for (const [name, { image }] of services) expect(image, name).toMatch(/^[a-z0-9/-]+:v?\d+(\.\d+)+(-[a-z0-9]+)?$/);
});

describe("its servers", () => {
  test("are three, found by one name, each on a port of the loopback, with a settings that a server takes", () => {
    expect(servers).toHaveLength(3);
    expect(new Set(servers.flatMap(({ ports = [] }) => ports.map((port) => port.split(":")[1]))).size).toBe(6);
    for (const server of servers) {
      const config = readConfig({ ...imageEnv, ...interpolated(server.environment) }, []);
      const { port: proxied, host, names } = config.stripeProxy ?? expect.fail("no Stripe proxy");
      expect(server.ports).toEqual(
        [config.port, proxied].map(
          (port) => expect.stringMatching(new RegExp(`^127\\.0\\.0\\.1:\\d+:${port}$`)) as string,
        ),
      );
      // Whoever is told of an address here may use it.
      expect([host, ...names]).toEqual(["0.0.0.0", "holdfast", "localhost", "127.0.0.1"]);
      expect(server.networks?.default?.aliases).toEqual(["holdfast"]);
      // Otherwise a server that drains is killed.
      expect(Number(/^(\d+)s$/.exec(server.stop_grace_period ?? "")?.[1]) * 1000).toBeGreaterThan(
        config.shutdownGraceMs + 5000,
      );
      expect(server).toMatchObject({ read_only: true, cap_drop: ["ALL"] });
      expect(server.healthcheck).toBeUndefined();
      expect(server.depends_on).toEqual({ migrate: { condition: "service_completed_successfully" } });
    }
  });

  test("wait for the migration, which waits for a healthy database and starts without a certificate", () => {
    const { migrate, postgres } = compose.services;
    expect(migrate?.command).toEqual(["migrate"]);
    expect(migrate?.image).toBe(servers[0]?.image);
    expect(migrate?.depends_on).toEqual({ postgres: { condition: "service_healthy" } });
    expect(postgres?.healthcheck?.test?.[1]).toBe("pg_isready");
    const config = readConfig({ ...imageEnv, ...interpolated(migrate?.environment) }, ["migrate"].slice(1));
    const server = readConfig({ ...imageEnv, ...interpolated(servers[0]?.environment) }, []);
    expect(config.database).toEqual(server.database);
    const url = new URL(config.database.kind === "url" ? config.database.url : "");
    expect([url.hostname, url.port, url.username]).toEqual([
      "postgres",
      "5432",
      postgres?.environment?.["POSTGRES_USER"],
    ]);
    expect(url.pathname).toBe(`/${postgres?.environment?.["POSTGRES_DB"]}`);
  });
});

test("no setting switches off what keeps a grant in the database", () => {
  const text = readFileSync(join(deploy, "compose.yaml"), "utf8");
  expect(text).not.toMatch(/fsync|synchronous_commit|full_page_writes|privileged|docker\.sock|:latest/);
});

test("every file that is mounted is there, and every named volume is declared", () => {
  for (const volume of services.flatMap(([, { volumes = [] }]) => volumes)) {
    const [source = ""] = volume.split(":");
    if (source.startsWith("./")) expect(existsSync(join(deploy, source)), source).toBe(true);
    else expect(Object.keys(compose.volumes)).toContain(source);
  }
});

test("traces and metrics find their way: servers, collector, Prometheus, Grafana", () => {
  const read = (name: string): any => parse(readFileSync(join(deploy, "compose", name), "utf8"));
  const collector = read("collector.yaml");
  const endpoint = new URL(servers[0]?.environment?.["OTEL_EXPORTER_OTLP_ENDPOINT"] ?? "");
  expect(Object.keys(compose.services)).toContain(endpoint.hostname);
  expect(collector.receivers.otlp.protocols.http.endpoint).toBe(`0.0.0.0:${endpoint.port}`);
  for (const { receivers, processors = [], exporters } of Object.values<any>(collector.service.pipelines)) {
    expect(Object.keys(collector.receivers)).toEqual(expect.arrayContaining(receivers));
    expect(Object.keys(collector.processors)).toEqual(expect.arrayContaining(processors));
    expect(Object.keys(collector.exporters)).toEqual(expect.arrayContaining(exporters));
  }
  const { scrape_configs: jobs, rule_files: rules } = read("prometheus.yaml");
  const { metricsPort } = readConfig({ ...imageEnv, ...interpolated(servers[0]?.environment) }, []);
  // One job: the alerts and the dashboard tell servers apart by their instance.
  expect(jobs.map(({ static_configs: [{ targets }] }: any) => targets)).toEqual([
    [1, 2, 3].map((n) => `holdfast-${n}:${metricsPort?.port}`),
  ]);
  expect(metricsPort?.host).toBe("0.0.0.0");
  const mountsOf = (name: string) =>
    (compose.services[name]?.volumes ?? []).map((volume) => volume.split(":")[1] ?? "");
  expect(mountsOf("prometheus")).toEqual(expect.arrayContaining(rules));
  const [{ options }] = read("grafana-dashboards.yaml").providers;
  expect(mountsOf("grafana")).toContain(`${options.path}/holdfast.json`);
  const [source] = read("grafana-datasources.yaml").datasources;
  expect(Object.keys(compose.services)).toContain(new URL(source.url).hostname);
  expect(compose.services["prometheus"]?.ports?.[0]).toContain(`:${new URL(source.url).port}`);
});

test("nothing lies in deploy/compose that nobody mounts", () => {
  const mounted = services.flatMap(([, { volumes = [] }]) => volumes.map((volume) => volume.split(":")[0]));
  expect(readdirSync(join(deploy, "compose")).filter((name) => !mounted.includes(`./compose/${name}`))).toEqual([]);
});
