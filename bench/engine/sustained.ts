import pg from "pg";
import type { Bench } from "../bench.ts";
import { describeMachine } from "../machine.ts";
import { median } from "../statistics.ts";
import { ownRoot } from "./checkout.ts";
import { type Cluster, startCluster } from "./cluster.ts";
import type { Load } from "./contender.ts";
import { driveAt, type Place, startPlace, verify } from "./rounds.ts";

/** The control has its turn in every so many rounds only: what is asked about is the other one. */
const full = { rounds: 50, warmUp: 10_000, calls: 40_000, every: 5, control: 15_000 };
const quick: typeof full = { rounds: 4, warmUp: 40, calls: 80, every: 2, control: 80 };
const callers = 256;
/** Of a thousand caps each row has its own old versions, of the hot one they are all of one row. */
const loads = ["hot", "many"] as const satisfies readonly Load[];

/**
 * Ten minutes at full rate, with one snapshot open from beginning to end: a backup, a report, a session that somebody
 * forgot. Nothing that was updated since can be cleaned up. The control is the same engine on a database where nobody
 * holds anything back, on the same cluster, with its vacuum and its checkpoints.
 */
export const sustainedBench: Bench = {
  about: "ten minutes of granting at full rate while one transaction stays open (needs 10 GB of disk)",
  gives: ["snapshot_hot_vs_none", "snapshot_many_vs_none"],
  async run({ quick: isQuick, progress }) {
    const cluster = await startCluster();
    const places: Place[] = [];
    let holder: pg.Client | undefined;
    try {
      const started = { cluster, folder: cluster.folder, root: ownRoot };
      const held = await startPlace("held back", "holdfast", started);
      places.push(held);
      const free = await startPlace("free", "holdfast", started);
      places.push(free);
      const counts = isQuick ? quick : full;
      progress("warming up");
      for (const place of places) {
        for (const load of loads) await driveAt(place, { load, callers, calls: counts.warmUp });
      }
      const machine = describeMachine(cluster.folder);
      holder = await openSnapshot(held.connection);
      const rates = new Map(places.map(({ name }) => [name, { hot: [] as number[], many: [] as number[] }]));
      const turn = async (place: Place, calls: number) => {
        for (const load of loads) {
          const { rate } = await driveAt(place, { load, callers, calls });
          rates.get(place.name)?.[load].push(rate);
        }
      };
      const begun = performance.now();
      for (let round = 0; round < counts.rounds; round += 1) {
        progress(`round ${round + 1} of ${counts.rounds}`);
        await turn(held, counts.calls);
        if ((round + 1) % counts.every === 0) await turn(free, counts.control);
      }
      const minutes = (performance.now() - begun) / 60_000;
      const dead = await deadRows(cluster, held);
      await verify(places, loads);
      const of = (place: Place, load: (typeof loads)[number]): readonly number[] => rates.get(place.name)?.[load] ?? [];
      const last = counts.rounds / counts.every;
      const lines = loads.map((load) => {
        const all = of(held, load);
        const shown = [all.slice(0, last), all.slice(-last), of(free, load)];
        return `${load.padEnd(8)}${shown.map((some) => median(some).toFixed(0).padStart(12)).join("")}`;
      });
      const ratio = (load: (typeof loads)[number]): number =>
        median(of(held, load).slice(-last)) / median(of(free, load));
      return {
        table: [
          machine,
          `${minutes.toFixed(1)} minutes, ${counts.rounds * counts.calls * loads.length} grants beside the open snapshot; ${dead}`,
          "load    held: first        last        free   (grants/s)",
          ...lines,
        ],
        ratios: { snapshot_hot_vs_none: ratio("hot"), snapshot_many_vs_none: ratio("many") },
      };
    } finally {
      await holder?.end();
      for (const { child } of places.toReversed()) await child.close();
      await cluster.close();
    }
  },
};

/** A session that sees its database as it is now, until it ends. */
async function openSnapshot(connection: pg.ClientConfig): Promise<pg.Client> {
  const client = new pg.Client(connection);
  await client.connect();
  await client.query("set idle_in_transaction_session_timeout = 0");
  await client.query("begin isolation level repeatable read read only");
  await client.query("select count(*) from holdfast.counters");
  return client;
}

async function deadRows(cluster: Cluster, { connection }: Place): Promise<string> {
  const [row] = await cluster.query<{ live: string; dead: string; size: string }>(
    connection,
    `select n_live_tup::text as live, n_dead_tup::text as dead, pg_size_pretty(pg_total_relation_size(relid)) as size
     from pg_stat_user_tables where schemaname = 'holdfast' and relname = 'counters'`,
  );
  return `of the counters' rows ${row?.live} live and ${row?.dead} dead, ${row?.size}`;
}
