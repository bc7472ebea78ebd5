import { ObjectAccess } from "@holdfast/api/holdfast/v1/vault_key_pb";
import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from "vitest";
import { type Answered, type ProxyWorld, secret, startProxyWorld } from "./world.ts";
import { startVendorFront, type VendorFront } from "./vendor-front.ts";

let world: ProxyWorld;
let front: VendorFront;

beforeAll(async () => {
  world = await startProxyWorld({
    servers: 2,
    origin: async ({ url }) => {
      front = await startVendorFront(url);
      return front.url;
    },
  });
});
afterEach(() => {
  world.simulator.clearFaults();
  vi.restoreAllMocks();
});
afterAll(async () => {
  await world.close();
  front.close();
});

const hourMs = 3_600_000;

interface Draft {
  readonly id: string;
  /** Adds a line under the client's key "add-1". */
  add(amount?: string, server?: number): Promise<Answered>;
  total(): Promise<number>;
  /** Keys under which Stripe was asked to add a line. */
  keys(): readonly (string | null)[];
  states(): Promise<readonly string[]>;
}

/** An invoice of a vault key of its own, bound to a spend. */
async function draftOf(vaultKey: string): Promise<Draft> {
  const token = await world.key(vaultKey, {
    allowedEndpoints: [
      "POST /v1/invoices",
      "GET /v1/invoices/:id",
      "POST /v1/invoices/:id/add_lines",
      "POST /v1/customers",
    ],
  });
  const customer = await world.ask("POST", "/v1/customers", { token, fields: { name: "x" } });
  const invoice = await world.ask("POST", "/v1/invoices", {
    token,
    fields: { customer: customer.body.id as string, auto_advance: "false" },
    headers: { "holdfast-spend": `customer=${vaultKey}; period=p; purpose=x; up_to=90.00 usd` },
  });
  expect(invoice.status).toBe(200);
  const id = invoice.body.id as string;
  const path = `/v1/invoices/${id}/add_lines`;
  return {
    id,
    add: (amount = "1000", server = 0) =>
      world.ask("POST", path, {
        token,
        fields: { "lines[0][amount]": amount },
        headers: { "idempotency-key": "add-1" },
        server,
      }),
    total: async () => (await world.ask("GET", `/v1/invoices/${id}`, { token })).body.total as number,
    keys: () =>
      world.simulator
        .requests()
        .filter((request) => request.path === path)
        .map(({ key }) => key),
    async states() {
      const { rows } = await world.server.database.pool.query<{ state: string }>(
        "select state from holdfast.proxied_requests where vault_key_id = $1 and endpoint like '%add_lines'",
        [vaultKey],
      );
      return rows.map(({ state }) => state);
    },
  };
}

/** Both the vendor's clock and the database's. */
async function later(ms: number): Promise<void> {
  world.simulator.advance(ms);
  await world.server.clock.advance(ms);
}

function loseAnswer(draft: Draft): void {
  world.simulator.fault({
    mode: "drop_after_execute",
    match: { path: `/v1/invoices/${draft.id}/add_lines`, method: "POST" },
  });
}

describe("an edit of an object of a spend, whose answer was lost", () => {
  test("is passed on again under the same key while the vendor remembers it, by any replica", async () => {
    const draft = await draftOf("remembered");
    loseAnswer(draft);
    expect(await draft.add()).toMatchObject({ status: 503, code: "vendor_unreachable" });
    expect(await draft.states()).toEqual(["OPEN"]);
    await later(22.9 * hourMs);
    expect(await draft.add("1000", 1)).toMatchObject({ status: 200, body: { total: 1000 } });
    const [first, second, ...more] = draft.keys();
    expect([second, more]).toEqual([first, []]);
    expect(await draft.states()).toEqual(["ANSWERED"]);
  });

  test("is in doubt when the vendor may have forgotten the key, and is not sent", async () => {
    const draft = await draftOf("forgotten");
    loseAnswer(draft);
    await draft.add();
    await later(25 * hourMs);
    for (const server of [0, 1]) {
      const refused = await draft.add("1000", server);
      expect(refused).toMatchObject({ status: 409, code: "spend_in_doubt" });
      expect(refused.headers.get("stripe-should-retry")).toBe("false");
      expect(refused.body.error.message).toContain("another key");
    }
    expect(draft.keys()).toHaveLength(1);
    expect(await draft.states()).toEqual(["OPEN"]);
    expect(await draft.total()).toBe(1000);
    expect((await world.events()).at(-3)).toMatchObject({ disposition: "IN_DOUBT", reason: "spend_in_doubt" });
  });

  test("does not give its key to another body, however long ago it was", async () => {
    const draft = await draftOf("kept");
    loseAnswer(draft);
    await draft.add();
    for (const ms of [61_000, 25 * hourMs]) {
      await later(ms);
      expect(await draft.add("2000")).toMatchObject({ status: 400, body: { error: { type: "idempotency_error" } } });
    }
    expect(draft.keys()).toHaveLength(1);
  });

  test("is not sent by a process that was stopped until the key may be forgotten", async () => {
    const draft = await draftOf("stopped");
    const client = await world.server.database.pool.connect();
    try {
      await client.query("begin");
      // What the object belongs to is looked up after the claim, and waits for this.
      await client.query("lock table holdfast.authorizations in access exclusive mode");
      const stopped = draft.add();
      await vi.waitUntil(async () => (await draft.states()).length === 1, { timeout: 30_000 });
      await later(25 * hourMs);
      const { now } = Date;
      vi.spyOn(Date, "now").mockImplementation(() => now() + 25 * hourMs);
      await client.query("commit");
      expect(await stopped).toMatchObject({ status: 409, code: "spend_in_doubt" });
    } finally {
      await client.query("rollback");
      client.release();
    }
    expect(draft.keys()).toEqual([]);
    expect(await draft.states()).toEqual(["OPEN"]);
  });
});

describe("an edit to which the vendor's answer says nothing", () => {
  test("keeps its claim, so that it is in doubt a day later", async () => {
    const draft = await draftOf("broken");
    world.simulator.fault({
      mode: "error_500_after",
      match: { path: `/v1/invoices/${draft.id}/add_lines`, method: "POST" },
    });
    expect((await draft.add()).status).toBe(500);
    expect(await draft.states()).toEqual(["OPEN"]);
    await later(25 * hourMs);
    expect(await draft.add()).toMatchObject({ status: 409, code: "spend_in_doubt" });
    expect(draft.keys()).toHaveLength(1);
  });

  test("but may be corrected where the vendor called it malformed", async () => {
    const draft = await draftOf("malformed");
    world.simulator.fault({
      mode: "bad_request_400",
      match: { path: `/v1/invoices/${draft.id}/add_lines`, method: "POST" },
    });
    expect((await draft.add()).status).toBe(400);
    expect(await draft.states()).toEqual([]);
    expect((await draft.add("2000")).code).not.toBe("idempotency_error");
  });
});

describe("two of the same edit at once", () => {
  const malformed = { error: { type: "invalid_request_error", code: "parameter_invalid", message: "x" } };
  const endpointOf = ({ id }: Draft): string => `POST /v1/invoices/${id}/add_lines`;

  test("keep the claim for the one whose answer is lost, when the vendor refuses the other", async () => {
    const draft = await draftOf("twins");
    const firstTaken = front.take(endpointOf(draft));
    const first = draft.add();
    const firstHeld = await firstTaken;
    const secondTaken = front.take(endpointOf(draft));
    const second = draft.add("1000", 1);
    const secondHeld = await secondTaken;
    expect(await secondHeld.carryOut()).toBe(200);
    secondHeld.cut();
    expect(await second).toMatchObject({ status: 503, code: "vendor_unreachable" });
    firstHeld.answer(400, malformed);
    expect((await first).status).toBe(400);
    expect(await draft.states()).toEqual(["OPEN"]);
    expect(await draft.add("2000")).toMatchObject({ status: 400, body: { error: { type: "idempotency_error" } } });
    await later(25 * hourMs);
    expect(await draft.add()).toMatchObject({ status: 409, code: "spend_in_doubt" });
    expect(await draft.total()).toBe(1000);
  });

  test("that are both refused leave the key to what they asked for", async () => {
    const draft = await draftOf("refused");
    const firstTaken = front.take(endpointOf(draft));
    const first = draft.add();
    const firstHeld = await firstTaken;
    const secondTaken = front.take(endpointOf(draft));
    const second = draft.add("1000", 1);
    for (const held of [firstHeld, await secondTaken]) held.answer(400, malformed);
    expect([(await first).status, (await second).status]).toEqual([400, 400]);
    expect(await draft.add("2000")).toMatchObject({ status: 400, body: { error: { type: "idempotency_error" } } });
    expect(await draft.add()).toMatchObject({ status: 200, body: { total: 1000 } });
  });
});

test("an edit of an object of no spend is a spend of its own, which its grant keeps from happening twice", async () => {
  const token = await world.key("unbound", {
    allowedEndpoints: ["POST /v1/invoices/:id/add_lines"],
    proxy: { objectAccess: ObjectAccess.ANY },
  });
  const made = async (path: string, fields: Readonly<Record<string, string>>): Promise<string> => {
    const response = await fetch(`${world.simulator.url}${path}`, {
      method: "POST",
      headers: { authorization: `Bearer ${secret}` },
      body: new URLSearchParams(fields),
    });
    return ((await response.json()) as { id: string }).id;
  };
  const customer = await made("/v1/customers", { name: "x" });
  const path = `/v1/invoices/${await made("/v1/invoices", { customer, auto_advance: "false" })}/add_lines`;
  const add = () =>
    world.ask("POST", path, {
      token,
      fields: { "lines[0][amount]": "1000" },
      headers: { "idempotency-key": "add-1", "holdfast-spend": "up_to=10.00 usd" },
    });
  const sent = () => world.simulator.requests().filter((request) => request.path === path).length;
  expect(await add()).toMatchObject({ status: 200, body: { total: 1000 } });
  // As if the process had been killed before it wrote the answer down.
  await world.server.database.pool.query(
    `update holdfast.proxied_requests set state = 'OPEN', answer_generation = null, status = null, answer_time = null,
       answer_omitted = false, key_id = null, nonce = null, ciphertext = null
     where vault_key_id = 'unbound'`,
  );
  await later(25 * hourMs);
  expect(await add()).toMatchObject({ status: 200, body: { total: 1000 } });
  expect(sent()).toBe(1);
});
