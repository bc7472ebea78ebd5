import { spawnSync } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { describe, expect, test } from "vitest";
import { parse, parseAllDocuments } from "yaml";
import { readConfig } from "../../server/config.ts";
import { root } from "./container.ts";
import { shapes } from "./kubernetes-shapes.ts";
import { operatorToken } from "../injection/server-process.ts";
import { misfits } from "./shape.ts";

const folder = join(root, "deploy/kubernetes");
type Document = any;

function documentsOf(text: string): Document[] {
  return parseAllDocuments(text).map((document) => {
    expect(document.errors).toEqual([]);
    return document.toJS();
  });
}

/** What a kustomization of this folder names, without its patches. */
function resources(name: string): Document[] {
  const place = join(folder, name);
  const { resources: files = [] } = parse(readFileSync(join(place, "kustomization.yaml"), "utf8")) as {
    resources?: string[];
  };
  expect(
    readdirSync(place)
      .filter((file) => file !== "kustomization.yaml")
      .toSorted(),
  ).toEqual(files.toSorted());
  return files.flatMap((file) => documentsOf(readFileSync(join(place, file), "utf8")));
}

const hasKubectl = spawnSync("kubectl", ["kustomize", "--help"]).status === 0;

/** What would be applied. */
function built(name: string): Document[] {
  const { status, stdout, stderr } = spawnSync("kubectl", ["kustomize", join(folder, name)], { encoding: "utf8" });
  expect({ status, stderr }).toEqual({ status: 0, stderr: "" });
  return documentsOf(stdout);
}

const find = (documents: Document[], kind: string, name = "holdfast"): Document =>
  documents.find((one) => one.kind === kind && one.metadata.name === name);

/** The environment that the first container of a pod starts with; secrets are stood for. */
function environment(documents: Document[], { spec }: Document): Record<string, string> {
  const [{ envFrom = [], env = [] }] = spec.containers;
  const secrets: Record<string, string> = {
    DATABASE_URL: "postgres://holdfast@db/holdfast",
    HOLDFAST_OPERATOR_TOKEN: operatorToken,
    HOLDFAST_CREDENTIAL_KEY: Buffer.alloc(32, 1).toString("base64"),
  };
  const maps = envFrom.flatMap(({ configMapRef }: Document) =>
    Object.entries(find(documents, "ConfigMap", configMapRef.name).data),
  );
  const own = env.flatMap(({ name, value, valueFrom }: Document) => {
    if (valueFrom !== undefined) expect(valueFrom.secretKeyRef).toMatchObject({ name: "holdfast", key: name });
    const given = value ?? secrets[name];
    // Only what a server can do without may be missing in the secret.
    expect(given === undefined).toBe(valueFrom?.secretKeyRef.optional === true);
    return given === undefined ? [] : [[name, given]];
  });
  return { HOLDFAST_HOST: "0.0.0.0", ...Object.fromEntries(maps), ...Object.fromEntries(own) };
}

/** What holds of the servers, however they were patched. */
function checkServers(documents: Document[]): void {
  const { spec } = find(documents, "Deployment");
  const pod = spec.template.spec;
  const [container] = pod.containers;
  const config = readConfig(environment(documents, spec.template), []);
  expect(container.ports).toEqual([
    { name: "grpc", containerPort: config.port },
    { name: "stripe-proxy", containerPort: config.stripeProxy?.port },
    { name: "metrics", containerPort: config.metricsPort?.port },
  ]);
  expect(spec.replicas).toBe(3);
  expect(spec.strategy.rollingUpdate.maxUnavailable).toBe(0);
  // A service named holdfast sets HOLDFAST_PORT=tcp://… and more in every pod that is not told otherwise.
  expect(pod.enableServiceLinks).toBe(false);
  const drainMs = container.lifecycle.preStop.sleep.seconds * 1000 + config.shutdownGraceMs;
  expect(pod.terminationGracePeriodSeconds * 1000).toBeGreaterThan(drainMs + 5000);
  // A restart does not bring a database back, so only readiness asks for health.
  expect(container.livenessProbe.tcpSocket).toEqual({ port: config.port });
  expect(Object.keys(container.resources.requests).toSorted()).toEqual(["cpu", "memory"]);
  expect(container.resources.limits).toHaveProperty("memory");
  const { readinessProbe, startupProbe } = container;
  for (const { grpc, exec } of [readinessProbe, startupProbe]) {
    if (config.tls === undefined) {
      expect(grpc.port).toBe(config.port);
      expect(["", SpendControlService.typeName]).toContain(grpc.service ?? "");
      continue;
    }
    // Kubernetes' own speaks no TLS.
    expect([grpc, exec.command]).toEqual([undefined, ["node", "server/main.ts", "health"]]);
    const mounts = container.volumeMounts.map(({ mountPath }: Document) => mountPath);
    for (const file of [config.tls.certFile, config.tls.keyFile]) {
      expect(mounts).toContain(file.slice(0, file.lastIndexOf("/")));
    }
  }
  const services = documents.filter(({ kind }) => kind === "Service");
  expect(services.map(({ metadata }) => `${metadata.name}`).toSorted()).toEqual(["holdfast", "holdfast-each"]);
  for (const service of services) {
    const ports = [{ name: "grpc", port: config.port, targetPort: "grpc" }];
    // Clients of Stripe take one address.
    if (service.metadata.name === "holdfast") {
      ports.push({ name: "stripe-proxy", port: config.stripeProxy?.port ?? 0, targetPort: "stripe-proxy" });
      expect(config.stripeProxy).toMatchObject({ host: "0.0.0.0" });
      const { name, namespace } = service.metadata;
      const called = ["", `.${namespace}`, `.${namespace}.svc`, `.${namespace}.svc.cluster.local`];
      if (namespace !== undefined) expect(config.stripeProxy?.names).toEqual(called.map((rest) => `${name}${rest}`));
    }
    expect(service.spec.ports).toEqual(ports);
    expect(spec.template.metadata.labels).toMatchObject(service.spec.selector);
  }
  const { spec: network } = find(documents, "NetworkPolicy");
  expect(network.ingress.flatMap(({ ports }: Document) => ports)).toEqual([
    { port: config.port, protocol: "TCP" },
    { port: config.stripeProxy?.port, protocol: "TCP" },
    { port: config.metricsPort?.port, protocol: "TCP" },
  ]);
  expect(spec.template.metadata.labels).toMatchObject(find(documents, "PodDisruptionBudget").spec.selector.matchLabels);
}

/** What holds of every pod. */
function checkPods(documents: Document[]): void {
  const pods = documents.filter(({ spec }) => spec?.template !== undefined).map(({ spec }) => spec.template.spec);
  expect(pods.length).toBeGreaterThan(0);
  for (const pod of pods) {
    expect(pod).toMatchObject({ automountServiceAccountToken: false, enableServiceLinks: false });
    expect(pod.securityContext).toMatchObject({ runAsNonRoot: true, seccompProfile: { type: "RuntimeDefault" } });
    for (const { securityContext, resources: { limits = {} } = {} } of pod.containers) {
      expect(securityContext).toEqual({
        allowPrivilegeEscalation: false,
        readOnlyRootFilesystem: true,
        capabilities: { drop: ["ALL"] },
      });
      expect(limits).toHaveProperty("memory");
    }
  }
}

function misfitsOf(documents: Document[]): string[] {
  return documents.flatMap((document) => {
    const kind = `${document.apiVersion} ${document.kind}`;
    const shape = shapes[kind];
    return shape === undefined ? [`${kind} is not known`] : misfits(document, shape, document.metadata.name);
  });
}

const checkShapes = (documents: Document[]): void => expect(misfitsOf(documents)).toEqual([]);

test("a misspelt field, a wrong type and a missing field are found", () => {
  const [deployment] = resources("base").filter(({ kind }) => kind === "Deployment");
  deployment.spec.template.spec.terminationGracePeriodSecond = 30;
  deployment.spec.replicas = "3";
  delete deployment.spec.template.spec.containers[0].image;
  expect(misfitsOf([deployment])).toEqual([
    'holdfast.spec.replicas: "3" is no integer',
    "holdfast.spec.template.spec.containers[0].image: missing",
    "holdfast.spec.template.spec.terminationGracePeriodSecond: not a field",
  ]);
});

describe("the base", () => {
  const documents = resources("base");

  test("has only fields that Kubernetes knows", () => checkShapes(documents));
  test("has servers that fit their settings, probes, services and policies", () => checkServers(documents));
  test("has pods that may do little", () => checkPods(documents));

  test("migrates with a setting that a server takes", () => {
    const { spec } = find(documents, "Job", "holdfast-migrate");
    const [{ args }] = spec.template.spec.containers;
    expect(args).toEqual(["migrate"]);
    expect(readConfig(environment(documents, spec.template), []).database.kind).toBe("url");
    const { values } = find(documents, "NetworkPolicy").spec.podSelector.matchExpressions[0];
    expect(values).toContain(spec.template.metadata.labels["app.kubernetes.io/name"]);
  });

  test("names the user of the image", () => {
    const [, user, group] = /^USER (\d+):(\d+)$/m.exec(readFileSync(join(root, "deploy/Dockerfile"), "utf8")) ?? [];
    const { runAsUser, runAsGroup } = find(documents, "Deployment").spec.template.spec.securityContext;
    expect([`${runAsUser}`, `${runAsGroup}`]).toEqual([user, group]);
  });
});

test("the example of a caller may do little too, and may call", () => {
  const documents = resources("billing-worker");
  checkShapes(documents);
  checkPods(documents);
  const { spec } = find(documents, "Deployment", "billing-worker");
  expect(spec.replicas).toBe(3);
  const [{ from }] = find(resources("base"), "NetworkPolicy").spec.ingress;
  expect(spec.template.metadata.labels).toMatchObject(from[0].podSelector.matchLabels);
});

describe.skipIf(!hasKubectl)(
  `as kustomize builds it${hasKubectl ? "" : " (skipped: kubectl is not installed)"}`,
  () => {
    test.each(["base", "overlays/production"])("%s holds all of it, with pinned images", (name) => {
      const documents = built(name);
      checkShapes(documents);
      checkServers(documents);
      checkPods(documents);
      for (const { spec } of documents.filter((one) => one.spec?.template !== undefined)) {
        for (const { image } of spec.template.spec.containers) expect(image).toMatch(/^[a-z0-9./-]+:\d+\.\d+\.\d+$/);
      }
      expect(
        documents.filter(({ kind, metadata }) => kind !== "Namespace" && metadata.namespace !== "holdfast"),
      ).toEqual([]);
    });

    test("production asks for certificates, three zones, and brings the caller into a namespace that may call", () => {
      const documents = built("overlays/production");
      const { spec } = find(documents, "Deployment").spec.template;
      expect(spec.topologySpreadConstraints[0]).toMatchObject({
        topologyKey: "topology.kubernetes.io/zone",
        whenUnsatisfiable: "DoNotSchedule",
      });
      expect(find(documents, "ConfigMap").data).toMatchObject({ HOLDFAST_ALLOW_PLAINTEXT: "false" });
      expect(find(documents, "Deployment", "billing-worker")).toBeDefined();
      const [{ from }] = find(documents, "NetworkPolicy").spec.ingress;
      expect(find(documents, "Namespace").metadata.labels).toMatchObject(from[0].namespaceSelector.matchLabels);
    });
  },
);
