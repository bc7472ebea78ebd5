import { execFile } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { policyFileRequest } from "../../../server/cli/policy-file.ts";
import { createChance } from "../../simulate/random.ts";
import type { FaultMode } from "../../support/stripe-simulator/fault-spec.ts";
import { chargesPerSpend } from "../../support/stripe-simulator/movements.ts";
import { type ProxyWorld, startProxyWorld } from "../world.ts";
import { type LossyFront, startLossyFront } from "./lossy-front.ts";

// The customers of one billing run, charged by three processes at once whose code makes a new idempotency key for every
// attempt, while answers get lost on both sides of the proxy.

const runFile = promisify(execFile);
const hourMs = 3_600_000;
const amount = 50_000;
const customers = Array.from({ length: 20 }, (_, at) => `cus_seed${at + 1}`);

let world: ProxyWorld;
const folder = mkdtempSync(join(tmpdir(), "holdfast-seed-"));
const fronts: LossyFront[] = [];

beforeAll(async () => {
  world = await startProxyWorld({ servers: 2, cap: "1000000" });
  // No day ends in the middle of a run, whenever it is made.
  await world.server.clock.set("2026-11-10T12:00:00Z");
});

afterAll(async () => {
  world.simulator.clearFaults();
  await Promise.all(fronts.map((front) => front.close()));
  await world.close();
  rmSync(folder, { recursive: true, force: true });
});

type Outcomes = Readonly<Record<string, string>>;

/** The whole job, in three processes at once; `lossRate` of the answers do not reach them. */
async function runJob(token: string, seed: number, lossRate: number): Promise<readonly Outcomes[]> {
  const random = createChance(seed);
  const file = join(import.meta.dirname, "seed-process.ts");
  return Promise.all(
    [0, 1, 2].map(async (pod) => {
      const url = world.server.apps[pod % 2]?.stripeProxyUrl ?? "";
      const front = await startLossyFront(url, () => random.happens(lossRate));
      fronts.push(front);
      const { stdout } = await runFile(
        process.execPath,
        ["--conditions=holdfast-source", file, front.url, token, String(amount), "6", ...customers],
        { timeout: 280_000 },
      );
      return JSON.parse(stdout) as Outcomes;
    }),
  );
}

/** Sets faults on requests of the next run that are drawn by lot. */
function misbehave(seed: number, count: number): void {
  const random = createChance(seed);
  const modes: readonly FaultMode[] = ["drop_after_execute", "truncate_body", "html_502_after", "drop_before_execute"];
  for (let n = 0; n < count; n += 1) {
    const mode = random.pick(modes);
    const nth = random.between(1, 2 * customers.length);
    world.simulator.fault({ mode, match: { method: "POST", path: "/v1/payment_intents", nth } });
  }
}

function chargesByCustomer(): Readonly<Record<string, number>> {
  const groups = chargesPerSpend(world.simulator.movements(), ({ customer }) => customer ?? undefined);
  return Object.fromEntries([...groups].map(([customer, charges]) => [customer, charges.length]));
}

const onceEach = Object.fromEntries(customers.map((customer) => [customer, 1]));

describe("a client that makes a new key for every attempt", () => {
  test("charges every customer once in a period through a key that derives the spend, also a day later", async () => {
    const token = await world.key("derived", {
      billingPeriods: ["2026-11"],
      proxy: {
        identities: [
          { endpoint: "POST /v1/payment_intents", customer: "body.customer", purpose: "fixed:subscription" },
        ],
      },
    });
    misbehave(11, 20);
    const first = await runJob(token, 12, 0.1);
    expect(chargesByCustomer()).toEqual(onceEach);
    world.simulator.clearFaults();
    world.simulator.advance(25 * hourMs);
    await world.server.clock.advance(25 * hourMs);
    misbehave(13, 20);
    const second = await runJob(token, 14, 0.1);
    expect(chargesByCustomer()).toEqual(onceEach);
    // Everybody was told the one payment of each customer, whoever has made it.
    const told = [...first, ...second].flatMap((outcomes) => Object.entries(outcomes));
    const payments = new Map(customers.map((customer) => [customer, new Set<string>()]));
    for (const [customer, outcome] of told) payments.get(customer)?.add(outcome);
    for (const [customer, outcomes] of payments) {
      expect([...outcomes], customer).toEqual([expect.stringMatching(/^succeeded pi_/)]);
    }
    const { authorizations } = await world.server.admin.listAuthorizations({
      vaultKey: "vaultKeys/derived",
      pageSize: 100,
    });
    expect(authorizations).toHaveLength(customers.length);
    expect(world.simulator.requests().filter(({ fault }) => fault !== null).length).toBeGreaterThan(10);
    expect(fronts.reduce((sum, front) => sum + front.lost(), 0)).toBeGreaterThan(0);
    world.simulator.clearFaults();
  });

  test("is stopped at 110 % of what was to be charged through a plain key with the policy of a file", async () => {
    const policy = join(folder, "policy.yaml");
    writeFileSync(
      policy,
      `vendor: stripe
daily_usd_cap: 11000.00
allowed_endpoints: ["POST /v1/payment_intents"]
expires_at: 2099-12-31T23:59:59Z
`,
    );
    const { token } = await world.server.admin.createVaultKey(policyFileRequest(policy, "plain"));
    const before = world.simulator.movements().length;
    misbehave(15, 20);
    const outcomes = await runJob(token, 16, 0.2);
    const moved = world.simulator.movements().slice(before);
    const cents = moved.reduce((sum, { amount: one }) => sum + one, 0);
    expect(cents).toBeLessThanOrEqual(1_100_000);
    // The three of them meant to charge 30 000.00, so they have come as far as the cap lets them, and no repeat of a
    // key that nobody else has makes two charges one.
    expect(cents).toBeGreaterThanOrEqual(1_000_000);
    expect(outcomes.flatMap((one) => Object.values(one))).toContain("StripePermissionError spend_cap_exceeded");
  });
});
