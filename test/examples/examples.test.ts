import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, it } from "vitest";

const folder = join(import.meta.dirname, "..", "..", "sdk", "examples");
const examples = readdirSync(folder).filter((name) => name.endsWith(".ts"));

const published = new Set(["@holdfast/sdk", "express", "p-retry", "pg-boss", "rxjs", "stripe"]);

it.each(examples)("%s can be copied: it imports published packages only, and is short", (name) => {
  const text = readFileSync(join(folder, name), "utf8");
  const imported = [...text.matchAll(/from "([^"]+)"/g)].map(([, specifier = ""]) => specifier);
  expect(imported).toContain("@holdfast/sdk");
  expect(imported.filter((specifier) => !published.has(specifier))).toEqual([]);
  expect(text.split("\n").length).toBeLessThan(100);
  // How far a job looks back is a time; what a spend is called never is.
  const looksBack = name === "reconcile-job.ts";
  expect(text).not.toMatch(looksBack ? /idempotencyKey|randomUUID/ : /idempotencyKey|randomUUID|Date\.now/);
});

it("every example is run by a test", () => {
  const tests = readdirSync(import.meta.dirname).filter((name) => name !== "examples.test.ts");
  const texts = tests.map((name) => readFileSync(join(import.meta.dirname, name), "utf8")).join("\n");
  expect(examples.filter((name) => !texts.includes(`sdk/examples/${name}`))).toEqual([]);
  expect(examples.length).toBeGreaterThan(5);
});

it("the README names every example", () => {
  const readme = readFileSync(join(folder, "..", "README.md"), "utf8");
  expect(examples.filter((name) => !readme.includes(`\`${name}\``))).toEqual([]);
});
