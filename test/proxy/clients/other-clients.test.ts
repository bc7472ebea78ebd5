import { execFile } from "node:child_process";
import { join } from "node:path";
import { promisify } from "node:util";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { charge, type ProxyWorld, startProxyWorld } from "../world.ts";
import { type LossyFront, startLossyFront } from "./lossy-front.ts";

// Clients that no package of this repository brings: each runs where it is installed, and is named where it is not.

const runFile = promisify(execFile);

/** What a program prints. Without the environment's proxies, which are none of ours. */
async function run(program: string, args: readonly string[], input = ""): Promise<string> {
  const { PATH = "", HOME = "", JAVA_HOME = "" } = process.env;
  const running = runFile(program, args, { env: { PATH, HOME, JAVA_HOME }, timeout: 240_000 });
  running.child.stdin?.end(input);
  return (await running).stdout;
}

/** What the first of these calls that works prints. */
async function firstOf(calls: readonly (readonly [program: string, ...args: string[]])[]) {
  for (const [program, ...args] of calls) {
    const printed = await run(program, args).catch(() => undefined);
    if (printed !== undefined) return { program, version: /[0-9][0-9.]*/.exec(printed)?.[0] ?? "" };
  }
  return undefined;
}

const versionOfStripe = "import stripe; print(getattr(stripe, 'VERSION', None) or stripe.version.VERSION)";
const python = await firstOf([
  ["python3", "-c", versionOfStripe],
  ["/usr/bin/python3", "-c", versionOfStripe],
]);
const curl = await firstOf([["curl", "--version"]]);
// A JDK and not only a JRE: the source is compiled as it is run.
const java = await firstOf([["javac", "-version"]]);

const found = { curl, "python3-stripe": python, "the JDK": java };
const ran = Object.entries(found).filter(([, one]) => one !== undefined);
const skipped = Object.entries(found).filter(([, one]) => one === undefined);

let world: ProxyWorld;
const fronts: LossyFront[] = [];

beforeAll(async () => {
  world = await startProxyWorld({ cap: "100000" });
});

afterEach(async () => {
  await Promise.all(fronts.splice(0).map((front) => front.close()));
});

afterAll(async () => {
  await world.close();
  const missing = skipped.map(([name]) => `${name} (not installed)`).join(", ");
  console.log(
    `real clients: ran ${ran.map(([name, one]) => `${name} ${one?.version}`).join(", ") || "none"}` +
      `; skipped ${missing || "none"}`,
  );
});

const form = new URLSearchParams(charge).toString();

describe.skipIf(curl === undefined)("curl", () => {
  const ask = async (...args: readonly string[]) => {
    const printed = await run("curl", ["--silent", "--noproxy", "*", "--write-out", "\n%{http_code}", ...args]);
    const [body, status] = [printed.slice(0, printed.lastIndexOf("\n")), printed.slice(-3)];
    return { status, body: JSON.parse(body) as { id?: string; error?: { code?: string } } };
  };

  test("charges with the vault key as a bearer token or as the user name of Basic, and once", async () => {
    const token = await world.key("curl");
    const url = `${world.url}/v1/charges`;
    const before = world.charges();
    const same = ["--data", form, "--header", "Idempotency-Key: order-1"];
    const bearer = await ask(url, ...same, "--header", `Authorization: Bearer ${token}`);
    const basic = await ask(url, ...same, "--user", `${token}:`);
    expect([bearer.status, basic.status]).toEqual(["200", "200"]);
    expect(basic.body.id).toBe(bearer.body.id);
    expect(world.charges() - before).toBe(1);
    expect(await ask(`${url}/${bearer.body.id}`, "--user", `${token}:`)).toMatchObject({
      body: { id: bearer.body.id },
    });
  });

  test("waits for the go-ahead where it announces a body by Expect, and sends one in chunks", async () => {
    const token = await world.key("curlexpect");
    const url = `${world.url}/v1/charges`;
    for (const [key, header] of [
      ["1", "Expect: 100-continue"],
      ["2", "Transfer-Encoding: chunked"],
    ] as const) {
      const more = ["--header", header, "--header", `Idempotency-Key: ${key}`];
      expect((await ask(url, "--data", form, "--user", `${token}:`, ...more)).status).toBe("200");
    }
  });

  test("is refused without a key, with a password, with a path that it does not tidy, and as a file upload", async () => {
    const token = await world.key("curlrefused");
    const url = `${world.url}/v1/charges`;
    const sent = world.simulator.requests().length;
    expect(await ask(url, "--data", form, "--user", `${token}:`)).toMatchObject({
      status: "400",
      body: { error: { code: "idempotency_key_required" } },
    });
    expect((await ask(url, "--data", form)).status).toBe("401");
    expect((await ask(url, "--data", form, "--user", `${token}:secret`)).status).toBe("401");
    const climbing = await ask("--path-as-is", `${url}/../refunds`, "--data", form, "--user", `${token}:`);
    expect(climbing.body.error?.code).toBe("invalid_target");
    expect((await ask(url, "--form", "amount=4900", "--user", `${token}:`)).status).toBe("415");
    expect(world.simulator.requests()).toHaveLength(sent);
  });
});

describe.skipIf(python === undefined)("stripe-python", () => {
  interface Said {
    readonly id?: string;
    readonly [member: string]: unknown;
  }
  const file = join(import.meta.dirname, "charge.py");
  const charges = async (token: string, lines: readonly object[]): Promise<readonly Said[]> => {
    const input = lines.map((line) => `${JSON.stringify({ amount: 4900, source: "tok_visa", ...line })}\n`).join("");
    const printed = await run(python?.program ?? "", [file, world.url, token], input);
    return printed
      .trim()
      .split("\n")
      .map((line) => JSON.parse(line) as Said);
  };

  test("charges, repeats, is declined, and is refused, each as an error of its own class", async () => {
    const token = await world.key("python");
    await world.server.cap("python", "200", { scope: { vaultKey: "vaultKeys/python" } });
    const before = world.charges();
    const [own, first, again, other, declined, malformed, large] = await charges(token, [
      { key: null },
      { key: "order-1" },
      { key: "order-1" },
      { key: "order-1", amount: 5000 },
      { source: "tok_chargeDeclined" },
      { amount: -5 },
      { amount: 20000 },
    ]);
    expect(own).toMatchObject({ paid: true, amount: 4900, metadata: "5 & 6 = 11; 50% é" });
    expect(first?.id).not.toBe(own?.id);
    expect(again).toEqual(first);
    expect(other).toEqual({ error: "IdempotencyError", status: 400, code: "idempotency_error" });
    expect(declined).toEqual({ error: "CardError", status: 402, code: "card_declined" });
    expect(malformed).toEqual({ error: "InvalidRequestError", status: 400, code: "malformed_parameter" });
    expect(large).toEqual({ error: "PermissionError", status: 403, code: "spend_cap_exceeded" });
    expect(world.charges() - before).toBe(2);
    await world.server.admin.revokeVaultKey({ name: "vaultKeys/python", reason: "gone" });
    expect(await charges(token, [{}])).toEqual([
      { error: "AuthenticationError", status: 401, code: "vault_key_revoked" },
    ]);
  });
});

describe.skipIf(java === undefined)("the JDK's HttpURLConnection", () => {
  const file = join(import.meta.dirname, "Charge.java");
  const policy = {
    billingPeriods: ["2026-11"],
    proxy: {
      identities: [{ endpoint: "POST /v1/charges", customer: "body.customer", purpose: "fixed:subscription" }],
    },
  };

  test.each([
    ["a key of its own", "javaown", {}],
    ["a derived identity", "javaderived", policy],
  ])("sends a POST again by itself when the answer was lost, and charges once: %s", async (_, id, more) => {
    const token = await world.key(id, more);
    let asked = 0;
    const front = await startLossyFront(world.url, () => (asked += 1) === 1);
    fronts.push(front);
    const before = world.charges();
    const fields = new URLSearchParams({ ...charge, customer: `cus_${id}` }).toString();
    const printed = await run("java", [file, `${front.url}/v1/charges`, token, "order-1", fields]);
    const [status, ...body] = printed.split("\n");
    expect(status).toBe("200");
    expect(JSON.parse(body.join("\n"))).toMatchObject({ object: "charge", paid: true });
    // It has asked twice, without a word to whoever called it.
    expect([front.lost(), asked]).toEqual([1, 2]);
    expect(world.charges() - before).toBe(1);
    const events = (await world.events()).filter(({ actor_id: of }) => of === id);
    expect(events.map(({ disposition }) => disposition)).toEqual([
      "FORWARDED",
      id === "javaown" ? "REPLAYED" : "HEALED",
    ]);
  });
});

test.skipIf(skipped.length > 0)("all of them are installed here", () => {
  expect(ran).toHaveLength(3);
});
