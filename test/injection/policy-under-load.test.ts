import { Disposition } from "@holdfast/api/holdfast/v1/spend_pb";
import { afterAll, beforeAll, expect, test } from "vitest";
import { startTestServer, type TestServer } from "../support/server.ts";
import { dollar, untilAnswered } from "./spend-call.ts";

let server: TestServer;

beforeAll(async () => {
  server = await startTestServer({ servers: 2 });
});
afterAll(() => server.close());

type Spends = ReturnType<TestServer["spend"]>;

/** Callers on both servers, each of which goes on until it is denied. */
async function untilDenied(clients: readonly Spends[], name: string, callers: number) {
  const granted: string[] = [];
  const one = async (who: number): Promise<void> => {
    for (let n = 0; ; n += 1) {
      const client = clients[who % clients.length] as Spends;
      const request = dollar(`${name}-${who}-${n}`);
      const { disposition, authorization } = await untilAnswered(() => client.authorizeSpend(request));
      if (disposition === Disposition.DENIED) return;
      granted.push(authorization?.name ?? "");
    }
  };
  const all = Promise.all(Array.from({ length: callers }, (_, who) => one(who)));
  return { granted, denied: all };
}

/** Grants that the audit knows of. */
async function grantsInAudit(name: string): Promise<number> {
  const { rows } = await server.database.pool.query<{ n: number }>(
    "select count(*)::int4 as n from holdfast.audit_events where kind = 'spend.granted' and customer_id like $1",
    [`${name}-%`],
  );
  return rows[0]?.n ?? -1;
}

test("a key revoked under 100 callers: nothing is granted once it has returned, and what was granted may be committed", async () => {
  const token = await server.vaultKey("revoked");
  const clients = [server.spend(token, 0), server.spend(token, 1)];
  const load = await untilDenied(clients, "revoked", 100);
  await expect.poll(() => load.granted.length).toBeGreaterThan(100);
  await untilAnswered(() => server.admin.revokeVaultKey({ name: "vaultKeys/revoked" }));
  const returned = await grantsInAudit("revoked");
  await load.denied;
  expect(await grantsInAudit("revoked")).toBe(returned);
  expect(load.granted).toHaveLength(returned);
  const [name = ""] = load.granted;
  const amount = { currency: "usd", amount: "1" };
  const committed = await clients[0]?.commitSpend({ authorization: name, amount, vendorReference: "pi_late" });
  expect(committed?.authorization?.name).toBe(name);
});

test("a cap lowered below its use under load: accepted, no headroom, no new grant, and no hold is changed", async () => {
  const token = await server.vaultKey("lowered");
  await server.cap("lowered", "1000000", { scope: { vaultKey: "vaultKeys/lowered" } });
  const load = await untilDenied([server.spend(token, 0), server.spend(token, 1)], "lowered", 20);
  await expect.poll(() => load.granted.length).toBeGreaterThan(50);
  await untilAnswered(() =>
    server.admin.updateCap({
      cap: { name: "caps/lowered", limit: { currency: "usd", amount: "10" } },
      updateMask: { paths: ["limit"] },
    }),
  );
  const returned = await grantsInAudit("lowered");
  await load.denied;
  expect(await grantsInAudit("lowered")).toBe(returned);
  const { usage } = await server.admin.getCap({ name: "caps/lowered" });
  expect(usage?.held?.amount).toBe(`${load.granted.length}`);
  expect(Number(usage?.headroom?.amount)).toBe(10 - load.granted.length);
  const { rows } = await server.database.pool.query<{ n: number }>(
    "select count(*)::int4 as n from holdfast.authorizations where customer_id like 'lowered-%' and state = 'HELD'",
  );
  expect(rows[0]?.n).toBe(load.granted.length);
});
