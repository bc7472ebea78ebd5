import { expect, test } from "vitest";
import { createSemaphore } from "../../server/store/semaphore.ts";

/** Works that end when they are told to. */
function works() {
  const started: number[] = [];
  const ends = new Map<number, PromiseWithResolvers<number>>();
  const work = (n: number) => async (): Promise<number> => {
    started.push(n);
    const end = Promise.withResolvers<number>();
    ends.set(n, end);
    return await end.promise;
  };
  return { started, ends, work };
}

const turns = async (): Promise<void> => {
  for (let n = 0; n < 10; n += 1) await Promise.resolve();
};

test("runs so many at once, lets so many wait in their order, and refuses one more", async () => {
  const turn = createSemaphore({ running: 2, waiting: 2, refusal: () => new Error("full") });
  const { started, ends, work } = works();
  const all = [1, 2, 3, 4].map((n) => turn(work(n)));
  await turns();
  expect(started).toEqual([1, 2]);
  await expect(turn(work(5))).rejects.toThrow("full");
  ends.get(2)?.resolve(2);
  await turns();
  expect(started).toEqual([1, 2, 3]);
  const late = turn(work(6));
  ends.get(1)?.resolve(1);
  ends.get(3)?.resolve(3);
  await turns();
  expect(started).toEqual([1, 2, 3, 4, 6]);
  for (const n of [4, 6]) ends.get(n)?.resolve(n);
  expect(await Promise.all([...all, late])).toEqual([1, 2, 3, 4, 6]);
});

test("passes the turn on when a work fails, and takes new ones when all have ended", async () => {
  const turn = createSemaphore({ running: 1, waiting: 1, refusal: () => new Error("full") });
  const { started, ends, work } = works();
  const failing = turn(work(1));
  const next = turn(work(2));
  await turns();
  ends.get(1)?.reject(new Error("broken"));
  await expect(failing).rejects.toThrow("broken");
  await turns();
  expect(started).toEqual([1, 2]);
  ends.get(2)?.resolve(2);
  await next;
  const last = turn(work(3));
  await turns();
  expect(started).toEqual([1, 2, 3]);
  ends.get(3)?.resolve(3);
  expect(await last).toBe(3);
});
