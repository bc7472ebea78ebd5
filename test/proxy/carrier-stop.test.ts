import { AuthorizationState, VoidEvidence } from "@holdfast/api/holdfast/v1/spend_pb";
import { HoldfastRefusedError, SpendInDoubtError, VendorUnreachableError } from "@holdfast/sdk";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { charge, type CarrierWorld, newSpend, objectOf, payment, startCarrierWorld } from "./carrier-world.ts";

let world: CarrierWorld;
beforeEach(async () => {
  world = await startCarrierWorld();
});
afterEach(() => world.close());

/** What the proxy asks: whether the key still lives. Revokes it first, before the nth request that moves money. */
function revokedBefore(nth: number): () => Promise<void> {
  let asked = 0;
  return async () => {
    asked += 1;
    if (asked === nth) await world.server.admin.revokeVaultKey({ name: "vaultKeys/proxied", reason: "stolen" });
    const { vaultKey } = await world.server.admin.getVaultKey({ name: "vaultKeys/proxied" });
    if (vaultKey?.revokeTime !== undefined) throw new Error("the key is dead");
  };
}

async function stateOf(): Promise<{ state: string; evidence: string }[]> {
  const { rows } = await world.server.database.pool.query<{ state: string; evidence: string }>(
    "select a.state, coalesce(a.void_evidence, '') as evidence from holdfast.authorizations a",
  );
  return rows;
}

describe("a key that is revoked between the grant and the request", () => {
  test("sends nothing of a charge in one call, and its hold is given back", async () => {
    const spend = newSpend();
    const carried = await world.carry("POST", "/v1/charges", charge, { spend, beforeMoney: revokedBefore(1) });
    expect(carried.refusal).toBeInstanceOf(VendorUnreachableError);
    expect(carried.refusal?.cause).toMatchObject({ message: "the key is dead" });
    expect(world.simulator.requests()).toEqual([]);
    expect(await stateOf()).toEqual([{ state: "VOIDED", evidence: "NEVER_SENT" }]);
    expect(await world.used()).toEqual({ committed: 0, held: 0 });
  });

  test("sends nothing of a PaymentIntent, and its hold is given back", async () => {
    const spend = newSpend();
    const carried = await world.carry("POST", "/v1/payment_intents", payment, { spend, beforeMoney: revokedBefore(1) });
    expect(carried.refusal).toBeInstanceOf(VendorUnreachableError);
    expect(world.simulator.requests()).toEqual([]);
    expect(await stateOf()).toEqual([{ state: "VOIDED", evidence: "NEVER_SENT" }]);
    expect(await world.used()).toEqual({ committed: 0, held: 0 });
  });

  test("confirms nothing that was created before, which is cancelled", async () => {
    const spend = newSpend();
    const carried = await world.carry("POST", "/v1/payment_intents", payment, { spend, beforeMoney: revokedBefore(2) });
    expect(carried.refusal).toBeInstanceOf(VendorUnreachableError);
    expect(world.writes().map((line) => line.split(" ").slice(0, 2).join(" "))).toEqual([
      "POST /v1/payment_intents",
      "POST /v1/payment_intents/:id/cancel",
    ]);
    expect(world.charges()).toBe(0);
    expect(await stateOf()).toEqual([{ state: "VOIDED", evidence: "TOMBSTONE" }]);
    expect(await world.used()).toEqual({ committed: 0, held: 0 });
  });
});

describe("a request that is stopped", () => {
  const stop = () => Promise.reject(new HoldfastRefusedError("STATE_NOT_ALLOWED", "It is stopped.", {}));

  test("tells the reason itself where that is one of the SDK's errors", async () => {
    const carried = await world.carry("POST", "/v1/charges", charge, { spend: newSpend(), beforeMoney: stop });
    expect(carried.refusal).toMatchObject({ reason: "STATE_NOT_ALLOWED" });
  });

  test("may be asked for again, and charges once then", async () => {
    const spend = newSpend();
    await world.carry("POST", "/v1/charges", charge, { spend, beforeMoney: stop });
    expect(objectOf(await world.carry("POST", "/v1/charges", charge, { spend }))).toMatchObject({
      status: "succeeded",
    });
    expect(world.charges()).toBe(1);
    expect(await world.used()).toEqual({ committed: 4900, held: 0 });
  });

  test("leaves an object of the client as it was, with its hold", async () => {
    const spend = newSpend();
    const { confirm: _, ...unconfirmed } = payment;
    const { id } = objectOf(await world.carry("POST", "/v1/payment_intents", unconfirmed, { spend }));
    const path = `/v1/payment_intents/${String(id)}`;
    const confirmed = await world.carry("POST", `${path}/confirm`, {}, { beforeMoney: stop });
    expect(confirmed.refusal).toMatchObject({ reason: "STATE_NOT_ALLOWED" });
    const edited = await world.carry("POST", path, { amount: "5000" }, { beforeMoney: stop });
    expect(edited.refusal).toMatchObject({ reason: "STATE_NOT_ALLOWED" });
    expect(objectOf(await world.carry("GET", path))).toMatchObject({ status: "requires_confirmation", amount: 4900 });
    expect(world.writes()).toHaveLength(1);
    expect((await world.used()).held).toBeGreaterThanOrEqual(4900);
    expect(objectOf(await world.carry("POST", `${path}/confirm`))).toMatchObject({ status: "succeeded" });
  });

  test("leaves an authorized card uncaptured, with its hold", async () => {
    const spend = newSpend();
    const authorized = { ...payment, capture_method: "manual" };
    const { id, status } = objectOf(await world.carry("POST", "/v1/payment_intents", authorized, { spend }));
    expect(status).toBe("requires_capture");
    const path = `/v1/payment_intents/${String(id)}/capture`;
    const stopped = await world.carry("POST", path, {}, { beforeMoney: stop });
    expect(stopped.refusal).toMatchObject({ reason: "STATE_NOT_ALLOWED" });
    expect(await world.used()).toEqual({ committed: 0, held: 4900 });
    expect(objectOf(await world.carry("POST", path))).toMatchObject({ status: "succeeded" });
    expect(await world.used()).toEqual({ committed: 4900, held: 0 });
  });

  test("leaves a draft invoice a draft, with its hold", async () => {
    const spend = newSpend({ upTo: { currency: "usd", amount: "49.00" } });
    const customer = String(objectOf(await world.carry("POST", "/v1/customers", { name: "x" }))["id"]);
    const fields = { customer, auto_advance: "false", currency: "usd" };
    const { id } = objectOf(await world.carry("POST", "/v1/invoices", fields, { spend }));
    const stopped = await world.carry("POST", `/v1/invoices/${String(id)}/pay`, {}, { beforeMoney: stop });
    expect(stopped.refusal).toMatchObject({ reason: "STATE_NOT_ALLOWED" });
    expect(objectOf(await world.carry("GET", `/v1/invoices/${String(id)}`))).toMatchObject({ status: "draft" });
    expect(await world.used()).toEqual({ committed: 0, held: 4900 });
    expect(await world.authorization(spend)).toMatchObject({ state: AuthorizationState.HELD });
  });

  /** Lets the first request through. */
  const stopAfterOne = () => {
    let asked = 0;
    return () => {
      asked += 1;
      return asked === 1 ? Promise.resolve() : stop();
    };
  };

  test("stays in doubt where the client's own confirmation or capture may have arrived", async () => {
    for (const [fields, step] of [
      [{ confirm: "false" }, "confirm"],
      [{ capture_method: "manual" }, "capture"],
    ] as const) {
      const spend = newSpend();
      const { id } = objectOf(await world.carry("POST", "/v1/payment_intents", { ...payment, ...fields }, { spend }));
      const path = `/v1/payment_intents/${String(id)}/${step}`;
      world.simulator.fault({ mode: "drop_before_execute", match: { path } });
      const carried = await world.carry("POST", path, {}, { beforeMoney: stopAfterOne() });
      expect(carried.refusal).toBeInstanceOf(SpendInDoubtError);
      expect(objectOf(await world.carry("POST", path))).toMatchObject({ status: "succeeded" });
    }
    expect(world.charges()).toBe(2);
    expect(await world.used()).toEqual({ committed: 9800, held: 0 });
  });

  test("cancels its own PaymentIntent also where the confirmation may have arrived, and tells what became of it", async () => {
    const lost = { mode: "drop_before_execute", match: { path: /\/confirm$/ } } as const;
    world.simulator.fault(lost);
    let asked = 0;
    const stopAtThird = () => {
      asked += 1;
      return asked < 3 ? Promise.resolve() : stop();
    };
    const gone = await world.carry("POST", "/v1/payment_intents", payment, {
      spend: newSpend(),
      beforeMoney: stopAtThird,
    });
    expect(gone.refusal).toMatchObject({ reason: "STATE_NOT_ALLOWED" });
    expect(await world.used()).toEqual({ committed: 0, held: 0 });
    asked = 0;
    world.simulator.fault({ ...lost, mode: "drop_after_execute" });
    const paid = await world.carry("POST", "/v1/payment_intents", payment, {
      spend: newSpend(),
      beforeMoney: stopAtThird,
    });
    expect(objectOf(paid)).toMatchObject({ status: "succeeded" });
    expect(await world.used()).toEqual({ committed: 4900, held: 0 });
  });

  test("stays in doubt where an earlier send may have arrived", async () => {
    const spend = newSpend();
    world.simulator.fault({ mode: "drop_after_execute", match: { path: "/v1/charges" } });
    const carried = await world.carry("POST", "/v1/charges", charge, { spend, beforeMoney: stopAfterOne() });
    expect(carried.refusal).toBeInstanceOf(SpendInDoubtError);
    expect(world.charges()).toBe(1);
    expect(await world.authorization(spend)).toMatchObject({ state: AuthorizationState.IN_DOUBT });
    expect(await world.used()).toEqual({ committed: 0, held: 4900 });
  });

  test("is not asked about what ends an object, nor about what moves no money", async () => {
    const spend = newSpend();
    const { confirm: _, ...unconfirmed } = payment;
    const { id } = objectOf(await world.carry("POST", "/v1/payment_intents", unconfirmed, { spend }));
    const path = `/v1/payment_intents/${String(id)}`;
    objectOf(await world.carry("GET", path, {}, { beforeMoney: stop }));
    objectOf(await world.carry("POST", path, { description: "x" }, { beforeMoney: stop }));
    expect(objectOf(await world.carry("POST", `${path}/cancel`, {}, { beforeMoney: stop }))).toMatchObject({
      status: "canceled",
    });
    expect(await world.authorization(spend)).toMatchObject({
      state: AuthorizationState.VOIDED,
      voidEvidence: VoidEvidence.TOMBSTONE,
    });
  });
});
