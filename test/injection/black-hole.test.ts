import { Code, createClient } from "@connectrpc/connect";
import { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { Disposition } from "@holdfast/api/holdfast/v1/spend_pb";
import { afterAll, beforeAll, expect, test } from "vitest";
import { type App, startApp } from "../../server/app.ts";
import { readConfig } from "../../server/config.ts";
import { createPolicy, type Policy, transportOf } from "../crash/policy.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";
import { operatorToken } from "./server-process.ts";
import { dollar, refusalOf, untilAnswered } from "./spend-call.ts";
import { startWire, type Wire } from "./wire.ts";

let database: TestDatabase;
let wire: Wire;
let app: App;
let policy: Policy;

beforeAll(async () => {
  database = await createTestDatabase();
  wire = await startWire(database.connection);
  const config = { ...readConfig({}, []), port: 0, logLevel: "silent", operatorToken } as const;
  app = await startApp(config, { connection: wire.connection, fsyncOff: "allowed" });
  policy = await createPolicy(app.url, operatorToken);
});
afterAll(async () => {
  await app?.close();
  await wire?.close();
  await database?.close();
});

const spends = () => createClient(SpendControlService, transportOf(app.url, policy.vaultKey));

/** The HTTP answer to a caller that has told its deadline and keeps no clock of its own. */
async function post(request: object, timeoutMs: number): Promise<{ readonly code?: string }> {
  const response = await fetch(`${app.url}/holdfast.v1.SpendControlService/AuthorizeSpend`, {
    method: "POST",
    headers: {
      "content-type": "application/json",
      authorization: `Bearer ${policy.vaultKey}`,
      "connect-timeout-ms": `${timeoutMs}`,
    },
    body: JSON.stringify(request),
  });
  return (await response.json()) as { code?: string };
}

test("a connection that swallows everything: its call ends at the deadline, the others go over another one", async () => {
  const asked = dollar("lost");
  const swallowed = wire.stop("way there", "authorize_batch");
  const ended = post({ ...asked, settlement: "SETTLEMENT_SEND_ONCE" }, 1_000);
  await swallowed;
  const others = Array.from({ length: 20 }, (_, n) => spends().authorizeSpend(dollar(`other-${n}`)));
  const answers = await Promise.all(others);
  expect(await ended).toMatchObject({ code: "deadline_exceeded" });
  expect(answers.filter(({ disposition }) => disposition !== Disposition.GRANTED)).toEqual([]);
  // The truth of the lost one, from its own attempt.
  expect(await untilAnswered(() => spends().authorizeSpend(asked))).toMatchObject({
    disposition: Disposition.GRANTED,
    mayHaveBeenSent: false,
  });
});

test("every connection swallowed: calls end unavailable or at their deadline, and new connections serve again", async () => {
  // Fills the pool.
  await Promise.all(
    Array.from({ length: 20 }, (_, n) => policy.admin.getCap({ name: "caps/everything" }).then(() => n)),
  );
  const before = wire.accepted();
  wire.blackHole();
  const requests = Array.from({ length: 10 }, (_, n) => dollar(`hole-${n}`));
  const first = await Promise.all(
    requests.map((request) =>
      spends()
        .authorizeSpend(request, { timeoutMs: 20_000 })
        .then(
          () => "granted",
          (error: unknown) => refusalOf(error).code,
        ),
    ),
  );
  for (const one of first) expect(["granted", Code.Unavailable, Code.DeadlineExceeded]).toContain(one);
  for (const request of requests) {
    expect(await untilAnswered(() => spends().authorizeSpend(request))).toMatchObject({
      disposition: Disposition.GRANTED,
    });
  }
  expect(wire.accepted()).toBeGreaterThan(before);
  const { rows } = await database.pool.query<{ n: number }>(
    "select count(*)::int4 as n from holdfast.authorizations where customer_id like 'hole-%'",
  );
  expect(rows[0]?.n).toBe(10);
});
