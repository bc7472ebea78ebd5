import { setTimeout as delay } from "node:timers/promises";
import type { PoolClient } from "pg";
import { bring, checkBehind, until } from "./bring.ts";
import type { Cell } from "./cell.ts";
import { closed, letCustomersPass, noteDefects, runAgain, settle } from "./heal.ts";
import { judge, judgeCounters } from "./judge.ts";
import { prepare } from "./prepare.ts";
import { reachStates, within } from "./reach.ts";
import type { Played } from "./round.ts";
import { startStruckServer, type StruckServer } from "./struck-server.ts";
import { createSubject, dropFaults, type Subject } from "./subject.ts";
import { type CrashWorld, hour, holdMs, minute } from "./world.ts";

const day = 25 * hour;

/** As `playRound`, but what is struck is a server in the middle of the requests, and not the processes that made them. */
export async function playServerRound(world: CrashWorld, cells: readonly Cell[]): Promise<Played[]> {
  const { action, server: point } = cells[0] as Cell;
  if (point === undefined) throw new Error("Not a cell of a server");
  const struck = await startStruckServer(world);
  const subjects = await Promise.all(cells.map((cell) => createSubject(world, cell, struck.baseUrl)));
  const [clients, fresh] = [world.nextProcess(), world.nextProcess()];
  const locker = await world.stage.pool.connect();
  try {
    await prepare(world, subjects);
    await bring({ world, subjects, clients, struck, locker });
    await reachStates(world, subjects);
    if (point === "behind a batch") checkBehind(subjects, struck);
    clients.signal("SIGUSR2");
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

async function strike(
  { stage }: CrashWorld,
  subjects: readonly Subject[],
  { wire, server, redirect }: StruckServer,
  locker: PoolClient,
): Promise<void> {
  const { action, server: point } = (subjects[0] as Subject).cell;
  // From now on it waits for as long as it would.
  server.child.kill("SIGUSR2");
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
async function goOn({ wire, server }: StruckServer): Promise<void> {
  server.child.kill("SIGCONT");
  wire.release();
  const health = `${server.url}/readyz`;
  await within(until(async () => (await fetch(health).catch(() => undefined)) !== undefined));
  await delay(500);
}
