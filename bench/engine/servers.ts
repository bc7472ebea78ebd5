import type { Bench } from "../bench.ts";
import { describeMachine } from "../machine.ts";
import { median } from "../statistics.ts";
import { ownRoot } from "./checkout.ts";
import { startCluster } from "./cluster.ts";
import { driveAt, type Place, startOn, startPlace } from "./rounds.ts";

const full = { rounds: 7, warmUp: 10_000, calls: 4_000 };
const quick = { rounds: 1, warmUp: 40, calls: 80 };
const callers = 256;

/** Two servers that share a cap wait for each other's row; the question is how much that costs. */
export const serversBench: Bench = {
  about: "two servers on one database and one hot cap, against one server",
  gives: ["two_servers_vs_one_256"],
  async run({ quick: isQuick, progress }) {
    const cluster = await startCluster();
    const places: Place[] = [];
    try {
      const started = { cluster, folder: cluster.folder, root: ownRoot };
      const one = await startPlace("one server", "holdfast", started);
      places.push(one);
      const first = await startPlace("two servers", "holdfast", started);
      places.push(first);
      const second = await startOn("two servers", "holdfast", {
        ...started,
        connection: first.connection,
        isFirst: false,
      });
      places.push(second);
      const counts = isQuick ? quick : full;
      progress("warming up");
      for (const pair of [[one], [first, second]]) await rateOf(pair, counts.warmUp);
      const machine = describeMachine(cluster.folder);
      const rates = { one: [] as number[], two: [] as number[] };
      for (let round = 0; round < counts.rounds; round += 1) {
        progress(`round ${round + 1} of ${counts.rounds}`);
        const single = async () => void rates.one.push(await rateOf([one], counts.calls));
        const both = async () => void rates.two.push(await rateOf([first, second], counts.calls));
        for (const turn of round % 2 === 0 ? [single, both] : [both, single]) await turn();
      }
      await verifyTotal([one]);
      await verifyTotal([first, second]);
      const lines = Object.entries(rates).map(
        ([name, all]) => `${name.padEnd(10)}${median(all).toFixed(0).padStart(8)}`,
      );
      return {
        table: [machine, "servers   grants/s with 256 callers in all", ...lines],
        ratios: { two_servers_vs_one_256: median(rates.two) / median(rates.one) },
      };
    } finally {
      for (const { child } of places.toReversed()) await child.close();
      await cluster.close();
    }
  },
};

/** Grants per second of all of them together, with the same number of callers however many they are. */
async function rateOf(places: readonly Place[], calls: number): Promise<number> {
  const share = { load: "hot", callers: callers / places.length, calls: calls / places.length } as const;
  const begun = performance.now();
  await Promise.all(places.map((place) => driveAt(place, share)));
  return (calls * 1_000) / (performance.now() - begun);
}

async function verifyTotal(places: readonly [Place, ...Place[]]): Promise<void> {
  const granted = places.reduce((sum, place) => sum + (place.granted.get("hot") ?? 0), 0);
  const counted = await places[0].child.ask<number>("counted", "hot");
  if (counted !== granted) throw new Error(`${places[0].name}: ${granted} granted, and ${counted} counted`);
}
