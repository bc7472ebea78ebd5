import { execFile, spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { LeaseOutcome } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { secret, startVendorWorld, type VendorWorld } from "../vendor/world.ts";
import { blocksOf, definitionsOf, sectionsOf } from "./page.ts";
import { granted } from "./terminal.ts";

const root = join(import.meta.dirname, "../..");
const page = readFileSync(join(root, "docs/terminal.md"), "utf8");
const sections = sectionsOf(page);
const [bufCurl = "", grpcurl = ""] = definitionsOf(page);

const require = createRequire(import.meta.url);
const buf = join(dirname(require.resolve(`@bufbuild/buf-linux-${process.arch}/package.json`)), "bin/buf");

/** What `npx` finds in this repository, without the seconds that it takes to find it. */
const npx = `npx() {
  local name="$1"; shift
  case "$name" in
    holdfast) "$NODE" --conditions=holdfast-source "$ROOT/server/main.ts" "$@" ;;
    buf) "$BUF" "$@" ;;
    *) echo "npx $name is not meant" >&2; return 1 ;;
  esac
}`;

/** Sections that do not wait for each other. The rest of the page runs before them, or after them. */
const chains = [
  ["Vault keys", "Stop something"],
  ["Caps", "Billing jobs", "Operators and auditors"],
  ["What was permitted, and what nobody knows", "The audit"],
];
const first = ["The terminal", "Is everything well?"];
const last = ["Vendor credentials and reconciliation", "Exit codes"];

test("the page has a section for everything that this test runs, and no other", () => {
  const titles = sections.map(({ title }) => title.replace(/^# The terminal.*/, "The terminal"));
  expect(titles.toSorted()).toEqual([...first, ...chains.flat(), ...last].toSorted());
  expect(sections.flatMap(({ calls }) => calls).length).toBeGreaterThan(75);
  expect([bufCurl.includes("buf curl"), grpcurl.includes("grpcurl")]).toEqual([true, true]);
});

/** A server with what the page presupposes, and a shell that calls it. */
class Shell {
  readonly variables: Record<string, string> = {};
  readonly #world: VendorWorld;
  readonly #folder: string;
  readonly #definition: string;
  #token = "";

  private constructor(world: VendorWorld, folder: string, definition: string) {
    this.#world = world;
    this.#folder = folder;
    this.#definition = definition;
  }

  static async open(definition: string): Promise<Shell> {
    const folder = await mkdtemp(join(tmpdir(), "holdfast-page-"));
    const shell = new Shell(await startVendorWorld(), folder, definition);
    await shell.#prepare();
    return shell;
  }

  async #prepare(): Promise<void> {
    const { server } = this.#world;
    await writeFile(join(this.#folder, "policy.yaml"), blocksOf(page, "yaml")[0] ?? "");
    // At a vendor of its own: what an operator settles on this page is not to be found at the simulated one.
    this.#token = await server.vaultKey("acme", { vendor: "acme" });
    const doubted = async () => (await granted(server, this.#token, { vendor: "acme", inDoubt: true })).name;
    Object.assign(this.variables, {
      HOLDFAST_URL: server.apps[0]?.url ?? "",
      HOLDFAST_OPERATOR_TOKEN: server.operatorToken,
      STRIPE_KEY: secret,
      AUTHORIZATION: await doubted(),
      OTHER_AUTHORIZATION: await doubted(),
    });
    const spends = server.spend(this.#token);
    for (const billingPeriod of ["2026-11", "2026-12"]) {
      const asked = { lease: "nightly-billing", billingPeriod, holderId: "pod-1" };
      const { billingLease } = await spends.acquireBillingLease({ ...asked, ttl: { seconds: 60n } });
      const fencingToken = billingLease?.fencingToken ?? 0n;
      await spends.releaseBillingLease({ ...asked, fencingToken, outcome: LeaseOutcome.COMPLETED });
    }
  }

  /** Charges that come after an operator has said that there are none. */
  async contradict(): Promise<void> {
    const { server } = this.#world;
    for (const variable of ["CONTRADICTION", "OTHER_CONTRADICTION"]) {
      const { name } = await granted(server, this.#token, { vendor: "acme", inDoubt: true });
      const resolution = { case: "voided", value: { vendorReference: "" } } as const;
      await server.admin.resolveAuthorization({ name, resolution, reason: "test" });
      const amount = { currency: "usd", amount: "49" };
      const late = server.spend(this.#token).commitSpend({ authorization: name, amount, vendorReference: variable });
      await expect(late).rejects.toThrow("kept as a contradiction");
      const { contradictions } = await server.admin.listContradictions({});
      this.variables[variable] = contradictions.find((one) => one.authorization === name)?.name ?? "";
    }
  }

  async run(line: string): Promise<void> {
    const script = `set -euo pipefail\n${npx}\n${this.#definition}\n${line}\n`;
    const env = {
      PATH: process.env["PATH"],
      HOME: this.#folder,
      ROOT: root,
      BUF: buf,
      NODE: process.execPath,
      // As the launcher has it.
      NODE_COMPILE_CACHE: join(this.#folder, "cache"),
    };
    const ran = await new Promise<{ code: unknown; out: string; err: string }>((resolve) => {
      const options = { cwd: this.#folder, env: { ...env, ...this.variables } };
      const child = execFile("bash", ["--norc", "-c", script], options, (error, out, err) => {
        resolve({ code: error === null ? 0 : error.code, out, err });
      });
      child.stdin?.end();
    });
    expect({ line, ...ran, out: "" }).toEqual({ line, code: 0, out: "", err: "" });
    // What the reader takes from one answer for a later call.
    const engaged = /kill (?:vendor|workspace)|EngageKillSwitch/.test(line);
    const name = /killSwitches\/[0-9a-f]+/.exec(ran.out)?.[0];
    if (engaged) this.variables[line.startsWith("call ") ? "OTHER_KILL_SWITCH" : "KILL_SWITCH"] = name ?? "";
  }

  async section(title: string): Promise<void> {
    if (title.startsWith("What was permitted")) await this.contradict();
    const { calls = [] } = sections.find((one) => one.title.replace("# ", "").startsWith(title)) ?? {};
    for (const line of calls) await this.run(line);
  }

  async close(): Promise<void> {
    await this.#world.close();
    await rm(this.#folder, { recursive: true, force: true });
  }
}

const hasGrpcurl = spawnSync("grpcurl", ["-version"]).error === undefined;

describe.each([
  { program: "buf curl", definition: bufCurl, here: true },
  // Skipped where grpcurl is not installed; npm does not have it.
  { program: "grpcurl", definition: grpcurl, here: hasGrpcurl },
])("by hand with $program", ({ definition, here }) => {
  let shell: Shell;
  beforeAll(async () => {
    if (here) shell = await Shell.open(definition);
  });
  afterAll(() => (here ? shell.close() : undefined));

  test.skipIf(!here)("every call of the page does what it says", async () => {
    for (const title of first) await shell.section(title);
    await Promise.all(
      chains.map(async (titles) => {
        for (const title of titles) await shell.section(title);
      }),
    );
    for (const title of last) await shell.section(title);
  });
});
