import { createClient } from "@connectrpc/connect";
import { AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { Health, HealthCheckResponse_ServingStatus } from "@holdfast/api/grpc/health/v1/health_pb";
import pg from "pg";
import { afterAll, beforeAll, expect, test } from "vitest";
import { createPolicy, type Policy, transportOf } from "../crash/policy.ts";
import { type Front, startFront } from "../support/front.ts";
import { ask } from "../support/standby.ts";
import { type DurablePostgres, startDurablePostgres } from "./durable-postgres.ts";
import { startSdkLoad } from "./sdk-load.ts";
import { operatorToken, type ServerProcess, startServerProcess } from "./server-process.ts";
import { dollar, refusalOf } from "./spend-call.ts";

let postgres: DurablePostgres;
let front: Front;
let policy: Policy;
const servers: ServerProcess[] = [];
let turn = 0;

const start = () => startServerProcess({ connection: postgres.connection });
const portOf = ({ url }: ServerProcess) => Number(new URL(url).port);

beforeAll(async () => {
  postgres = await startDurablePostgres();
  servers.push(await start(), await start());
  // As a load balancer without health checks: in turn, also to a server that is going away.
  front = await startFront(() => {
    turn += 1;
    return portOf(servers[turn % servers.length] as ServerProcess);
  });
  policy = await createPolicy((servers[0] as ServerProcess).url, operatorToken, "1000000");
});
afterAll(async () => {
  await front?.close();
  for (const server of servers) server.child.kill("SIGKILL");
  await postgres?.close();
});

test("both servers restarted by SIGTERM under the SDK's load: exit code 0, no caller sees an error, all is counted", async () => {
  const load = startSdkLoad({
    baseUrl: `http://127.0.0.1:${front.port}`,
    vaultKey: policy.vaultKey,
    callers: 8,
    name: "rolling",
  });
  await load.more(20);
  const [first, second] = servers as [ServerProcess, ServerProcess];
  expect(await first.end("SIGTERM")).toBe(0);
  servers.splice(0, 1, await start());
  await load.more(20);
  expect(await second.end("SIGTERM")).toBe(0);
  servers.splice(1, 1);
  await load.more(20);
  expect(await load.stop()).toEqual([]);
  const { usage } = await createClientOf(0).admin.getCap({ name: "caps/everything" });
  expect(usage).toMatchObject({ committed: { amount: `${load.spent()}` }, held: { amount: "0" } });
});

function createClientOf(index: number) {
  const { url } = servers[index] as ServerProcess;
  return {
    admin: createClient(AdminService, transportOf(url, operatorToken)),
    spends: createClient(SpendControlService, transportOf(url, policy.vaultKey)),
    health: createClient(Health, transportOf(url, policy.vaultKey)),
  };
}

test("SIGTERM with calls in the database: not ready at once, every call answered, exit code 0", async () => {
  const { spends, health } = createClientOf(0);
  await spends.authorizeSpend(dollar("first"));
  const watch = health.watch({})[Symbol.asyncIterator]();
  expect((await watch.next()).value).toMatchObject({ status: HealthCheckResponse_ServingStatus.SERVING });
  const locker = new pg.Client(postgres.connection);
  await locker.connect();
  await locker.query("begin");
  await locker.query("select from holdfast.counters for update");
  const answers = Array.from({ length: 50 }, (_, n) =>
    spends.authorizeSpend(dollar(`in-flight-${n}`)).then(() => "granted", refusalOf),
  );
  await expect
    .poll(() => ask(postgres.connection, "select pid from pg_stat_activity where wait_event_type = 'Lock'"))
    .not.toEqual([]);
  const ended = (servers[0] as ServerProcess).end("SIGTERM");
  expect((await watch.next()).value).toMatchObject({ status: HealthCheckResponse_ServingStatus.NOT_SERVING });
  await locker.query("rollback");
  await locker.end();
  // Only a machine that stood still between the lock and its end makes the lock run out.
  for (const answer of await Promise.all(answers)) {
    if (answer !== "granted") expect(answer).toMatchObject({ reason: "DATABASE_UNAVAILABLE", retryInfo: true });
  }
  expect(await ended).toBe(0);
});
