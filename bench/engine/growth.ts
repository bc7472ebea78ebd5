import type { Bench } from "../bench.ts";
import { describeMachine } from "../machine.ts";
import { median } from "../statistics.ts";
import { ownRoot } from "./checkout.ts";
import { type Cluster, startCluster } from "./cluster.ts";
import { amountMicros } from "./contender.ts";
import { driveAt, type Place, startPlace } from "./rounds.ts";
import { writeRows } from "./rows.ts";

const sizes = { rows_10k: 10_000, rows_1m: 1_000_000, rows_5m: 5_000_000 };
/** So few that their names are wrong: a quick run shows only that the rows can be written and granted beside. */
const quickSizes: typeof sizes = { rows_10k: 200, rows_1m: 1_000, rows_5m: 4_000 };
const full = { rounds: 7, warmUp: 3_000, calls: 3_000 };
const quick = { rounds: 1, warmUp: 40, calls: 80 };
const callers = 256;

/**
 * Rows are written without log where Postgres may, and nothing is vacuumed in the middle of a round. What is timed is
 * as durable as ever.
 */
const settings = { wal_level: "minimal", max_wal_senders: "0", autovacuum: "off" };

/** An authorization stays for ever, so granting must not get slower with all that was granted before. */
export const growthBench: Bench = {
  about: "granting beside 10,000, a million and five million authorizations (needs 10 GB of disk for some minutes)",
  gives: ["rows_1m_vs_10k", "rows_5m_vs_10k"],
  async run({ quick: isQuick, progress }) {
    const cluster = await startCluster(settings);
    const places: Place[] = [];
    try {
      const counts = isQuick ? quick : full;
      const taken = new Map<Place, number>();
      const rowsOf = isQuick ? quickSizes : sizes;
      for (const name of Object.keys(rowsOf)) {
        places.push(await startPlace(name, "holdfast", { cluster, folder: cluster.folder, root: ownRoot }));
      }
      progress(`writing ${Object.values(rowsOf).join(", ")} authorizations`);
      await Promise.all(
        places.map(async (place) => {
          await writeRows(place.connection, rowsOf[place.name as keyof typeof sizes]);
          taken.set(place, await heldIn(cluster, place));
        }),
      );
      progress("warming up");
      // Each page of an index that is changed for the first time after this is written to the log whole.
      await cluster.query((places[0] as Place).connection, "checkpoint");
      for (const place of places) await driveAt(place, { load: "hot", callers, calls: counts.warmUp });
      const machine = describeMachine(cluster.folder);
      const rates = new Map(places.map((place) => [place.name, [] as number[]]));
      for (let round = 0; round < counts.rounds; round += 1) {
        progress(`round ${round + 1} of ${counts.rounds}`);
        const at = round % places.length;
        for (const place of [...places.slice(at), ...places.slice(0, at)]) {
          const driven = await driveAt(place, { load: "hot", callers, calls: counts.calls });
          rates.get(place.name)?.push(driven.rate);
        }
      }
      for (const place of places) await verifyGrowth(cluster, place, taken.get(place) ?? 0);
      const lines = [...rates].map(([name, all]) => `${name.padEnd(10)}${median(all).toFixed(0).padStart(9)}`);
      const rate = (name: string): number => median(rates.get(name) ?? []);
      return {
        table: [
          machine,
          ...(isQuick ? ["quick: a few thousand rows stand for millions"] : []),
          "rows       grants/s",
          ...lines,
        ],
        ratios: {
          rows_1m_vs_10k: rate("rows_1m") / rate("rows_10k"),
          rows_5m_vs_10k: rate("rows_5m") / rate("rows_10k"),
        },
      };
    } finally {
      for (const { child } of places.toReversed()) await child.close();
      await cluster.close();
    }
  },
};

/** How many grants the cap holds. */
async function heldIn(cluster: Cluster, { connection }: Place): Promise<number> {
  const [row] = await cluster.query<{ held: number }>(
    connection,
    "select (sum(held_micros) / $1)::float8 as held from holdfast.counters where workspace_id = 'hot'",
    [amountMicros],
  );
  return row?.held ?? 0;
}

async function verifyGrowth(cluster: Cluster, place: Place, before: number): Promise<void> {
  const counted = (await heldIn(cluster, place)) - before;
  const granted = place.granted.get("hot");
  if (counted !== granted) throw new Error(`${place.name}: ${granted} granted, and ${counted} counted`);
}
