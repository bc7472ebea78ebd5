import { each, fields, flag, integer, list, type Shape, text } from "./shape.ts";

// The part of the API of Kubernetes 1.32 that deploy/kubernetes uses, with its names and types.

const metadata = fields({ name: text, namespace: text, labels: each(text), annotations: each(text) }, "name");
const selector = fields({
  matchLabels: each(text),
  matchExpressions: list(fields({ key: text, operator: text, values: list(text) }, "key", "operator")),
});
const document = (rest: Readonly<Record<string, Shape>>, ...needed: readonly string[]): Shape =>
  fields({ apiVersion: text, kind: text, metadata, ...rest }, "apiVersion", "kind", "metadata", ...needed);

const port: Shape = "text or integer";
const keyRef = fields({ name: text, key: text, optional: flag }, "name", "key");
const probe = fields({
  grpc: fields({ port: integer, service: text }, "port"),
  tcpSocket: fields({ port, host: text }, "port"),
  exec: fields({ command: list(text) }, "command"),
  initialDelaySeconds: integer,
  periodSeconds: integer,
  timeoutSeconds: integer,
  successThreshold: integer,
  failureThreshold: integer,
});
const quantities = each(text);
const container = fields(
  {
    name: text,
    image: text,
    command: list(text),
    args: list(text),
    ports: list(fields({ name: text, containerPort: integer, protocol: text }, "containerPort")),
    envFrom: list(fields({ configMapRef: fields({ name: text, optional: flag }, "name") })),
    env: list(
      fields({ name: text, value: text, valueFrom: fields({ secretKeyRef: keyRef, configMapKeyRef: keyRef }) }, "name"),
    ),
    startupProbe: probe,
    readinessProbe: probe,
    livenessProbe: probe,
    lifecycle: fields({ preStop: fields({ sleep: fields({ seconds: integer }, "seconds") }) }),
    resources: fields({ requests: quantities, limits: quantities }),
    securityContext: fields({
      allowPrivilegeEscalation: flag,
      readOnlyRootFilesystem: flag,
      capabilities: fields({ drop: list(text), add: list(text) }),
    }),
    volumeMounts: list(fields({ name: text, mountPath: text, readOnly: flag }, "name", "mountPath")),
  },
  "name",
  "image",
);
const podSpec = fields(
  {
    serviceAccountName: text,
    automountServiceAccountToken: flag,
    enableServiceLinks: flag,
    terminationGracePeriodSeconds: integer,
    restartPolicy: text,
    topologySpreadConstraints: list(
      fields({ maxSkew: integer, topologyKey: text, whenUnsatisfiable: text, labelSelector: selector }),
    ),
    securityContext: fields({
      runAsNonRoot: flag,
      runAsUser: integer,
      runAsGroup: integer,
      fsGroup: integer,
      seccompProfile: fields({ type: text }, "type"),
    }),
    containers: list(container),
    volumes: list(fields({ name: text, secret: fields({ secretName: text, defaultMode: integer }) }, "name")),
  },
  "containers",
);
const template = fields({ metadata: fields({ labels: each(text) }), spec: podSpec }, "metadata", "spec");
const peer = fields({ podSelector: selector, namespaceSelector: selector });
const policyPorts = list(fields({ port, protocol: text }));

/** By apiVersion and kind. */
export const shapes: Readonly<Record<string, Shape>> = {
  "v1 Namespace": document({}),
  "v1 ServiceAccount": document({ automountServiceAccountToken: flag }),
  "v1 ConfigMap": document({ data: each(text) }),
  "v1 Service": document(
    {
      spec: fields(
        {
          clusterIP: text,
          selector: each(text),
          ports: list(fields({ name: text, port: integer, targetPort: port, protocol: text }, "port")),
        },
        "ports",
      ),
    },
    "spec",
  ),
  "apps/v1 Deployment": document(
    {
      spec: fields(
        {
          replicas: integer,
          revisionHistoryLimit: integer,
          selector,
          strategy: fields({ type: text, rollingUpdate: fields({ maxSurge: port, maxUnavailable: port }) }),
          template,
        },
        "selector",
        "template",
      ),
    },
    "spec",
  ),
  "batch/v1 Job": document(
    { spec: fields({ backoffLimit: integer, activeDeadlineSeconds: integer, template }, "template") },
    "spec",
  ),
  "policy/v1 PodDisruptionBudget": document(
    {
      spec: fields(
        { maxUnavailable: port, minAvailable: port, unhealthyPodEvictionPolicy: text, selector },
        "selector",
      ),
    },
    "spec",
  ),
  "networking.k8s.io/v1 NetworkPolicy": document(
    {
      spec: fields(
        {
          podSelector: selector,
          policyTypes: list(text),
          ingress: list(fields({ from: list(peer), ports: policyPorts })),
          egress: list(fields({ to: list(peer), ports: policyPorts })),
        },
        "podSelector",
      ),
    },
    "spec",
  ),
};
