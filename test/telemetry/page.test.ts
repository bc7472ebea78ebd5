import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { attribute } from "@holdfast/server/telemetry-attributes";
import { metric } from "@holdfast/server/telemetry-metrics";
import { ATTRIBUTES } from "@holdfast/sdk";
import * as conventions from "@opentelemetry/semantic-conventions";
import { describe, expect, test } from "vitest";
import { parse } from "yaml";

const root = join(import.meta.dirname, "../..");
const page = readFileSync(join(root, "docs/telemetry.md"), "utf8");

/** The cells of the table below a heading, without the row of its names. */
function tableOf(heading: string): string[][] {
  const section = page.split(`\n## ${heading}\n`)[1]?.split("\n## ")[0] ?? "";
  const rows = section.split("\n").filter((line) => line.startsWith("|"));
  return rows.slice(2).map((row) =>
    row
      .slice(1, -1)
      .split(" | ")
      .map((cell) => cell.trim()),
  );
}
const word = (cell = ""): string => cell.replaceAll("`", "");

const sources = ["server", "sdk"].flatMap((folder) =>
  readdirSync(join(root, folder), { recursive: true, encoding: "utf8" })
    .filter((file) => file.endsWith(".ts") && !/node_modules|^dist\/|^examples\//.test(file))
    .map((file) => ({ file: `${folder}/${file}`, text: readFileSync(join(root, folder, file), "utf8") })),
);

describe("docs/telemetry.md", () => {
  test("has every metric with its kind, unit and labels, and no other", () => {
    const written = tableOf("Metrics").map(([name, kind, unit, labels, text]) => [
      word(name),
      kind,
      word(unit),
      word(labels),
      text,
    ]);
    const made = Object.values(metric).map(({ name, kind, unit, labels, description }) => [
      name,
      kind,
      unit,
      labels.join(", "),
      description,
    ]);
    expect(written).toEqual(made);
  });

  test("has every attribute of the server and the SDK, and no other", () => {
    const written = tableOf("Attributes").map(([name]) => word(name));
    expect(written.toSorted((a, b) => a.localeCompare(b))).toEqual(
      [...new Set<string>([...Object.values(attribute), ...Object.values(ATTRIBUTES)])].toSorted((a, b) =>
        a.localeCompare(b),
      ),
    );
  });

  test("has every name of the conventions that is set", () => {
    const used = sources.flatMap(({ text }) => text.match(/\bATTR_[A-Z_]+(?=,|\n| })/g) ?? []);
    const names = [...new Set(used)].flatMap((name) => (conventions as unknown as Record<string, string>)[name] ?? []);
    expect(names.length).toBeGreaterThan(8);
    for (const name of names) expect(page, name).toContain(`\`${name}\``);
  });

  test("has every span, and no other", () => {
    const made = new Set<string>();
    for (const { file, text } of sources) {
      for (const [, literal] of text.matchAll(
        /\b(?:startSpan|startActiveSpan|inSpan|updateName)\(\s*(["`][^"`]*["`])/g,
      )) {
        made.add(literal?.slice(1, -1).replaceAll(/\$\{[^}]*\}/g, "…") ?? "");
      }
      // Those whose names are given by others.
      if (file === "sdk/control-plane.ts") {
        for (const [, name = ""] of text.matchAll(/name: "(holdfast\.[a-z_]+)"/g)) made.add(name);
      }
      if (/startSpan\(name,/.test(text)) {
        for (const [, name = ""] of text.matchAll(/const name = `([^`]*)`/g))
          made.add(name.replaceAll(/\$\{[^}]*\}/g, "…"));
      }
    }
    const written = tableOf("Spans").map(([name]) => word(name));
    expect(written.toSorted((a, b) => a.localeCompare(b))).toEqual([...made].toSorted((a, b) => a.localeCompare(b)));
  });

  test("says what to do about every alert, and about no other", () => {
    const { groups } = parse(readFileSync(join(root, "deploy/prometheus/alerts.yaml"), "utf8")) as {
      readonly groups: readonly { readonly rules: readonly { readonly alert: string }[] }[];
    };
    expect(tableOf("Alerts").map(([name]) => word(name))).toEqual(
      groups.flatMap(({ rules }) => rules.map(({ alert }) => alert)),
    );
  });

  test("names every metric in the one file: no other creates an instrument", () => {
    const creating = sources.filter(({ text }) =>
      /\.create(?:Observable)?(?:Counter|Gauge|Histogram|UpDownCounter)\(/.test(text),
    );
    expect(creating.map(({ file }) => file)).toEqual(["server/telemetry-metrics.ts"]);
  });
});
