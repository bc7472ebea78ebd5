import { once } from "node:events";
import { type AddressInfo, createServer, type Server } from "node:net";
import { AuthorizationState, VoidEvidence } from "@holdfast/api/holdfast/v1/spend_pb";
import {
  HoldfastClosedError,
  HoldfastRefusedError,
  SpendAlreadyFailedError,
  SpendDeniedError,
  SpendIdentityMissingError,
  SpendInDoubtError,
  SpendMismatchError,
  SpendUnsupportedError,
  stableKey,
  VendorUnreachableError,
} from "@holdfast/sdk";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { charge, type CarrierWorld, newSpend, objectOf, payment, startCarrierWorld } from "./carrier-world.ts";

let world: CarrierWorld;
beforeEach(async () => {
  world = await startCarrierWorld();
});
afterEach(() => world.close());

const keyOf = (spend: ReturnType<typeof newSpend>) =>
  stableKey(spend.customerId, spend.billingPeriod, spend.purpose, (spend.retryAfterGeneration ?? 0) + 1);

describe("a write that moves money", () => {
  test("is created, bound and confirmed as one PaymentIntent, under the keys of its spend", async () => {
    const spend = newSpend();
    const carried = await world.carry("POST", "/v1/payment_intents", payment, { spend });
    expect(objectOf(carried)).toMatchObject({ status: "succeeded", amount_received: 4900 });
    expect(carried.status).toBe(200);
    expect(carried.headers["request-id"]).toMatch(/^req_/);
    const key = keyOf(spend);
    expect(world.writes()).toEqual([
      `POST /v1/payment_intents ${key}`,
      `POST /v1/payment_intents/:id/confirm ${key}-confirm-1`,
    ]);
    expect(await world.authorization(spend)).toMatchObject({
      state: AuthorizationState.COMMITTED,
      committedAmount: { currency: "usd", amount: "49" },
    });
    expect(await world.used()).toEqual({ committed: 4900, held: 0 });
  });

  test("charges once however often and wherever it is repeated", async () => {
    const spend = newSpend();
    const other = world.open();
    const all = await Promise.all(
      [world.carrier, other, world.carrier, other].map((by) =>
        world.carry("POST", "/v1/payment_intents", payment, { spend, by }),
      ),
    );
    expect(new Set(all.map((one) => objectOf(one)["id"])).size).toBe(1);
    expect(world.charges()).toBe(1);
    expect(await world.used()).toEqual({ committed: 4900, held: 0 });
  });

  test("is sent in one call where the vendor has no second step, and its text comes through untouched", async () => {
    const spend = newSpend();
    const carried = await world.carry("POST", "/v1/charges", charge, { spend });
    expect(objectOf(carried)).toMatchObject({ status: "succeeded", amount: 4900 });
    expect(world.writes()).toEqual([`POST /v1/charges ${keyOf(spend)}`]);
    const read = await world.carry("GET", `/v1/charges/${String(objectOf(carried)["id"])}`);
    expect(read.body).toBe(carried.body);
  });

  test("gives money back as a refund of its charge", async () => {
    const charged = objectOf(await world.carry("POST", "/v1/charges", charge, { spend: newSpend() }));
    const spend = newSpend({ purpose: "refund" });
    const refund = await world.carry(
      "POST",
      "/v1/refunds",
      { charge: String(charged["id"]), amount: "900" },
      { spend },
    );
    expect(objectOf(refund)).toMatchObject({ object: "refund", amount: 900 });
    expect(await world.authorization(spend)).toMatchObject({ state: AuthorizationState.COMMITTED });
  });

  test("may change an object of its spend, whose hold is raised before", async () => {
    const spend = newSpend();
    const { confirm: _, ...unconfirmed } = payment;
    const { id } = objectOf(await world.carry("POST", "/v1/payment_intents", unconfirmed, { spend }));
    expect(await world.used()).toEqual({ committed: 0, held: 4900 });
    objectOf(await world.carry("POST", `/v1/payment_intents/${String(id)}`, { amount: "6000" }));
    expect(await world.used()).toEqual({ committed: 0, held: 6000 });
    const tooDear = await world.carry("POST", `/v1/payment_intents/${String(id)}`, { amount: "200000" });
    expect(tooDear.refusal).toBeInstanceOf(SpendDeniedError);
    const confirmed = await world.carry("POST", `/v1/payment_intents/${String(id)}/confirm`);
    expect(objectOf(confirmed)).toMatchObject({ status: "succeeded", amount_received: 6000 });
    expect(await world.used()).toEqual({ committed: 6000, held: 0 });
  });

  test("is denied with the figures of the cap, and nothing is sent", async () => {
    const spend = newSpend();
    const { refusal } = await world.carry("POST", "/v1/payment_intents", { ...payment, amount: "100001" }, { spend });
    expect(refusal).toBeInstanceOf(SpendDeniedError);
    expect((refusal as SpendDeniedError).denial).toMatchObject({ rule: "CAP_HEADROOM", cap: "caps/all" });
    expect(world.simulator.requests()).toEqual([]);
  });

  test("is refused without a spend, with another amount, with a wrong token and with a malformed spend", async () => {
    const spend = newSpend();
    await world.carry("POST", "/v1/charges", charge, { spend });
    const before = world.simulator.requests().length;
    const refused = async (fields: object, more: Parameters<CarrierWorld["carry"]>[3]) =>
      (await world.carry("POST", "/v1/charges", { ...charge, ...fields }, more)).refusal;
    expect(await refused({}, {})).toBeInstanceOf(SpendIdentityMissingError);
    expect(await refused({ amount: "5000" }, { spend })).toBeInstanceOf(SpendMismatchError);
    const wrong = world.token.replace(/.$/, (last) => (last === "a" ? "b" : "a"));
    expect(await refused({}, { spend: newSpend(), token: wrong })).toMatchObject({ reason: "INVALID_TOKEN" });
    expect(await refused({}, { spend: newSpend(), token: "two words" })).toBeInstanceOf(HoldfastRefusedError);
    expect(await refused({}, { spend: newSpend({ purpose: "" }) })).toMatchObject({ reason: "INVALID_FIELD" });
    expect(await refused({}, { spend: newSpend(), apiVersion: "a\r\nb" })).toBeInstanceOf(SpendUnsupportedError);
    expect(world.simulator.requests()).toHaveLength(before);
    expect(world.errors).toEqual([]);
  });

  test("is answered with the vendor's decline, and its headroom is given back", async () => {
    const spend = newSpend();
    const declined = { ...payment, payment_method: "pm_card_chargeDeclined" };
    const carried = await world.carry("POST", "/v1/payment_intents", declined, { spend });
    expect(carried.status).toBe(402);
    expect(JSON.parse(carried.body)).toMatchObject({ error: { type: "card_error", code: "card_declined" } });
    expect(await world.authorization(spend)).toMatchObject({
      state: AuthorizationState.VOIDED,
      voidEvidence: VoidEvidence.TOMBSTONE,
    });
    expect(await world.used()).toEqual({ committed: 0, held: 0 });
    const again = await world.carry("POST", "/v1/payment_intents", payment, { spend });
    expect(again.refusal).toBeInstanceOf(SpendAlreadyFailedError);
    const next = await world.carry("POST", "/v1/payment_intents", payment, {
      spend: { ...spend, retryAfterGeneration: 1 },
    });
    expect(objectOf(next)).toMatchObject({ status: "succeeded" });
  });

  test("keeps a declined PaymentIntent for another card where the policy says so", async () => {
    const spend = newSpend();
    const more = { spend, onDecline: "keep" } as const;
    const declined = { ...payment, payment_method: "pm_card_chargeDeclined" };
    expect((await world.carry("POST", "/v1/payment_intents", declined, more)).status).toBe(402);
    expect(await world.used()).toEqual({ committed: 0, held: 4900 });
    const other = await world.carry("POST", "/v1/payment_intents", payment, more);
    expect(other.refusal).toBeInstanceOf(SpendMismatchError);
    const paid = await world.carry("POST", "/v1/payment_intents", payment, { ...more, sameBodyRequired: false });
    expect(objectOf(paid)).toMatchObject({ status: "succeeded" });
    // The second attempt first hears again how the first one ended.
    expect(world.writes().map((line) => line.replace(/ \w+(?=-|$)/, ""))).toEqual([
      "POST /v1/payment_intents",
      "POST /v1/payment_intents/:id/confirm-confirm-1",
      "POST /v1/payment_intents/:id/confirm-confirm-1",
      "POST /v1/payment_intents/:id/confirm-confirm-2",
    ]);
    expect(world.charges()).toBe(1);
  });

  test("is in doubt where no answer came, holds its headroom, and is continued by a repeat", async () => {
    const spend = newSpend();
    world.simulator.fault({ mode: "drop_after_execute", match: { path: "/v1/charges" }, times: 1 });
    world.simulator.fault({ mode: "drop_before_execute", match: { path: "/v1/charges" }, times: 100 });
    const hasty = world.open({ limits: { vendorDeadlineMs: 1_000 } });
    const { refusal } = await world.carry("POST", "/v1/charges", charge, { spend, by: hasty });
    expect(refusal).toBeInstanceOf(SpendInDoubtError);
    expect(await world.used()).toEqual({ committed: 0, held: 4900 });
    world.simulator.clearFaults();
    expect(objectOf(await world.carry("POST", "/v1/charges", charge, { spend }))).toMatchObject({
      status: "succeeded",
    });
    expect(world.charges()).toBe(1);
    expect(await world.used()).toEqual({ committed: 4900, held: 0 });
  });
});

describe("a request that moves no money", () => {
  test("is passed on with the client's key and without a grant", async () => {
    const carried = await world.carry(
      "POST",
      "/v1/setup_intents",
      { usage: "off_session" },
      { upstreamKey: "own-key" },
    );
    expect(objectOf(carried)).toMatchObject({ object: "setup_intent" });
    expect(world.writes()).toEqual(["POST /v1/setup_intents own-key"]);
    expect(await world.used()).toEqual({ committed: 0, held: 0 });
  });

  test("carries the version and the account that it asks for, and nothing else", async () => {
    await world.carry(
      "GET",
      "/v1/balance?expand%5B%5D=available",
      {},
      { apiVersion: "2025-03-31.basil", account: "acct_2" },
    );
    const [received] = world.simulator.requests();
    expect(received).toMatchObject({
      method: "GET",
      path: "/v1/balance",
      account: "acct_2",
      key: null,
      stripeVersion: "2025-03-31.basil",
      body: "",
    });
  });

  test("gets the vendor's own error, as it was spelled", async () => {
    const carried = await world.carry("GET", "/v1/payment_intents/pi_0000000000000001");
    expect(carried).toMatchObject({ status: 404, refusal: undefined });
    expect(JSON.parse(carried.body)).toMatchObject({ error: { code: "resource_missing" } });
  });

  test("is refused where the guard knows no such write, or lets it past by name only", async () => {
    const unknown = await world.carry("POST", "/v1/unheard_of", { a: "1" });
    expect(unknown.refusal).toBeInstanceOf(SpendUnsupportedError);
    const link = { account: "acct_2", type: "account_onboarding" };
    expect((await world.carry("POST", "/v1/account_links", link)).refusal).toBeInstanceOf(SpendUnsupportedError);
    expect(world.simulator.requests()).toEqual([]);
    const allow = new Set(["POST /v1/account_links"]);
    expect((await world.carry("POST", "/v1/account_links", link, { allow })).refusal).toBeUndefined();
    expect(world.writes()).toHaveLength(1);
  });

  test("is unusable where the vendor answers with what is no JSON", async () => {
    world.simulator.fault({ mode: "html_502", match: { path: "/v1/balance" } });
    expect((await world.carry("GET", "/v1/balance")).refusal).toBeInstanceOf(VendorUnreachableError);
  });
});

describe("a vendor that misbehaves", () => {
  /** A vendor that answers every write with these bytes and shows no object. */
  async function answering(bytes: string): Promise<string> {
    const vendor = createServer((socket) => {
      socket.on("error", () => undefined);
      socket.on("data", () => socket.end(bytes));
    });
    vendor.listen(0, "127.0.0.1");
    await once(vendor, "listening");
    vendors.push(vendor);
    return `http://127.0.0.1:${(vendor.address() as AddressInfo).port}`;
  }
  const vendors: Server[] = [];
  afterEach(() => {
    for (const vendor of vendors.splice(0)) vendor.close();
  });

  test.each([
    ["two lengths", "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}"],
    ["a redirect", "HTTP/1.1 307 Moved\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 2\r\n\r\n{}"],
    ["an encoding", "HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\n{}"],
    ["another protocol", "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"],
  ])("leaves a charge in doubt when it answers with %s", async (_, bytes) => {
    const by = world.open({ origin: await answering(bytes), limits: { vendorDeadlineMs: 600 } });
    const { refusal } = await world.carry("POST", "/v1/charges", charge, { spend: newSpend(), by });
    expect(refusal).toBeInstanceOf(SpendInDoubtError);
    expect(await world.used()).toEqual({ committed: 0, held: 4900 });
  });

  test.each(["http://127.0.0.1:1", "https://127.0.0.1:1"])(
    "is sent nothing and nothing is held where it refuses (%s)",
    async (origin) => {
      const by = world.open({ origin, limits: { vendorDeadlineMs: 600 } });
      const spend = newSpend();
      const { refusal } = await world.carry("POST", "/v1/payment_intents", payment, { spend, by });
      expect(refusal).toBeInstanceOf(VendorUnreachableError);
      expect(await world.authorization(spend)).toMatchObject({ voidEvidence: VoidEvidence.NEVER_SENT });
      expect(await world.used()).toEqual({ committed: 0, held: 0 });
      expect(objectOf(await world.carry("POST", "/v1/payment_intents", payment, { spend }))).toMatchObject({
        status: "succeeded",
      });
    },
  );
});

describe("an unconfirmed PaymentIntent", () => {
  const { confirm: _, ...unconfirmed } = payment;

  test("holds from its creation on what a browser may confirm, and no more can be confirmed", async () => {
    const spend = newSpend();
    const { id } = objectOf(await world.carry("POST", "/v1/payment_intents", unconfirmed, { spend }));
    expect(await world.used()).toEqual({ committed: 0, held: 4900 });
    world.simulator.confirmFromBrowser(String(id), { paymentMethod: "pm_card_visa" });
    expect(world.simulator.movements()).toMatchObject([{ kind: "charge", amount: 4900 }]);
    expect(await world.used()).toEqual({ committed: 0, held: 4900 });
    expect(objectOf(await world.carry("POST", "/v1/payment_intents", unconfirmed, { spend }))).toMatchObject({ id });
    expect(await world.used()).toEqual({ committed: 4900, held: 0 });
  });

  test("gives its headroom back when it is cancelled", async () => {
    const spend = newSpend();
    const { id } = objectOf(await world.carry("POST", "/v1/payment_intents", unconfirmed, { spend }));
    objectOf(await world.carry("POST", `/v1/payment_intents/${String(id)}/cancel`));
    expect(await world.used()).toEqual({ committed: 0, held: 0 });
    expect(() => world.simulator.confirmFromBrowser(String(id), { paymentMethod: "pm_card_visa" })).toThrow();
  });

  test("can be confirmed by a server only, where that is asked for, whatever the client says", async () => {
    const by = world.open({ manualConfirmation: true });
    for (const fields of [{}, { confirmation_method: "automatic" }]) {
      const spend = newSpend();
      const created = await world.carry("POST", "/v1/payment_intents", { ...unconfirmed, ...fields }, { spend, by });
      const { id, confirmation_method: method } = objectOf(created);
      expect(method).toBe("manual");
      expect(() => world.simulator.confirmFromBrowser(String(id), { paymentMethod: "pm_card_visa" })).toThrow(/manual/);
    }
    expect(world.charges()).toBe(0);
  });
});

describe("a carrier", () => {
  test("keeps few clients, drops those that nobody uses, and serves each key with its own", async () => {
    const by = world.open({ limits: { clientsMax: 1 } });
    const otherToken = await world.server.vaultKey("other", { allowedEndpoints: ["POST /v1/charges"] });
    for (const token of [world.token, otherToken, world.token]) {
      const spend = newSpend();
      objectOf(await world.carry("POST", "/v1/charges", charge, { spend, token, by }));
    }
    const { rows } = await world.server.database.pool.query<{ id: string; n: string }>(
      "select a.vault_key_id as id, count(*)::text as n from holdfast.authorizations a group by 1 order by 1",
    );
    expect(rows).toEqual([
      { id: "other", n: "1" },
      { id: "proxied", n: "2" },
    ]);
  });

  test("takes no more keys at once than it may", async () => {
    const by = world.open({ limits: { clientsMax: 1 } });
    const otherToken = await world.server.vaultKey("other", { allowedEndpoints: ["POST /v1/charges"] });
    const asked = Promise.withResolvers<void>();
    const go = Promise.withResolvers<void>();
    const first = world.carry("POST", "/v1/charges", charge, {
      spend: newSpend(),
      by,
      beforeMoney: () => {
        asked.resolve();
        return go.promise;
      },
    });
    await asked.promise;
    const second = await world.carry("GET", "/v1/balance", {}, { token: otherToken, by });
    expect(second.refusal).toMatchObject({ code: "holdfast_overloaded" });
    go.resolve();
    objectOf(await first);
  });

  test("lets what runs end when it is closed, and takes nothing new", async () => {
    const by = world.open();
    const held = world.simulator.fault({ mode: "hold", match: { path: "/v1/charges" } });
    const spend = newSpend();
    const running = world.carry("POST", "/v1/charges", charge, { spend, by });
    await expect.poll(() => world.simulator.requests().length).toBe(1);
    const closed = by.close(30_000);
    const late = await world.carry("POST", "/v1/charges", charge, { spend: newSpend(), by });
    expect(late.refusal).toBeInstanceOf(HoldfastClosedError);
    held.release();
    expect(objectOf(await running)).toMatchObject({ status: "succeeded" });
    await closed;
    expect(await world.used()).toEqual({ committed: 4900, held: 0 });
  });
});
