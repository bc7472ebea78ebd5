import { execFile } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { readFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { expect, onTestFinished, test } from "vitest";
import type { Child } from "../../bench/child.ts";
import { type Load, smallRoom } from "../../bench/engine/contender.ts";
import { redisVersion } from "../../bench/engine/redis.ts";
import { openResp } from "../../bench/engine/resp.ts";
import { type Place, verify } from "../../bench/engine/rounds.ts";

const root = join(import.meta.dirname, "../..");
const run = promisify(execFile);

async function newFolder(): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), "holdfast-bench-test-"));
  onTestFinished(() => rm(folder, { recursive: true, force: true }));
  return folder;
}

const withRedis = ["hot_vs_redis_256", "hot_vs_redis_1024", "many_vs_redis_256"];
const names = [
  "hot_vs_recipe_64",
  "hot_vs_recipe_256",
  "many_vs_recipe_256",
  ...withRedis,
  "batch_rpc_vs_raw_insert",
  "sdk_vs_noop_rpc_256",
  "unary_vs_noop_rpc_256",
  "unary_vs_connect_noop_256",
  "hot_vs_many",
  "three_caps_vs_one",
  "two_servers_vs_one_256",
  "rows_1m_vs_10k",
  "rows_5m_vs_10k",
  "p99_64_vs_p50_1",
  "lone_vs_insert",
  "overload_goodput",
  "snapshot_hot_vs_none",
  "snapshot_many_vs_none",
];

test("a quick run prints every ratio of the engine, leaves nothing behind, and the page says what each means", async () => {
  const folder = await newFolder();
  const { stdout } = await run(
    process.execPath,
    [
      "--conditions=holdfast-source",
      join(root, "bench/main.ts"),
      // A bench by the name of one of its ratios, too.
      "rows_1m_vs_10k",
      "engine",
      "rpc",
      "servers",
      "overload",
      "sustained",
      "--quick",
    ],
    { cwd: root, env: { ...process.env, TMPDIR: folder } },
  );
  const printed = new Map(
    [...stdout.matchAll(/^ratio (\S+) (\d+\.\d\d|absent)$/gm)].map(([, name, value]) => [name, value]),
  );
  expect(new Set(printed.keys())).toEqual(new Set(names));
  const absent = names.filter((name) => printed.get(name) === "absent");
  expect(absent).toEqual(redisVersion() === undefined ? withRedis : []);
  expect(stdout).toMatch(/^\d+ × .*, Node v\d+.*, fdatasync of 8 KiB p50 \d/);
  expect(await readdir(folder)).toEqual([]);
  const page = readFileSync(join(root, "docs/performance.md"), "utf8");
  for (const name of names) expect(page).toContain(`\`${name}\``);
});

function placeWith(load: Load, granted: number, counted: number): Place {
  const child: Child = { ready: {}, ask: (async () => counted) as Child["ask"], close: async () => {} };
  return { name: "cheat", child, connection: {}, granted: new Map([[load, granted]]) };
}

test("a contender whose caps do not count what it granted, or that grants beyond a cap, ends the bench", async () => {
  await verify([placeWith("hot", 7, 7), placeWith("small", smallRoom, smallRoom)], ["hot", "small"]);
  await expect(verify([placeWith("hot", 7, 6)], ["hot"])).rejects.toThrow("granted 7 of hot and counts 6");
  await expect(verify([placeWith("small", 11, 11)], ["small"])).rejects.toThrow("granted 11, not ten");
});

test("answers of Redis are read in order, however they are cut", async () => {
  const path = join(await newFolder(), "s");
  const server = createServer((socket) => {
    socket.once("data", () => {
      void (async () => {
        for (const part of ["+OK\r", "\n:12\r\n$6\r\nab", "\r\ncx"]) {
          socket.write(part);
          await new Promise((resolve) => setImmediate(resolve));
        }
        socket.write("\r\n-ERR no\r\n$-1\r\n");
      })();
    });
  });
  server.listen(path);
  await once(server, "listening");
  const resp = await openResp(path);
  onTestFinished(() => {
    resp.close();
    server.close();
  });
  const asked = ["a", "b", "c", "d", "e"].map((name) => resp.command([name]));
  const answers = await Promise.allSettled(asked);
  expect(answers.map((one) => (one.status === "fulfilled" ? one.value : (one.reason as Error).message))).toEqual([
    "OK",
    12,
    "ab\r\ncx",
    "ERR no",
    null,
  ]);
});
