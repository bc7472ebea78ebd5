import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";

const rules = join(import.meta.dirname, "../../deploy/prometheus/alerts.yaml");
const missing = spawnSync("promtool", ["--version"]).error !== undefined;
const skipped = missing ? " (skipped: promtool is not installed)" : "";

let folder: string;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), "holdfast-alerts-"));
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

/** What promtool says of series that stand, a value a minute, and of the alerts that fire at a minute. */
function judge(series: Readonly<Record<string, string>>, alert: string, minute: number, labels: object[]): string {
  const file = join(folder, "case.yaml");
  const text = {
    rule_files: [rules],
    evaluation_interval: "1m",
    tests: [
      {
        interval: "1m",
        input_series: Object.entries(series).map(([name, values]) => ({ series: name, values })),
        promql_expr_test: labels.map((its) => ({
          expr: `ALERTS{alertname="${alert}", alertstate="firing"}`,
          eval_time: `${minute}m`,
          exp_samples: [{ labels: `ALERTS${JSON.stringify(its).replaceAll(/"(\w+)":/g, "$1=")}`, value: 1 }],
        })),
        ...(labels.length > 0
          ? {}
          : { alert_rule_test: [{ eval_time: `${minute}m`, alertname: alert, exp_alerts: [] }] }),
      },
    ],
  };
  writeFileSync(file, JSON.stringify(text));
  const { status, stdout, stderr } = spawnSync("promtool", ["test", "rules", file], { encoding: "utf8" });
  return status === 0 ? "" : `${stdout}${stderr}`;
}

const of = (alertname: string, severity: string, labels: object) => [
  { alertname, alertstate: "firing", ...labels, severity },
];
const workspace = { holdfast_workspace: "default" };

test.skipIf(missing).each([
  {
    alert: "HoldfastVaultKeyDenials",
    name: 'holdfast_authorize_decisions_total{holdfast_workspace="default",holdfast_disposition="DENIED",holdfast_denial_rule="KILL_SWITCH"}',
    labels: of("HoldfastVaultKeyDenials", "warning", { holdfast_denial_rule: "KILL_SWITCH", ...workspace }),
  },
  {
    alert: "HoldfastOverCommits",
    name: 'holdfast_over_commits_total{holdfast_workspace="default"}',
    labels: of("HoldfastOverCommits", "warning", workspace),
  },
  {
    alert: "HoldfastAuditUnrecorded",
    name: 'holdfast_proxy_unrecorded_total{holdfast_vendor="stripe"}',
    labels: of("HoldfastAuditUnrecorded", "critical", { holdfast_vendor: "stripe" }),
  },
])(`$alert tells of the first one that there ever was, and of one more, for ten minutes${skipped}`, (one) => {
  const { alert, name, labels } = one;
  // Nothing until minute 20, then 1; and one more at minute 50.
  const series = { [name]: "_x20 1x29 2x40" };
  expect(judge(series, alert, 19, [])).toBe("");
  expect(judge(series, alert, 21, labels)).toBe("");
  expect(judge(series, alert, 40, [])).toBe("");
  expect(judge(series, alert, 52, labels)).toBe("");
  expect(judge(series, alert, 80, [])).toBe("");
});

test.skipIf(missing)(`HoldfastNoGrants fires while spends are asked for and none is granted${skipped}`, () => {
  const asked = 'rpc_server_call_duration_count{rpc_method="holdfast.v1.SpendControlService/BatchAuthorizeSpend"}';
  const granted = 'holdfast_authorize_decisions_total{holdfast_workspace="default",holdfast_disposition="GRANTED"}';
  const labels = of("HoldfastNoGrants", "critical", {});
  expect(judge({ [asked]: "0+2x60", [granted]: "5x60" }, "HoldfastNoGrants", 40, labels)).toBe("");
  expect(judge({ [asked]: "0+2x60", [granted]: "0+2x60" }, "HoldfastNoGrants", 40, [])).toBe("");
  expect(judge({ [asked]: "7x60", [granted]: "5x60" }, "HoldfastNoGrants", 40, [])).toBe("");
});

test.skipIf(missing)(`HoldfastDown fires two minutes after a server is gone, and names it${skipped}`, () => {
  const labels = of("HoldfastDown", "critical", { instance: "holdfast-2:9464", job: "holdfast" });
  const series = {
    'up{job="holdfast",instance="holdfast-2:9464"}': "1x10 0x10",
    'up{job="holdfast",instance="holdfast-1:9464"}': "1x20",
  };
  expect(judge(series, "HoldfastDown", 9, [])).toBe("");
  expect(judge(series, "HoldfastDown", 14, labels)).toBe("");
});

test.skipIf(missing)(`HoldfastSnapshotTooOld fires for what is open for minutes, and for an old slot${skipped}`, () => {
  const labels = of("HoldfastSnapshotTooOld", "warning", {});
  const age = "holdfast_database_oldest_transaction_age";
  const lag = "holdfast_database_oldest_snapshot_lag";
  expect(judge({ [age]: "0+60x20", [lag]: "0x20" }, "HoldfastSnapshotTooOld", 4, [])).toBe("");
  expect(judge({ [age]: "0+60x20", [lag]: "0x20" }, "HoldfastSnapshotTooOld", 10, labels)).toBe("");
  expect(judge({ [age]: "0+5x20", [lag]: "0+200000x20" }, "HoldfastSnapshotTooOld", 10, labels)).toBe("");
  expect(judge({ [age]: "0+5x20", [lag]: "0+9000x20" }, "HoldfastSnapshotTooOld", 20, [])).toBe("");
});
