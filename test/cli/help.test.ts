import { expect, test } from "vitest";
import { run } from "./terminal.ts";

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
