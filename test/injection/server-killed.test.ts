import { type Client, createClient } from "@connectrpc/connect";
import { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { Disposition } from "@holdfast/api/holdfast/v1/spend_pb";
import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import { type App, startApp } from "../../server/app.ts";
import { readConfig } from "../../server/config.ts";
import { createPolicy, type Policy, transportOf } from "../crash/policy.ts";
import { ask } from "../support/standby.ts";
import { type DurablePostgres, startDurablePostgres } from "./durable-postgres.ts";
import { operatorToken, type ServerProcess, startServerProcess } from "./server-process.ts";
import { dollar, refused } from "./spend-call.ts";
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
  return (await ask(postgres.connection, text))[0]?.["n"] as number;
}

async function killAt(reached: Promise<void>): Promise<void> {
  await reached;
  expect(await victim.end("SIGKILL")).toBe("SIGKILL");
}

test("before its statement has left: no row, and the same attempt is granted elsewhere", async () => {
  const request = dollar("before-sql");
  const reached = wire.stop("way there", "authorize_batch");
  const refusal = refused(spends.victim.authorizeSpend(request));
  await killAt(reached);
  await refusal;
  expect(await rowsOf("before-sql")).toBe(0);
  expect(await spends.second.authorizeSpend(request)).toMatchObject({
    disposition: Disposition.GRANTED,
    mayHaveBeenSent: false,
  });
  expect(await rowsOf("before-sql")).toBe(1);
});

test("after its COMMIT and before its reply: the same attempt gets its grant again, another one waits", async () => {
  const request = dollar("after-commit");
  const reached = wire.stop("way back", "authorize_batch");
  const refusal = refused(spends.victim.authorizeSpend(request));
  await killAt(reached);
  await refusal;
  expect(await rowsOf("after-commit")).toBe(1);
  const other = await spends.second.authorizeSpend(dollar("after-commit"));
  expect(other).toMatchObject({ disposition: Disposition.IN_PROGRESS });
  const replay = await spends.second.authorizeSpend(request);
  expect(replay).toMatchObject({ disposition: Disposition.GRANTED, mayHaveBeenSent: true });
  expect(replay.authorization?.name).toBe(other.authorization?.name ?? replay.authorization?.name);
  expect(await rowsOf("after-commit")).toBe(1);
});

test.each(["way there", "way back"] as const)(
  "with 200 callers in its batches, stopped on the %s: nobody is answered for another, everybody holds once",
  async (on) => {
    const customer = (n: number) => `batch-${on.replace(" ", "-")}-${n}`;
    const requests = Array.from({ length: 200 }, (_, n) => dollar(customer(n)));
    const before = Number((await policy.usage()).held);
    const reached = wire.stop(on, "authorize_batch");
    const first = Promise.all(
      requests.map((request) =>
        spends.victim.authorizeSpend(request).then(
          ({ authorization }) => authorization?.spend?.customerId,
          () => undefined,
        ),
      ),
    );
    await killAt(reached);
    // Nobody was told anything but the truth about the own spend.
    for (const [n, told] of (await first).entries()) expect([undefined, customer(n)]).toContain(told);
    const again = await Promise.all(requests.map((request) => spends.second.authorizeSpend(request)));
    for (const [n, { disposition, authorization }] of again.entries()) {
      expect([disposition, authorization?.spend?.customerId]).toEqual([Disposition.GRANTED, customer(n)]);
    }
    expect(new Set(again.map(({ authorization }) => authorization?.name)).size).toBe(200);
    expect(await rowsOf(`batch-${on.replace(" ", "-")}-%`)).toBe(200);
    expect(Number((await policy.usage()).held) - before).toBe(200);
  },
);
