import { setTimeout as delay } from "node:timers/promises";
import { stableKey } from "@holdfast/sdk";
import type { PoolClient } from "pg";
import { billingPeriod, purpose } from "../crash/billing-call.ts";
import { createBillingClient } from "../crash/billing-client.ts";
import type { LineProcess } from "../crash/line-process.ts";
import { type ServerProcess, startServerProcess } from "../injection/server-process.ts";
import { type Front, startFront } from "../support/front.ts";
import type { Cell } from "./cell.ts";
import { closed, comeToPoints, letCustomersPass, noteDefects, runAgain, settle } from "./heal.ts";
import { type HoldWire, startHoldWire } from "./hold-wire.ts";
import { judge, judgeCounters } from "./judge.ts";
import { prepare } from "./prepare.ts";
import { reachStates, within } from "./reach.ts";
import type { Played } from "./round.ts";
import { batched, statements } from "./server-cell.ts";
import { createSubject, dropFaults, type Subject } from "./subject.ts";
import { type CrashWorld, hour, holdMs, minute } from "./world.ts";

/** A server that is struck, and what stands around it. */
interface Struck {
  readonly wire: HoldWire;
  readonly server: ServerProcess;
  /** Leads clients to the server, and from then on that it is struck to a healthy one. */
  readonly front: Front;
  redirect(this: void): void;
  close(): Promise<void>;
}

const day = 25 * hour;

/** As `playRound`, but what is struck is a server in the middle of the requests, and not the processes that made them. */
export async function playServerRound(world: CrashWorld, cells: readonly Cell[]): Promise<Played[]> {
  const struck = await startStruck(world);
  const baseUrl = `http://127.0.0.1:${struck.front.port}`;
  const subjects = await Promise.all(cells.map((cell) => createSubject(world, cell, baseUrl)));
  const [clients, fresh] = [world.nextProcess(), world.nextProcess()];
  const locker = await world.stage.pool.connect();
  const { action } = cells[0] as Cell;
  try {
    await prepare(world, subjects);
    await bring(world, subjects, clients, struck, locker);
    await reachStates(world, subjects);
    await strike(world, subjects, struck, locker);
    const over = Promise.all(
      subjects.map(({ call }) => clients.said((line) => line["id"] === call.id && "outcome" in line)),
    );
    over.catch(() => undefined);
    await Promise.race([over, delay(1_500)]);
    await judgeCounters(world, subjects, "after the strike");
    await world.advance(holdMs + minute);
    await runAgain(world, subjects, fresh, 1);
    await judgeCounters(world, subjects, "after everything was run again");
    if (action === "pause") await goOn(struck);
    await world.advance(day);
    await world.sweep();
    if (action === "pause a day") await goOn(struck);
    await letCustomersPass(world, subjects);
    await runAgain(world, subjects, fresh, 2);
    await closed(subjects, clients);
    await settle(world, subjects);
    noteDefects(subjects, [clients, fresh]);
    await judgeCounters(world, subjects, "in the end");
    return await Promise.all(subjects.map((subject) => judge(world, subject)));
  } finally {
    for (const subject of subjects) dropFaults(subject);
    locker.release(true);
    await Promise.all([clients.kill(), fresh.kill()]);
    await struck.close();
  }
}

async function startStruck({ stage }: CrashWorld): Promise<Struck> {
  const wire = await startHoldWire(stage.connection);
  const server = await startServerProcess({
    connection: wire.connection,
    env: {
      HOLDFAST_OPERATOR_TOKEN: stage.operatorToken,
      HOLDFAST_ALTERED_CLOCK: "allowed",
      HOLDFAST_POOL_SIZE: "100",
      HOLDFAST_SWEEP_INTERVAL_MS: "3600000",
    },
  });
  let target = server.url;
  const front = await startFront(() => Number(new URL(target).port));
  return {
    wire,
    server,
    front,
    redirect() {
      target = stage.url;
      front.reset();
    },
    async close() {
      server.child.kill("SIGCONT");
      await server.end("SIGKILL");
      await front.close();
      await wire.close();
    },
  };
}

function marksOf({ call }: Subject): string[] {
  return [call.customerId, stableKey(call.customerId, billingPeriod, purpose)];
}

/** Every request to its point in the server. */
async function bring(
  world: CrashWorld,
  subjects: readonly Subject[],
  clients: LineProcess,
  struck: Struck,
  locker: PoolClient,
): Promise<void> {
  const { wire } = struck;
  const point = (subjects[0] as Subject).cell.server;
  await comeToPoints(subjects, clients);
  const fillers = await fillLanes(world, subjects, struck);
  const names = [...new Set(subjects.map(({ cell }) => statements[cell.step.name] ?? ""))];
  const way = point === "committed, before the answer" ? "way back" : "way there";
  wire.hold(way, names, subjects.flatMap(marksOf));
  for (const { call } of subjects) clients.tell({ go: call.id });
  // What travels in batches waits behind the one that is under way, and then leaves as one.
  await delay(500);
  if (point === "behind a batch") return;
  wire.release(fillers);
  await arrivals(subjects, wire);
  if (point === "the SQL waits") await waitInDatabase(world, subjects, wire, locker);
}

/** One request in each lane, kept by the wire: what comes after it waits in the server. */
async function fillLanes(world: CrashWorld, subjects: readonly Subject[], { wire, front }: Struck): Promise<string[]> {
  const lanes = new Set(subjects.map(({ cell }) => cell.step.name).filter((name) => batched.has(name)));
  const marks: string[] = [];
  for (const lane of ["CommitSpend", "AuthorizeSpend"].filter((name) => lanes.has(name))) {
    const customerId = `filler-${(subjects[0] as Subject).call.customerId}-${lane}`;
    const { call } = await createSubject(world, (subjects[0] as Subject).cell, `http://127.0.0.1:${front.port}`);
    const { pauseAt: _at, clockFile: _file, work: _work, card: _card, retryAfterGeneration: _retry, ...rest } = call;
    const mark = stableKey(customerId, billingPeriod, purpose);
    wire.hold("way there", [statements[lane] ?? ""], [customerId, mark]);
    const client = createBillingClient({ ...rest, kind: "one_call", customerId, vendorDeadlineMs: minute });
    void client.charge().then(() => client.holdfast.close());
    await within(until(() => wire.seen().has(customerId) || wire.seen().has(mark)));
    marks.push(customerId, mark);
  }
  return marks;
}

async function arrivals(subjects: readonly Subject[], wire: HoldWire): Promise<void> {
  const isThere = (subject: Subject) => marksOf(subject).some((mark) => wire.seen().has(mark));
  await within(until(() => subjects.every(isThere)));
  for (const subject of subjects.filter((one) => !isThere(one))) {
    subject.violations.push("never came to the database");
  }
}

/** Lets the statements go on into locks. */
async function waitInDatabase(
  { stage }: CrashWorld,
  subjects: readonly Subject[],
  wire: HoldWire,
  locker: PoolClient,
): Promise<void> {
  const customers = subjects.map(({ call }) => call.customerId);
  await locker.query("begin");
  await locker.query("select from holdfast.workspaces for no key update");
  await locker.query("select from holdfast.authorizations where customer_id = any ($1) for update", [customers]);
  await locker.query("select from holdfast.billing_leases where lease = any ($1) for update", [customers]);
  wire.release();
  for (const name of new Set(subjects.map(({ cell }) => statements[cell.step.name] ?? ""))) {
    const isWaiting = async () => (await stage.pool.query(waitingSql, [name])).rowCount !== 0;
    await within(until(isWaiting));
  }
}

const waitingSql = `select pid from pg_stat_activity
  where wait_event_type = 'Lock' and query like '/* ' || $1 || ' */%'`;

async function strike(
  { stage }: CrashWorld,
  subjects: readonly Subject[],
  { wire, server, redirect }: Struck,
  locker: PoolClient,
): Promise<void> {
  const { action, server: point } = (subjects[0] as Subject).cell;
  if (action === "kill") await server.end("SIGKILL");
  else if (action === "drop the reply" && point === "the SQL waits") {
    await stage.pool.query(
      "select pg_terminate_backend(pid) from pg_stat_activity where wait_event_type = 'Lock' and query like '/* %'",
    );
  } else if (action === "drop the reply" && point !== "behind a batch") wire.cut();
  else if (action !== "drop the reply") server.child.kill("SIGSTOP");
  // Its clients find another server; a cut connection to the database is the server's own to notice.
  if (action !== "drop the reply" || point === "behind a batch") redirect();
  if (point === "the SQL waits") await locker.query("rollback");
  if (action === "kill" || action === "drop the reply") wire.release();
}

/** A server that was stopped goes on, and so does what it had sent, or was about to be told. */
async function goOn({ wire, server }: Struck): Promise<void> {
  server.child.kill("SIGCONT");
  wire.release();
  const health = `${server.url}/readyz`;
  await within(until(async () => (await fetch(health).catch(() => undefined)) !== undefined));
  await delay(500);
}

async function until(isSo: () => boolean | Promise<boolean>): Promise<true> {
  while (!(await isSo())) await delay(20);
  return true;
}
