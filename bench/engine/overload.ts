import type { Bench } from "../bench.ts";
import { describeMachine } from "../machine.ts";
import { median } from "../statistics.ts";
import { ownRoot } from "./checkout.ts";
import { startCluster } from "./cluster.ts";
import type { Flood, Flooded } from "./flood.ts";
import { driveAt, type Place, startPlace, verify } from "./rounds.ts";

/** `seconds` is how many calls come, in multiples of what the peak carries in one; nothing waits for a time. */
const full = { rounds: 5, warmUp: 10_000, calls: 6_000, seconds: 2 };
const quick = { rounds: 1, warmUp: 40, calls: 80, seconds: 0.05 };
const overload = 10;
const deadlineMs = 1_000;

/** Ten times as many calls as can be carried, each with a deadline of a second: work that nobody waits for is waste. */
export const overloadBench: Bench = {
  about: "grants in time while ten times as many are asked for as can be given, against the peak",
  gives: ["overload_goodput"],
  async run({ quick: isQuick, progress }) {
    const cluster = await startCluster();
    let place: Place | undefined;
    try {
      place = await startPlace("holdfast", "holdfast", { cluster, folder: cluster.folder, root: ownRoot });
      const counts = isQuick ? quick : full;
      progress("warming up");
      await driveAt(place, { load: "hot", callers: 256, calls: counts.warmUp });
      const machine = describeMachine(cluster.folder);
      const peaks: number[] = [];
      const floods: Flooded[] = [];
      for (let round = 0; round < counts.rounds; round += 1) {
        progress(`round ${round + 1} of ${counts.rounds}`);
        const rates: number[] = [];
        for (const callers of [256, 1_024]) {
          rates.push((await driveAt(place, { load: "hot", callers, calls: counts.calls })).rate);
        }
        peaks.push(Math.max(...rates));
        const perSecond = overload * median(peaks);
        const asked: Flood = { perSecond, calls: Math.ceil(perSecond * counts.seconds), deadlineMs };
        const flooded = await place.child.ask<Flooded>("flood", asked);
        place.granted.set("hot", (place.granted.get("hot") ?? 0) + flooded.granted);
        floods.push(flooded);
      }
      await verify([place], ["hot"]);
      const goodput = median(floods.map((one) => one.goodput));
      const sum = (name: "granted" | "refused" | "late") => floods.reduce((all, one) => all + one[name], 0);
      return {
        table: [
          machine,
          `peak ${median(peaks).toFixed(0)} grants/s, at ten times as many calls ${goodput.toFixed(0)} in time`,
          `of the flood ${sum("granted")} granted, ${sum("refused")} refused at once, ${sum("late")} over their deadline`,
        ],
        ratios: { overload_goodput: goodput / median(peaks) },
      };
    } finally {
      await place?.child.close();
      await cluster.close();
    }
  },
};
