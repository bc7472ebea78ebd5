import { expect, test } from "vitest";
import { sleep, systemRandom } from "../../sdk/runtime.ts";
import { createVirtualTime } from "./virtual-time.ts";

test("what is due runs in order, with what it starts in between", async () => {
  const time = createVirtualTime();
  const start = time.now();
  const seen: string[] = [];
  const say = (what: string) => () => seen.push(`${what} ${time.now() - start}`);
  time.setTimeout(say("late"), 300);
  time.clearTimeout(time.setTimeout(say("cleared"), 100));
  void sleep({ clock: time, timers: time, random: systemRandom }, 100).then(() => time.setTimeout(say("nested"), 100));
  await time.advance(299);
  expect(seen).toEqual(["nested 200"]);
  await time.advance(1);
  expect(seen).toEqual(["nested 200", "late 300"]);
});

test("a jump fires nothing, and a second clock learns only of the rest", async () => {
  let moved = 0;
  const time = createVirtualTime((ms) => {
    moved += ms;
  });
  const start = time.now();
  let fired = false;
  time.setTimeout(() => {
    fired = true;
  }, 100);
  time.jump(1_000);
  expect(time.now() - start).toBe(1_000);
  expect(fired).toBe(false);
  await time.advance(10);
  expect(fired).toBe(true);
  expect(moved).toBe(10);
});

test("a flowing time waits for work, but not past the work's own limit", async () => {
  const time = createVirtualTime();
  time.flow();
  const work = Promise.withResolvers<void>();
  const fired = Promise.withResolvers<number>();
  const start = time.now();
  void time.during(work.promise, 1_000);
  time.setTimeout(() => fired.resolve(time.now() - start), 500);
  const early = await Promise.race([
    fired.promise,
    (async () => {
      for (let turns = 0; turns < 100; turns += 1) await new Promise((resolve) => setImmediate(resolve));
      return "waits";
    })(),
  ]);
  expect(early).toBe("waits");
  work.resolve();
  expect(await fired.promise).toBe(500);
  const hanging = new Promise<void>(() => undefined);
  void time.during(hanging, 100);
  await time.advance(100);
  await new Promise<void>((resolve) => time.setTimeout(resolve, 50));
  expect(time.now() - start).toBe(650);
  time.stop();
});
