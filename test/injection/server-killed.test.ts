import { type Client, createClient } from "@connectrpc/connect";
import { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { Disposition } from "@holdfast/api/holdfast/v1/spend_pb";
import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import { type App, startApp } from "../../server/app.ts";
import { readConfig } from "../../server/config.ts";
import { createPolicy, type Policy, transportOf } from "../crash/policy.ts";
import { ask as askDatabase } from "../support/standby.ts";
import { type DurablePostgres, startDurablePostgres } from "./durable-postgres.ts";
import { operatorToken, type ServerProcess, startServerProcess } from "./server-process.ts";
import { dollar } from "./spend-call.ts";
import { startWire, type Wire } from "./wire.ts";

// A server in a process of its own is killed with SIGKILL at a known point of its conversation with the database; the
// wire between them tells the point. A second server, which nothing happens to, is asked for the truth.

let postgres: DurablePostgres;
let wire: Wire;
let second: App;
let policy: Policy;
let victim: ServerProcess;
let spends: {
  readonly victim: Client<typeof SpendControlService>;
  readonly second: Client<typeof SpendControlService>;
};

beforeAll(async () => {
  postgres = await startDurablePostgres();
  wire = await startWire(postgres.connection);
  const config = { ...readConfig({}, []), port: 0, logLevel: "silent", operatorToken } as const;
  second = await startApp(config, { connection: postgres.connection });
  policy = await createPolicy(second.url, operatorToken);
});
beforeEach(async () => {
  victim = await startServerProcess({ connection: wire.connection });
  const client = (url: string) => createClient(SpendControlService, transportOf(url, policy.vaultKey));
  spends = { victim: client(victim.url), second: client(second.url) };
});
afterAll(async () => {
  victim?.child.kill("SIGKILL");
  await second?.close();
  await wire?.close();
  await postgres?.close();
});

async function rowsOf(like: string): Promise<number> {
  const text = `select count(*)::int4 as n from holdfast.authorizations where customer_id like '${like}'`;
  return (await askDatabase(postgres.connection, text))[0]?.["n"] as number;
}

// One call is stopped alone. The others wait behind it until they are sent over another connection, as one batch.
test.each([
  { on: "way there", where: "before its SQL has left", written: 0 },
  { on: "way back", where: "after its COMMIT and before its replies", written: 1 },
] as const)(
  "$where: every caller's own attempt learns the truth, and everybody holds once",
  async ({ on, written }) => {
    const customer = (n: number) => `${on.replace(" ", "-")}-${n}`;
    const requests = Array.from({ length: 201 }, (_, n) => dollar(customer(n)));
    const before = Number((await policy.usage()).held);
    const ask = (request: ReturnType<typeof dollar>) =>
      spends.victim.authorizeSpend(request).then(
        ({ authorization }) => authorization?.spend?.customerId,
        () => undefined,
      );
    const [lone, ...others] = requests as [ReturnType<typeof dollar>, ...ReturnType<typeof dollar>[]];
    const alone = wire.stop(on, "authorize_batch");
    const told = [ask(lone)];
    await alone;
    const together = wire.stop(on, "authorize_batch");
    told.push(...others.map(ask));
    await together;
    expect(await victim.end("SIGKILL")).toBe("SIGKILL");
    // Nobody was told anything but the truth about the own spend.
    for (const [n, one] of (await Promise.all(told)).entries()) expect([undefined, customer(n)]).toContain(one);
    expect(await rowsOf(customer(0))).toBe(written);
    if (written > 0) {
      const stranger = await spends.second.authorizeSpend(dollar(customer(0)));
      expect(stranger).toMatchObject({ disposition: Disposition.IN_PROGRESS });
    }
    const again = await Promise.all(requests.map((request) => spends.second.authorizeSpend(request)));
    for (const [n, { disposition, authorization }] of again.entries()) {
      expect([disposition, authorization?.spend?.customerId]).toEqual([Disposition.GRANTED, customer(n)]);
    }
    expect(again[0]?.mayHaveBeenSent).toBe(written > 0);
    expect(new Set(again.map(({ authorization }) => authorization?.name)).size).toBe(201);
    expect(await rowsOf(`${on.replace(" ", "-")}-%`)).toBe(201);
    expect(Number((await policy.usage()).held) - before).toBe(201);
  },
);
