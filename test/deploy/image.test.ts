import { readFileSync } from "node:fs";
import { join } from "node:path";
import { beforeAll, describe, expect, test } from "vitest";
import { root } from "./container.ts";
import { execForm, parseDockerfile, readIgnore } from "./dockerfile.ts";
import { type ImageRun, runImage } from "./image-run.ts";

const stages = parseDockerfile(readFileSync(join(root, "deploy/Dockerfile"), "utf8"));
const last = stages.at(-1);
const valueOf = (name: string): string => last?.instructions.find((one) => one.name === name)?.text ?? "";

test("every stage is the Node that this repository runs on elsewhere, pinned to its patch version", () => {
  const tools = JSON.parse(readFileSync(join(root, "tools/node/package.json"), "utf8")) as {
    optionalDependencies?: Record<string, string>;
    dependencies?: Record<string, string>;
  };
  const [version] = Object.values({ ...tools.dependencies, ...tools.optionalDependencies });
  expect(stages.map(({ image }) => image)).toEqual(stages.map(() => `node:${version}-bookworm-slim`));
  expect(version).toMatch(/^24\.\d+\.\d+$/);
});

test("what runs is no root, stops by SIGTERM, says how it is, and needs no shell", () => {
  expect(valueOf("USER")).toMatch(/^[1-9]\d*:[1-9]\d*$/);
  expect(valueOf("STOPSIGNAL")).toBe("SIGTERM");
  expect(valueOf("EXPOSE")).toBe("7070");
  expect(execForm(valueOf("HEALTHCHECK").replace("CMD ", ""))).toEqual(["node", "server/main.ts", "health"]);
  for (const { name, text } of stages.flatMap(({ instructions }) => instructions)) {
    if (["RUN", "CMD", "ENTRYPOINT"].includes(name)) expect(execForm(text)[0]).toMatch(/^(node|npm|serve)$/);
  }
  // Nothing is installed or written after the last FROM.
  expect(last?.instructions.filter(({ name }) => name === "RUN")).toEqual([]);
  const [install] = stages[0]?.instructions.filter(({ name }) => name === "RUN") ?? [];
  expect(execForm(install?.text ?? "")).toEqual(expect.arrayContaining(["ci", "--ignore-scripts", "--omit=dev"]));
});

test("the context has what is copied, and nothing that is secret, installed or only for tests", () => {
  const ignored = readIgnore(join(root, ".dockerignore"));
  const out = `.env .git/config .holdfast/operator node_modules/pg/index.js server/node_modules/commander/x.js
    test/tidy.test.ts deploy/compose.yaml sdk/examples/p-retry.ts server/.env sdk/dist/index.js gen/.git/config
    sdk/API.md credential.key server/tls.key server/store/server.pem`.split(/\s+/);
  expect(out.filter((path) => !ignored(path))).toEqual([]);
  const kept = ["package.json", "package-lock.json", "server/main.ts", "server/store/migrations/0001_tables.sql"];
  expect(kept.filter(ignored)).toEqual([]);
});

describe("the Dockerfile, carried out in an empty folder", () => {
  let ran: ImageRun;
  beforeAll(async () => {
    ran = await runImage("copied");
  });

  test("does not serve in clear text unless it is told to", () => {
    expect(ran.refused).toMatchObject({ code: 78, output: expect.stringContaining("HOLDFAST_ALLOW_PLAINTEXT") });
  });

  test("migrates, serves, answers its health check and stops, as a user who can write nothing", () => {
    expect(ran.migrated).toMatchObject({ code: 0, output: expect.stringContaining("0001_tables.sql") });
    expect(ran.healthBefore.code).toBe(69);
    expect(ran.health).toMatchObject({ code: 0, output: expect.stringContaining("serves") });
    expect(ran.served.output).not.toMatch(/ERR_ACCESS_DENIED|EACCES|EROFS/);
    expect(ran.served.code).toBe(0);
  });
});
