import { spawnSync } from "node:child_process";
import { join } from "node:path";
import { expect, test } from "vitest";
import { run } from "./terminal.ts";

const main = join(import.meta.dirname, "../../server/main.ts");

/** The names of the commands that a help shows. */
function namesOf(help: string): string[] {
  const [, list = ""] = help.split("\nCommands:\n");
  return [...list.matchAll(/^ {2}([a-z-]+)/gm)].map(([, name = ""]) => name).filter((name) => name !== "help");
}

test("the help of every command is words, also where a value is the default", async () => {
  const seen: string[] = [];
  const look = async (path: readonly string[]): Promise<void> => {
    const { code, out } = await run([...path, "--help"]);
    expect(code).toBe(0);
    expect(out, path.join(" ")).not.toMatch(/[{}]|undefined|\[object|default: \d{4,}/);
    seen.push(path.join(" "));
    for (const name of namesOf(out)) await look([...path, name]);
  };
  await look([]);
  expect(seen.length).toBeGreaterThan(40);
  expect((await run(["reconcile", "--help"])).out).toMatch(/--since[^-]*"48h", which is the default/);
});

/** Which files of commands a program has loaded before it ended. */
function loaded(...args: string[]): string[] {
  const report = `import { registerHooks } from "node:module";
    registerHooks({ load(url, context, next) {
      if (url.includes("/server/cli/")) process.stderr.write("loaded " + url.split("/").at(-1) + "\\n");
      return next(url, context);
    } });`;
  const hook = `data:text/javascript,${encodeURIComponent(report)}`;
  const flags = ["--conditions=holdfast-source", `--import=${hook}`, main, ...args];
  const { stderr } = spawnSync(process.execPath, flags, { encoding: "utf8", env: { PATH: process.env["PATH"] } });
  return [...stderr.matchAll(/^loaded (.*)$/gm)].map(([, file = ""]) => file);
}

test("a command loads no other command, and the help all of them", () => {
  const files = ["keys.ts", "leases.ts", "audit.ts", "reconcile.ts", "authorizations.ts"];
  const among = (...args: string[]) => loaded(...args).filter((file) => files.includes(file));
  expect(among("in-doubt", "list", "--help")).toEqual(["authorizations.ts"]);
  expect(among("--json", "leases", "--help")).toEqual(["leases.ts"]);
  expect(among("migrate", "--nonsense")).toEqual([]);
  expect(among("--help").toSorted()).toEqual(files.toSorted());
  expect(among("nonsense").toSorted()).toEqual(files.toSorted());
});
