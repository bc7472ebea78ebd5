import { OperatorRole } from "@holdfast/api/holdfast/v1/operator_pb";
import { LeaseOutcome } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { afterAll, beforeAll, expect, test } from "vitest";
import { startTestServer, type TestServer } from "../support/server.ts";
import { field, type Terminal, terminalOf } from "./terminal.ts";

let server: TestServer;
let terminal: Terminal;

beforeAll(async () => {
  server = await startTestServer();
  terminal = terminalOf(server);
});
afterAll(() => server.close());

test("an operator is made, rotated and revoked, and only its tokens are shown, once each", async () => {
  const created = await terminal.ok("operators create anna --role auditor");
  const token = created.trimEnd().split("\n").at(-1) ?? "";
  expect(token).toMatch(/^op_\w+$/);
  expect(field(created, "role")).toBe("auditor");
  expect(await terminalOf(server, token).ok("caps list")).toBe("Nothing.\n");
  const refused = await terminalOf(server, token).run("operators create otto --role operator");
  expect(refused.code).toBe(77);
  expect(refused.err).not.toContain(token);

  const rotated = await terminal.json("operators rotate anna --overlap 15m");
  expect(rotated.token).toMatch(/^op_\w+$/);
  expect(rotated.operator.previous_secret_expire_time).toBeDefined();
  await terminalOf(server, rotated.token).ok("caps list");
  expect(await terminal.ok("operators rotate anna --overlap 0s")).toMatch(/^op_\w+$/m);

  const listed = await terminal.ok("operators list");
  expect(listed).toMatch(/^anna +auditor /m);
  expect(listed).toMatch(/^test +operator /m);
  const revoked = await terminal.ok('operators revoke anna --reason "has left"');
  expect(field(revoked, "reason")).toBe("has left");
  const { operators } = await server.admin.listOperators({});
  const anna = operators.find(({ name }) => name === "operators/anna");
  expect(anna).toMatchObject({ role: OperatorRole.AUDITOR, revokeReason: "has left" });
  expect(anna?.revokeTime).toBeDefined();
  expect((await terminal.json("operators list --limit 1")).operators).toHaveLength(1);
  expect(await terminal.ok("operators list --limit 1")).toContain("more than 1");
});

test("a completed job is opened again, and the list says what is completed", async () => {
  const vaultKey = await server.vaultKey("billing");
  const spends = server.spend(vaultKey);
  for (const billingPeriod of ["2026-11", "2026-12"]) {
    const holderId = `a-pod-with-a-very-long-name-${"x".repeat(60)}`;
    const { billingLease } = await spends.acquireBillingLease({
      lease: "nightly-billing",
      billingPeriod,
      holderId,
      ttl: { seconds: 60n },
    });
    if (billingPeriod === "2026-12") continue;
    const { lease = "", fencingToken = 0n } = billingLease ?? {};
    await spends.releaseBillingLease({ lease, billingPeriod, holderId, fencingToken, outcome: LeaseOutcome.COMPLETED });
  }
  const listed = await terminal.ok("leases list");
  expect(listed).toMatch(/^nightly-billing +2026-11 +completed /m);
  expect(listed).toMatch(/^nightly-billing +2026-12 +open /m);
  expect(await terminal.ok("leases list --lease other")).toBe("Nothing.\n");
  const out = await terminal.ok('leases reopen nightly-billing 2026-11 --reason "a customer was left out"');
  expect(field(out, "state")).toBe("open");
  const { billing_leases } = await terminal.json("leases list --lease nightly-billing");
  expect(billing_leases).toHaveLength(2);
  expect(billing_leases.map(({ completed }: { completed?: boolean }) => completed === true)).toEqual([false, false]);
  expect(await terminal.ok("leases list --limit 1")).toContain("more than 1");
  expect((await terminal.run("leases reopen nightly-billing 2020-01 --reason test")).code).toBe(66);
});
