import { Writable } from "node:stream";
import { pino } from "pino";
import { afterAll, beforeAll, expect, test } from "vitest";
import { type OtlpReceiver, startOtlpReceiver } from "../../support/otlp-receiver.ts";
import { charge, payment, type ProxyWorld, secret, startProxyWorld } from "../world.ts";

let receiver: OtlpReceiver;
let world: ProxyWorld;
const lines: string[] = [];

beforeAll(async () => {
  receiver = await startOtlpReceiver();
  const write = (chunk: Buffer, _encoding: string, done: () => void) => (lines.push(chunk.toString()), done());
  world = await startProxyWorld({
    config: { otlpEndpoint: receiver.endpoint, metricIntervalMs: 200 },
    log: pino({ level: "trace" }, new Writable({ write })),
  });
});

afterAll(async () => {
  await receiver.close();
});

const card = { number: "4000001234567899", cvc: "719283" };
const raw = { "source[object]": "card", "source[number]": card.number, "source[cvc]": card.cvc };
const keyed = (key: string) => ({ "idempotency-key": key });

async function everyRow(): Promise<readonly string[]> {
  const { pool } = world.server.database;
  const { rows: tables } = await pool.query<{ name: string }>(
    "select relname as name from pg_class where relnamespace = 'holdfast'::regnamespace and relkind in ('r', 'p')",
  );
  const all = await Promise.all(
    tables.map(({ name }) => pool.query<{ row: string }>(`select t::text as row from holdfast.${name} t`)),
  );
  return all.flatMap(({ rows }) => rows.map(({ row }) => row));
}

test("no sink holds Stripe's key, the vault key or a card: logs, traces, audit, answers and every table", async () => {
  const token = await world.key("canary");
  const answers: string[] = [];
  // What Holdfast itself says. The vendor may tell a client what that client has sent.
  const refusals: string[] = [];
  const statuses: number[] = [];
  const ask = async (...args: Parameters<ProxyWorld["ask"]>): Promise<void> => {
    const sent = world.simulator.requests().length;
    const { status, text, headers } = await world.ask(...args);
    statuses.push(status);
    answers.push(text, JSON.stringify([...headers]));
    if (world.simulator.requests().length === sent && headers.get("idempotent-replayed") === null) refusals.push(text);
  };
  const { source: _, ...bare } = charge;
  // Allowed, repeated, refused in three ways, declined, in doubt, an error of the vendor's, and a key that opens nothing.
  await ask("POST", "/v1/charges", { token, fields: charge, headers: keyed("1") });
  await ask("POST", "/v1/charges", { token, fields: charge, headers: keyed("1") });
  await ask("POST", "/v1/charges", { token, fields: { ...bare, ...raw }, headers: keyed("2") });
  await ask("POST", "/v1/charges", {
    token,
    fields: { ...bare, ...raw, amount: `${card.number}x` },
    headers: keyed("3"),
  });
  await ask("POST", "/v1/charges", { token, fields: { ...charge, key: secret, [token]: card.number } });
  await ask("POST", "/v1/charges", { token, fields: { ...charge, amount: "900000" }, headers: keyed("4") });
  await ask("POST", "/v1/topups", { token, fields: raw, headers: keyed(token) });
  await ask("GET", `/v1/charges/${token}?source=${card.number}`, { token });
  const declined = { ...payment, payment_method: "pm_card_chargeDeclined" };
  await ask("POST", "/v1/payment_intents", { token, fields: declined, headers: keyed("5") });
  world.simulator.fault({ mode: "html_502", match: { method: "POST", path: "/v1/customers" }, times: 9 });
  await ask("POST", "/v1/customers", { token, fields: { description: card.number } });
  world.simulator.fault({ mode: "error_500_after", match: { method: "POST", path: "/v1/charges" }, times: 99 });
  await ask("POST", "/v1/charges", { token, fields: { ...charge, description: card.number }, headers: keyed("6") });
  world.simulator.clearFaults();
  await ask("POST", "/v1/charges", { token: `${token}x`, fields: charge, headers: keyed("7") });
  expect(statuses.slice(0, 2)).toEqual([200, 200]);
  expect(statuses).toEqual(expect.arrayContaining([400, 401, 402, 403, 409, 503]));

  const rows = await everyRow();
  const events = JSON.stringify(await world.events());
  await world.close();
  expect(lines.length).toBeGreaterThan(0);
  expect(receiver.spans.length).toBeGreaterThan(0);
  expect(rows.length).toBeGreaterThan(20);
  expect(refusals.length).toBeGreaterThan(4);
  const sinks = { lines, rows, events: [events], refusals, traces: [receiver.bytes().toString("latin1")] };
  const keys = [secret, token.slice(-43)];
  for (const key of keys) expect(answers.join("\n")).not.toContain(key.slice(0, 24));
  for (const [name, texts] of Object.entries(sinks)) {
    for (const canary of [...keys, card.number, card.cvc]) {
      // A table may show bytes in hexadecimal.
      for (const spelled of [canary, Buffer.from(canary).toString("hex"), Buffer.from(canary).toString("base64")]) {
        const found = texts.find((text) => text.includes(spelled.slice(0, 24)));
        expect(found?.slice(0, 400), `${canary} in ${name}`).toBeUndefined();
      }
    }
  }
});
