import pg from "pg";
import { given, serveParent } from "../child.ts";
import type { Contender, Load, Surroundings } from "./contender.ts";
import { type Drive, drive } from "./drive.ts";
import { type Flood, flood } from "./flood.ts";
import { openHoldfast } from "./holdfast.ts";
import { openInsert } from "./insert.ts";
import { openOneStatement, openRecipe } from "./recipe.ts";
import { openRedis } from "./redis.ts";

/** Every contender of the engine, by the name that the tables show. */
const contenders: Readonly<Record<string, (around: Surroundings) => Promise<Contender>>> = {
  holdfast: openHoldfast,
  recipe: openRecipe,
  statement: openOneStatement,
  redis: openRedis,
  insert: (around) => openInsert(around, 1),
  insert500: (around) => openInsert(around, 500),
};

// Every statement, whoever sends it: one answer to one question.
let statements = 0;
const prototype = pg.Client.prototype as unknown as { query: (this: pg.Client, ...all: unknown[]) => unknown };
const { query } = prototype;
prototype.query = function counted(...all) {
  statements += 1;
  return query.apply(this, all);
};

const { kind = "", connection = "{}", folder = "", root = "", isFirst = "true" } = given();
const open = contenders[kind];
if (open === undefined) throw new Error(`there is no contender ${kind}`);
const around = { connection: JSON.parse(connection) as pg.ClientConfig, folder, root, isFirst: isFirst === "true" };
const contender = await open(around);

serveParent({}, () => contender.close(), {
  drive: (asked: Drive) => drive(contender, asked, () => contender.roundTrips?.() ?? statements),
  tune: async ({ load, callers, calls }: Drive) => contender.tune?.(load, callers, calls),
  flood: (asked: Flood) => flood(contender, asked),
  counted: (load: Load) => contender.counted(load),
  reopen: () => contender.reopen(),
});
