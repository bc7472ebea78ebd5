import { setTimeout as delay } from "node:timers/promises";
import { describe, expect, test, vi } from "vitest";
import { HoldfastError } from "../../server/domain/errors.ts";
import { GroupCommit, type GroupCommitOptions } from "../../server/store/group-commit.ts";

type Options = GroupCommitOptions<string, string>;

/** A database that answers when the test says so. */
function gatedRun() {
  const batches: { readonly commands: readonly string[]; readonly answer: () => void; fail(error: unknown): void }[] =
    [];
  const arrivals: (() => void)[] = [];
  const run: Options["run"] = (_workspace, commands) =>
    new Promise((resolve, reject) => {
      batches.push({ commands, answer: () => resolve(commands.map((one) => `done ${one}`)), fail: reject });
      arrivals.shift()?.();
    });
  const arrived = (count: number): Promise<void> =>
    batches.length >= count
      ? Promise.resolve()
      : new Promise<void>((resolve) => arrivals.push(resolve)).then(() => arrived(count));
  return { run, batches, arrived };
}

function queue(options: Partial<Options> & Pick<Options, "run">): GroupCommit<string, string> {
  return new GroupCommit({
    name: "test",
    classify: () => "fail",
    translate: (error) => error,
    batchMax: 500,
    queueMax: 1000,
    ...options,
  });
}

const never = new AbortController().signal;

test("what arrives while a batch is in the database travels together in the next one", async () => {
  const { run, batches, arrived } = gatedRun();
  const commits = queue({ run });
  const first = commits.submit("w", "a", never);
  await arrived(1);
  const others = ["b", "c", "d"].map((one) => commits.submit("w", one, never));
  expect(batches.map((batch) => batch.commands)).toEqual([["a"]]);
  batches[0]?.answer();
  await arrived(2);
  batches[1]?.answer();
  expect(await first).toBe("done a");
  expect(await Promise.all(others)).toEqual(["done b", "done c", "done d"]);
  expect(batches.map((batch) => batch.commands)).toEqual([["a"], ["b", "c", "d"]]);
});

test("a batch is never larger than its maximum", async () => {
  const sizes: number[] = [];
  const commits = queue({
    batchMax: 3,
    run: async (_workspace, commands) => {
      sizes.push(commands.length);
      return commands.map((one) => `done ${one}`);
    },
  });
  const all = Array.from({ length: 8 }, (_, index) => commits.submit("w", `${index}`, never));
  expect((await Promise.all(all)).at(-1)).toBe("done 7");
  expect(sizes).toEqual([3, 3, 2]);
});

test("one workspace does not wait for another", async () => {
  const { run, batches, arrived } = gatedRun();
  const commits = queue({ run });
  const blocked = commits.submit("one", "a", never);
  const free = commits.submit("two", "b", never);
  await arrived(2);
  batches[1]?.answer();
  expect(await free).toBe("done b");
  batches[0]?.answer();
  await blocked;
});

test("a full queue refuses at once, says when to come back, and has done nothing", async () => {
  const { run, batches, arrived } = gatedRun();
  const commits = queue({ run, queueMax: 2 });
  const first = commits.submit("w", "a", never);
  await arrived(1);
  const waiting = [commits.submit("w", "b", never), commits.submit("w", "c", never)];
  const refused = await commits.submit("w", "d", never).catch((error: unknown) => error);
  expect(refused).toBeInstanceOf(HoldfastError);
  expect(refused).toMatchObject({ reason: "QUEUE_FULL", retryAfterMs: 250 });
  batches[0]?.answer();
  await arrived(2);
  batches[1]?.answer();
  await Promise.all([first, ...waiting]);
  expect(batches.flatMap((batch) => batch.commands)).toEqual(["a", "b", "c"]);
});

test("who would be answered after its deadline is refused at once, and all others are not", async () => {
  const { run, batches, arrived } = gatedRun();
  const slow: Options["run"] = async (workspace, commands) => {
    const answered = run(workspace, commands);
    // A timer never fires early, so a batch is at least that slow, on any machine.
    await delay(20);
    return await answered;
  };
  const commits = queue({ run: slow, batchMax: 1 });
  for (let count = 1; count <= 5; count += 1) {
    const one = commits.submit("w", `${count}`, never);
    await arrived(count);
    batches[count - 1]?.answer();
    await one;
  }
  const first = commits.submit("w", "first", never);
  await arrived(6);
  const waiting = ["a", "b", "c"].map((one) => commits.submit("w", one, never));
  // A signal of its own ends the wait where the machine stood still for so long that the deadline has passed.
  const late = performance.now() + 120;
  const signal = AbortSignal.timeout(10_000);
  const refused = await commits.submit("w", "late", signal, late).catch((error: unknown) => error);
  if (performance.now() < late) {
    expect(refused).toMatchObject({ reason: "QUEUE_FULL" });
    expect((refused as HoldfastError).retryAfterMs).toBeGreaterThanOrEqual(250);
  }
  const patient = commits.submit("w", "patient", never, performance.now() + 1e9);
  for (let count = 6; count <= 10; count += 1) {
    await arrived(count);
    batches[count - 1]?.answer();
  }
  await Promise.all([first, ...waiting, patient]);
  expect(batches.slice(5).flatMap((batch) => batch.commands)).toEqual(["first", "a", "b", "c", "patient"]);
});

test("nobody is refused for how slow the batches of another workspace are", async () => {
  vi.useFakeTimers({ toFake: ["performance", "setTimeout", "clearTimeout"] });
  try {
    const stopped = new Error("stopped by a lock");
    const run: Options["run"] = async (workspace, commands) => {
      const done = Promise.withResolvers<void>();
      setTimeout(done.resolve, workspace === "slow" ? 1_000 : 10);
      await done.promise;
      if (workspace === "slow") throw stopped;
      return commands;
    };
    const commits = queue({ run });
    for (let count = 0; count < 5; count += 1) {
      const refused = commits.submit("slow", "a", never).catch((error: unknown) => error);
      await vi.advanceTimersByTimeAsync(1_000);
      expect(await refused).toBe(stopped);
    }
    const late = performance.now() + 2_000;
    const answers = Promise.all(["b", "c"].map((one) => commits.submit("w", one, never, late)));
    const first = commits.submit("slow", "d", never).catch((error: unknown) => error);
    // It goes alone: what comes with it would be answered with it.
    await Promise.resolve();
    await expect(commits.submit("slow", "e", never, late)).rejects.toMatchObject({ reason: "QUEUE_FULL" });
    await vi.advanceTimersByTimeAsync(1_000);
    expect(await answers).toEqual(["b", "c"]);
    expect(await first).toBe(stopped);
  } finally {
    vi.useRealTimers();
  }
});

test("what comes with the first of a lane goes with it, however slow the batches before were", async () => {
  vi.useFakeTimers({ toFake: ["performance", "setTimeout", "clearTimeout"] });
  try {
    const batches: (readonly string[])[] = [];
    const run: Options["run"] = async (_workspace, commands) => {
      batches.push(commands);
      await new Promise((resolve) => setTimeout(resolve, 1_000));
      return commands;
    };
    const commits = queue({ run, batchMax: 3 });
    for (let count = 0; count < 5; count += 1) {
      const slow = commits.submit("w", "slow", never);
      await vi.advanceTimersByTimeAsync(1_000);
      await slow;
    }
    const soon = performance.now() + 2_500;
    const together = Promise.all(["a", "b", "c"].map((one) => commits.submit("w", one, never, soon)));
    // The batch is full: this one would wait for it.
    await expect(commits.submit("w", "d", never, soon)).rejects.toMatchObject({ reason: "QUEUE_FULL" });
    await vi.advanceTimersByTimeAsync(1_000);
    expect(await together).toEqual(["a", "b", "c"]);
    expect(batches.slice(5)).toEqual([["a", "b", "c"]]);
  } finally {
    vi.useRealTimers();
  }
});

test("a command whose caller has gone is dropped before it reaches the database", async () => {
  const { run, batches, arrived } = gatedRun();
  const commits = queue({ run });
  const first = commits.submit("w", "a", never);
  await arrived(1);
  const gone = new AbortController();
  const dropped = commits.submit("w", "b", gone.signal).catch((error: unknown) => error);
  const kept = commits.submit("w", "c", never);
  gone.abort(new Error("deadline"));
  batches[0]?.answer();
  await arrived(2);
  batches[1]?.answer();
  await Promise.all([first, kept]);
  expect(await dropped).toMatchObject({ message: "deadline" });
  expect(batches[1]?.commands).toEqual(["c"]);
});

test("a command whose deadline has passed is dropped, although its timer has not fired yet", async () => {
  const { run, batches, arrived } = gatedRun();
  const commits = queue({ run });
  const first = commits.submit("w", "a", never);
  await arrived(1);
  const late = new AbortController();
  const dropped = commits.submit("w", "b", late.signal, performance.now() - 1).catch((error: unknown) => error);
  const kept = commits.submit("w", "c", never, performance.now() + 3_600_000);
  batches[0]?.answer();
  await arrived(2);
  batches[1]?.answer();
  late.abort("too late");
  expect(await Promise.all([first, dropped, kept])).toEqual(["done a", "too late", "done c"]);
  expect(batches.map((batch) => batch.commands)).toEqual([["a"], ["c"]]);
});

test("one bad command fails alone", async () => {
  const commits = queue({
    classify: () => "split",
    run: async (_workspace, commands) => {
      if (commands.includes("bad")) throw new Error("bad command");
      return commands.map((one) => `done ${one}`);
    },
  });
  const results = await Promise.allSettled(["a", "bad", "b"].map((one) => commits.submit("w", one, never)));
  expect(results.map((result) => result.status)).toEqual(["fulfilled", "rejected", "fulfilled"]);
  expect(results[2]).toMatchObject({ value: "done b" });
});

test("a batch that the database rolled back for others' sake is repeated", async () => {
  let runs = 0;
  const commits = queue({
    classify: () => "retry",
    run: async (_workspace, commands) => {
      runs += 1;
      if (runs < 3) throw new Error("deadlock detected");
      return commands.map((one) => `done ${one}`);
    },
  });
  expect(await commits.submit("w", "a", never)).toBe("done a");
  expect(runs).toBe(3);
});

test("an unknown outcome is neither repeated nor taken apart, and everybody is told what it means", async () => {
  let runs = 0;
  const commits = queue({
    translate: () => new HoldfastError("OUTCOME_UNKNOWN", "perhaps"),
    run: async () => {
      runs += 1;
      throw new Error("connection lost");
    },
  });
  const results = await Promise.allSettled(["a", "b"].map((one) => commits.submit("w", one, never)));
  expect(results.map((result) => (result as PromiseRejectedResult).reason.reason)).toEqual([
    "OUTCOME_UNKNOWN",
    "OUTCOME_UNKNOWN",
  ]);
  expect(runs).toBe(1);
});

test("a database that answers too few is a bug, not somebody else's answer", async () => {
  const commits = queue({ run: async () => ["only one"] });
  const results = await Promise.allSettled(["a", "b"].map((one) => commits.submit("w", one, never)));
  expect(results.every((result) => result.status === "rejected")).toBe(true);
});

test("idle resolves when everything submitted has been answered", async () => {
  const { run, batches, arrived } = gatedRun();
  const commits = queue({ run });
  const first = commits.submit("w", "a", never);
  await arrived(1);
  let idle = false;
  const waited = commits.idle().then(() => {
    idle = true;
  });
  await Promise.resolve();
  expect(idle).toBe(false);
  batches[0]?.answer();
  await Promise.all([first, waited]);
  expect(idle).toBe(true);
});

describe("a lock that somebody else keeps", () => {
  const locked = new Error("locked");
  const rule = {
    classify: (error: unknown) => (error === locked ? "isolate" : "fail"),
    // "a1-x": the key a1 of the policy a.
    keysOf: (command: string) => [command.charAt(0), command.slice(0, 2)],
    sideMax: 2,
  } satisfies Partial<Options>;
  const outcomes = async (all: readonly Promise<string>[]) =>
    (await Promise.allSettled(all)).map((one) => (one.status === "fulfilled" ? one.value : one.reason));

  test("refuses those who need it and nobody else, and afterwards they have a lane of their own", async () => {
    const { run, batches, arrived } = gatedRun();
    const commits = queue({ run, ...rule });
    const all = ["a1-x", "b1-x", "a2-x", "c1-x"].map((one) => commits.submit("w", one, never));
    // A's two customers are tried together, then each alone.
    for (let n = 0; n < 6; n += 1) {
      await arrived(n + 1);
      if (batches[n]?.commands.some((one) => one.startsWith("a"))) batches[n]?.fail(locked);
      else batches[n]?.answer();
    }
    expect(await outcomes(all)).toEqual([locked, "done b1-x", locked, "done c1-x"]);
    const stopped = commits.submit("w", "a3-x", never);
    await arrived(7);
    const free = commits.submit("w", "b2-x", never);
    await arrived(8);
    batches[7]?.answer();
    expect(await free).toBe("done b2-x");
    batches[6]?.answer();
    expect(await stopped).toBe("done a3-x");
    // The lock is gone, and with it the lane.
    await commits.idle();
    const again = ["a4-x", "b4-x"].map((one) => commits.submit("w", one, never));
    await arrived(9);
    expect(batches[8]?.commands).toEqual(["a4-x", "b4-x"]);
    batches[8]?.answer();
    await Promise.all(again);
  });

  test("of one customer stops this customer only", async () => {
    const seen: (readonly string[])[] = [];
    const commits = queue({
      ...rule,
      run: async (_workspace, commands) => {
        seen.push(commands);
        if (commands.some((one) => one.startsWith("a2"))) throw locked;
        return commands.map((one) => `done ${one}`);
      },
    });
    const all = ["a1-x", "a2-x", "a3-x", "a2-y", "a4-x"].map((one) => commits.submit("w", one, never));
    expect(await outcomes(all)).toEqual(["done a1-x", locked, "done a3-x", locked, "done a4-x"]);
    seen.splice(0);
    expect(await outcomes(["a1-y", "a2-z"].map((one) => commits.submit("w", one, never)))).toEqual([
      "done a1-y",
      locked,
    ]);
    expect(seen).toHaveLength(2);
    expect(seen.flat()).toEqual(expect.arrayContaining(["a1-y", "a2-z"]));
  });

  test("that everybody needs is found out by a few tries", async () => {
    let tries = 0;
    const commits = queue({
      ...rule,
      run: async () => {
        tries += 1;
        throw locked;
      },
    });
    const all = Array.from({ length: 100 }, (_, n) => commits.submit("w", `a${n}`, never));
    expect(new Set(await outcomes(all))).toEqual(new Set([locked]));
    expect(tries).toBeLessThan(10);
  });
});

test("a batch without an answer is overtaken, by no more than may be under way at once", async () => {
  vi.useFakeTimers();
  try {
    const { run, batches, arrived } = gatedRun();
    const commits = queue({ run, stalledMs: 1000, sideMax: 1 });
    const all = [commits.submit("w", "a", never)];
    await arrived(1);
    all.push(commits.submit("w", "b", never));
    await vi.advanceTimersByTimeAsync(999);
    expect(batches).toHaveLength(1);
    await vi.advanceTimersByTimeAsync(1);
    expect(batches).toHaveLength(2);
    all.push(commits.submit("w", "c", never));
    await vi.advanceTimersByTimeAsync(10_000);
    expect(batches).toHaveLength(2);
    let idle = false;
    void commits.idle().then(() => (idle = true));
    batches[1]?.answer();
    await arrived(3);
    batches[2]?.answer();
    await all[2];
    expect(idle).toBe(false);
    batches[0]?.answer();
    expect(await Promise.all(all)).toEqual(["done a", "done b", "done c"]);
    await commits.idle();
  } finally {
    vi.useRealTimers();
  }
});
