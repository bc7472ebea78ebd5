import { AuthorizationState } from "@holdfast/api/holdfast/v1/spend_pb";
import { afterAll, beforeAll, expect, test } from "vitest";
import { type OtlpReceiver, type ReceivedSpan, startOtlpReceiver } from "../support/otlp-receiver.ts";
import { secret, startVendorWorld, type VendorWorld } from "./world.ts";

let receiver: OtlpReceiver;
let world: VendorWorld;

beforeAll(async () => {
  receiver = await startOtlpReceiver();
  world = await startVendorWorld({ config: { otlpEndpoint: receiver.endpoint } });
  await world.store();
});
afterAll(async () => {
  await world.close();
  await receiver.close();
});

/** The spans from one up to its root, by name. */
async function pathOf(span: ReceivedSpan): Promise<string[]> {
  if (span.parentSpanId === "") return [span.name];
  const parent = await receiver.waitFor(
    ({ spanId, traceId }) => spanId === span.parentSpanId && traceId === span.traceId,
  );
  return [...(await pathOf(parent)), span.name];
}

test("what the reconciler settles is one trace, from its turn to what it read and wrote, and the audit names it", async () => {
  const charged = await world.doubted({ charged: 4900 });
  const lost = await world.doubted();
  await world.advance(60_000);
  await world.becomes(charged.name, AuthorizationState.COMMITTED);
  const step = await receiver.waitFor(
    ({ name, attributes }) =>
      name === "holdfast.reconcile_step" &&
      attributes["holdfast.authorization"] === charged.name &&
      attributes["holdfast.outcome"] === "committed",
  );
  const { traceId } = step;
  expect(await pathOf(step)).toEqual(["holdfast.reconcile", "holdfast.reconcile_step"]);
  const turn = await receiver.waitFor((span) => span.traceId === traceId && span.parentSpanId === "");
  expect(turn.attributes).toMatchObject({ "holdfast.workspace": "default", "holdfast.vendor": "stripe" });
  const read = await receiver.waitFor((span) => span.traceId === traceId && span.name === "holdfast.vendor_read");
  expect(read.attributes).toEqual({ "holdfast.vendor": "stripe", "holdfast.vendor_status": 200 });
  expect(await pathOf(read)).toEqual(["holdfast.reconcile", "holdfast.reconcile_step", "holdfast.vendor_read"]);
  const written = await receiver.waitFor((span) => span.traceId === traceId && span.name === "postgresql commit_batch");
  expect(await pathOf(written)).toEqual([
    "holdfast.reconcile",
    "holdfast.reconcile_step",
    "holdfast.batch commit",
    "postgresql commit_batch",
  ]);
  const eventsOf = (authorization: string, kind: string) =>
    world.server.admin.listAuditEvents({ authorization, kind, actor: "server/reconciler", newestFirst: true });
  const committed = await eventsOf(charged.name, "spend.committed");
  expect(committed.auditEvents.map((event) => event.traceId)).toEqual([traceId]);
  // Also where it settles nothing.
  const reported = await receiver.waitFor(
    ({ name, attributes }) => name === "holdfast.reconcile_step" && attributes["holdfast.authorization"] === lost.name,
  );
  expect(reported.attributes["holdfast.outcome"]).toBe("absent");
  expect(receiver.bytes().includes(secret)).toBe(false);
}, 60_000);
