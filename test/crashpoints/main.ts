import { parseArgs } from "node:util";
import { actions, enumerateCells, serverActions } from "./cell.ts";
import { play } from "./play.ts";
import type { Played } from "./round.ts";
import { type Plant, plants } from "./plant.ts";
import { enumerateServerCells } from "./server-cell.ts";
import { impossibleList, lineOf, roundOf, tableOf } from "./report.ts";

const usage = `usage: npm run crashpoints -- [--only text] [--verbose] [--seed N] [--worlds N] [--plant mistake]

Stops, kills and cuts off processes at every named point of a call, in every state that its authorization can have
there. Each cell is a spend of its own. Then everything heals, the same call is made again from a fresh process, days
pass, and the vendor's ledger, the rows, the counters and the callers' answers are compared. A cell that was not at its
point and in its state when it was struck is played again. Exit code 1 if something differs, or was missed every time.

  --only     only cells whose name contains this
  --verbose  one line per cell, those that cannot be included
  --seed     the order in which the cells are played; all of them are
  --worlds   how many rounds of cells are played at a time, each with servers and a database of its own; 2 unless told
  --plant    with a mistake that has to be found: ${plants.join(", ")}`;

const print = (text: string): void => void process.stdout.write(`${text}\n`);

async function main(): Promise<number> {
  const { values } = parseArgs({
    options: {
      only: { type: "string", default: "" },
      verbose: { type: "boolean", default: false },
      seed: { type: "string", default: "1" },
      worlds: { type: "string", default: "2" },
      plant: { type: "string" },
      help: { type: "boolean", default: false },
    },
  });
  if (values.help) {
    print(usage);
    return 0;
  }
  const plant = plants.find((one) => one === values.plant);
  if (values.plant !== undefined && plant === undefined) throw new Error(`--plant takes ${plants.join(", ")}`);
  const cells = [...enumerateCells(), ...enumerateServerCells()].filter(({ name }) => name.includes(values.only));
  const inProcess = cells.filter(({ server }) => server === undefined);
  const inServer = cells.filter(({ server }) => server !== undefined);
  const begun = performance.now();
  const played = await play(cells, {
    seed: Number(values.seed),
    ...(plant === undefined ? {} : { plant: plant satisfies Plant }),
    worlds: Number(values.worlds),
    onRound: (round, left, ms) => {
      const isWorthALine = ({ violations, missed }: Played) =>
        values.verbose || violations.length > 0 || missed.length > 0;
      for (const one of round) if (isWorthALine(one)) print(lineOf(one));
      print(`${round.length} cells in ${Math.round(ms / 1000)} s: ${roundOf(round)}; ${left} rounds are left`);
    },
  });
  if (values.verbose) print(impossibleList(cells));
  print(
    `\n${tableOf(inProcess, played, actions)}\n\n${tableOf(inServer, played, serverActions)}\n\n${Math.round((performance.now() - begun) / 1000)} s`,
  );
  const violated = played.filter(({ violations }) => violations.length > 0).length;
  const missed = played.filter((one) => one.missed.length > 0).length;
  const impossible = cells.filter(({ route }) => "impossible" in route).length;
  print(
    `crashpoints: ${cells.length} cells, ${impossible} impossible, ${played.length - missed} played, ${missed} missed, ${violated} violations`,
  );
  return violated + missed === 0 ? 0 : 1;
}

try {
  process.exit(await main());
} catch (error) {
  process.stderr.write(`crashpoints: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}\n`);
  process.exit(1);
}
