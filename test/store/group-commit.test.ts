import { expect, test } from "vitest";
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
