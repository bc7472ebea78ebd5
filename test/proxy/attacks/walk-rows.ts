import { once } from "node:events";
import { readFile } from "node:fs/promises";
import { createServer as createHttpsServer } from "node:https";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { startApp } from "../../../server/app.ts";
import { createAuthority } from "../../support/certificates.ts";
import { charge, proxyConfig } from "../world.ts";
import type { AttackRow } from "./attack-row.ts";
import { type AttackWorld, form, hostName, raw } from "./attack-world.ts";

/** Everything that reached the vendor while `work` ran. */
async function sentDuring(world: AttackWorld, work: () => Promise<unknown>): Promise<string> {
  const before = world.way.sent().length;
  await work();
  return world.way.sent().slice(before);
}

const keyed = (key: string) => ({ "idempotency-key": key, host: hostName });

async function ask(
  world: AttackWorld,
  path: string,
  token: string,
  fields: Readonly<Record<string, string>>,
  key: string,
) {
  const bytes = raw({ target: path, body: new URLSearchParams(fields).toString(), key: [key] });
  return world.shoot(token, bytes);
}

/** The id of an object that the vault key makes. */
async function made(world: AttackWorld, token: string, key: string): Promise<string> {
  const answer = await world.exchange(token, raw({ key: [key] }));
  return (JSON.parse(answer.body) as { id: string }).id;
}

/** The vendor's answers that no proxy may hand on, or believe. */
const poisoned: readonly (readonly [what: string, bytes: string | Buffer])[] = [
  ["a bare carriage return in a header", "HTTP/1.1 200 OK\r\nX-A: b\rSet-Cookie: c\r\nContent-Length: 2\r\n\r\n{}"],
  ["two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}x"],
  ["a redirect", "HTTP/1.1 302 Found\r\nLocation: http://evil.test/\r\nContent-Length: 2\r\n\r\n{}"],
  [
    "an answer of 100 MB",
    Buffer.concat([
      Buffer.from("HTTP/1.1 200 OK\r\nContent-Length: 104857600\r\n\r\n"),
      Buffer.alloc(11 * 1024 * 1024, 32),
    ]),
  ],
  [
    "a compressed answer",
    Buffer.concat([
      Buffer.from("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nConnection: close\r\n\r\n"),
      gzipSync("{}"),
    ]),
  ],
  [
    "a flood of interim answers",
    `${"HTTP/1.1 103 Early Hints\r\n\r\n".repeat(20)}HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}`,
  ],
  ["half an answer", 'HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n{"id":"cus_'],
];

const customer = (key: string) => raw({ target: "/v1/customers", body: "name=x", key: [key] });

/** Attacks in several steps, and those whose bytes are served without their poison. */
export const walkRows: readonly AttackRow[] = [
  {
    id: "A14",
    what: "another method in a header",
    outcome: "200, sent as a POST; the header is dropped",
    async walk(world, id) {
      const token = await world.attacker(id);
      let answer = "";
      const sent = await sentDuring(world, async () => {
        const lines = ["X-HTTP-Method-Override: DELETE", "X-HTTP-Method: DELETE"];
        answer = await world.shoot(token, raw({ lines }));
      });
      return `${answer}, ${/DELETE|override/i.test(sent) || !sent.startsWith("POST ") ? "with it" : "sent as a POST; the header is dropped"}`;
    },
  },
  {
    id: "A15",
    what: "paths of the RPC port that are no canonical ones",
    outcome: "test/rpc/listener.test.ts: serves no path but the canonical one",
    // No port of the proxy: here only that the test is there.
    async walk() {
      const file = "test/rpc/listener.test.ts";
      const text = await readFile(join(import.meta.dirname, "../../..", file), "utf8");
      return `${file}: ${/test\("(serves no path but [^"]*)"/.exec(text)?.[1]}`;
    },
  },
  {
    id: "A24",
    what: "an upgrade to HTTP/2",
    outcome: "200 over HTTP/1.1; not upgraded, not passed on",
    async walk(world, id) {
      const token = await world.attacker(id);
      let answer = "";
      const sent = await sentDuring(world, async () => {
        const lines = ["Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"];
        answer = await world.shoot(token, raw({ lines }));
      });
      return `${answer} over HTTP/1.1; ${/upgrade|h2c/i.test(sent) ? "passed on" : "not upgraded, not passed on"}`;
    },
  },
  {
    id: "A25",
    what: "a Connection header that names what it wants to be without",
    outcome: "200; the vendor gets its own Authorization and key all the same",
    async walk(world, id) {
      const token = await world.attacker(id);
      let answer = "";
      const sent = await sentDuring(world, async () => {
        answer = await world.shoot(token, raw({ lines: ["Connection: Authorization, Idempotency-Key"] }));
      });
      const own = /authorization: Bearer sk_test_/i.test(sent) && /idempotency-key: [0-9a-f]{32}/i.test(sent);
      return `${answer}; ${own && !sent.includes(token) ? "the vendor gets its own Authorization and key all the same" : sent}`;
    },
  },
  {
    id: "A26",
    what: "an account that the policy names",
    outcome: "200; the account is sent once",
    async walk(world, id) {
      const token = await world.attacker(id, { proxy: { connectedAccounts: ["acct_1"] } });
      let answer = "";
      const sent = await sentDuring(world, async () => {
        answer = await world.shoot(token, raw({ lines: ["sTRIPE-aCCOUNT: acct_1"] }));
      });
      const lines = sent.match(/^stripe-account: acct_1\r$/gim) ?? [];
      const requests = sent.match(/^POST /gm) ?? [];
      return `${answer}; the account is sent ${lines.length === requests.length ? "once" : `${lines.length} times`}`;
    },
  },
  {
    id: "A28",
    what: "the idempotency key of another vault key",
    outcome: "200 with a charge of its own",
    async walk(world, id) {
      const [one, other] = [await world.attacker(`${id}a`), await world.attacker(`${id}b`)];
      const [mine, yours] = [await made(world, one, "the-same"), await made(world, other, "the-same")];
      return mine === yours ? "the same charge" : "200 with a charge of its own";
    },
  },
  {
    id: "A29",
    what: "an idempotency key again, for another amount",
    outcome: "400 idempotency_error, nothing sent",
    async walk(world, id) {
      const token = await world.attacker(id);
      await world.shoot(token, raw());
      let answer = "";
      const sent = await sentDuring(world, async () => {
        answer = await world.shoot(token, raw({ body: form.replace("4900", "5000") }));
      });
      return `${answer}, ${sent === "" ? "nothing sent" : sent}`;
    },
  },
  {
    id: "A31",
    what: "header names that every object of JavaScript has",
    outcome: "200; dropped, and the process lives",
    async walk(world, id) {
      const token = await world.attacker(id);
      const lines = ["__proto__: x", "constructor: x", "hasOwnProperty: x"];
      let answer = "";
      const sent = await sentDuring(world, async () => (answer = await world.shoot(token, raw({ lines }))));
      return `${answer}; ${/proto|constructor/i.test(sent) ? "sent" : "dropped, and the process lives"}`;
    },
  },
  {
    id: "A33",
    what: poisoned.map(([what]) => what).join(", "),
    outcome: "503 vendor_unreachable",
    async walk(world, id) {
      const token = await world.attacker(id);
      const answers = new Set<string>();
      for (const [what, bytes] of poisoned) {
        world.way.answerWith(bytes);
        const answer = await world.shoot(token, customer(what));
        answers.add(answer === "503 vendor_unreachable" ? answer : `${what}: ${answer}`);
      }
      return [...answers].join(", ");
    },
  },
  {
    id: "A33",
    what: "Set-Cookie, Location and headers that nobody knows in the vendor's answer",
    outcome: "200 without them",
    async walk(world, id) {
      const token = await world.attacker(`${id}b`);
      const body = '{"id":"cus_1","object":"customer"}';
      world.way.answerWith(
        `HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nLocation: http://evil.test/\r\nX-Evil: c\r\nAccess-Control-Allow-Origin: *\r\nContent-Type: text/html\r\nContent-Length: ${body.length}\r\n\r\n${body}`,
      );
      const answer = await world.exchange(token, customer("headers"));
      const names = answer.headers.map(([name]) => name);
      const found = names.filter((name) =>
        ["set-cookie", "location", "x-evil", "access-control-allow-origin"].includes(name),
      );
      const type = answer.headers.find(([name]) => name === "content-type")?.[1];
      return `${answer.status} ${found.length === 0 && type === "application/json" ? "without them" : `with ${names.join(", ")}`}`;
    },
  },
  {
    id: "A34",
    what: "a vendor whose certificate nobody has signed, also where verifying is turned off for the process",
    outcome: "503 vendor_unreachable, nothing sent",
    walk: askUntrustedVendor,
  },
  {
    id: "A36",
    what: "an amount beyond what a double holds",
    outcome: "403 unsupported_request, not repeated; nothing sent",
    async walk(world, id) {
      const token = await world.attacker(id);
      const body = form.replace("4900", "9007199254740993");
      let answer = "";
      const sent = await sentDuring(world, async () => {
        const { status, body: text } = await world.exchange(token, raw({ body }));
        const { error } = JSON.parse(text) as { error: { code: string; message: string } };
        const exact = error.message.includes("9007199254740993") ? error.message : "not repeated";
        answer = `${status} ${error.code}, ${exact}`;
      });
      return `${answer}; ${sent === "" ? "nothing sent" : sent}`;
    },
  },
  {
    id: "A41",
    what: "a subscription whose price nobody can tell",
    outcome: "403 unsupported_request; the vendor was asked for a preview alone",
    async walk(world, id) {
      const token = await world.attacker(`${id}w`, { allowedEndpoints: ["POST /v1/subscriptions"] });
      const fields = { customer: "cus_1", "items[0][price]": "price_1", "items[0][quantity]": "9" };
      let answer = "";
      const sent = await sentDuring(world, async () => {
        answer = await ask(world, "/v1/subscriptions", token, fields, "1");
      });
      const asked = [...new Set(sent.match(/^(?:GET|POST|DELETE) \S+/gm))].join(", ");
      const preview = asked === "POST /v1/invoices/create_preview" ? "a preview alone" : asked;
      return `${answer}; the vendor was asked for ${preview}`;
    },
  },
  {
    id: "A42",
    what: "a currency in capital letters",
    outcome: "200, sent in small ones",
    async walk(world, id) {
      const token = await world.attacker(id);
      let answer = "";
      const sent = await sentDuring(world, async () => {
        answer = await world.shoot(token, raw({ body: form.replace("usd", "USD") }));
      });
      return `${answer}, ${sent.includes("currency=usd") && !sent.includes("USD") ? "sent in small ones" : sent}`;
    },
  },
  {
    id: "A43",
    what: "a payment that is created now and confirmed later, beside another one under the same cap",
    outcome: "200, then 403 spend_cap_exceeded",
    async walk(world, id) {
      const token = await world.attacker(id);
      await world.server.cap(id, "100", { scope: { vaultKey: `vaultKeys/${id}` } });
      const fields = { amount: "6000", currency: "usd", payment_method: "pm_card_visa" };
      const answers = [];
      for (const key of ["1", "2"]) answers.push(await ask(world, "/v1/payment_intents", token, fields, key));
      return answers.join(", then ");
    },
  },
  {
    id: "A44",
    what: "a refund, to charge the same headroom again",
    outcome: "200, 200, then 403 spend_cap_exceeded",
    async walk(world, id) {
      const token = await world.attacker(id);
      await world.server.cap(id, "100", { scope: { vaultKey: `vaultKeys/${id}` } });
      const charged = await made(world, token, "1");
      const refund = await ask(world, "/v1/refunds", token, { charge: charged }, "2");
      const again = await ask(world, "/v1/charges", token, { ...charge, amount: "6000" }, "3");
      return `200, ${refund}, then ${again}`;
    },
  },
  {
    id: "A45",
    what: "an object of another vault key, a list, an expanded answer",
    outcome: "404 resource_missing, 403 lists_not_allowed, 403 expand_not_allowed, nothing sent",
    async walk(world, id) {
      const [owner, other] = [await world.attacker(`${id}a`), await world.attacker(id)];
      const of = await made(world, owner, "1");
      const answers: string[] = [];
      const get = (target: string) => raw({ method: "GET", target, key: [] });
      const sent = await sentDuring(world, async () => {
        answers.push(await world.shoot(other, get(`/v1/charges/${of}`)));
        answers.push(await world.shoot(other, raw({ target: "/v1/refunds", body: `charge=${of}` })));
        answers.push(await world.shoot(other, get("/v1/charges")));
        answers.push(await world.shoot(owner, get(`/v1/charges/${of}?expand[]=customer`)));
      });
      return [...new Set(answers), sent === "" ? "nothing sent" : sent].join(", ");
    },
  },
];

async function askUntrustedVendor(world: AttackWorld, id: string): Promise<string> {
  const requests: string[] = [];
  const vendor = createHttpsServer(createAuthority().issue("localhost"), (request, response) => {
    requests.push(request.url ?? "");
    response.end("{}");
  }).listen(0, "127.0.0.1");
  vendor.on("tlsClientError", () => undefined);
  await once(vendor, "listening");
  const before = process.env["NODE_TLS_REJECT_UNAUTHORIZED"];
  process.env["NODE_TLS_REJECT_UNAUTHORIZED"] = "0";
  const token = await world.attacker(id);
  const app = await startApp(proxyConfig(`https://localhost:${(vendor.address() as AddressInfo).port}`), {
    connection: world.server.database.connection,
    fsyncOff: "allowed",
  });
  try {
    const response = await fetch(`${app.stripeProxyUrl}/v1/charges`, {
      method: "POST",
      headers: { authorization: `Bearer ${token}`, ...keyed("1") },
      body: new URLSearchParams(charge),
    });
    const { error } = (await response.json()) as { error: { code: string } };
    return `${response.status} ${error.code}, ${requests.length === 0 ? "nothing sent" : requests.join(" ")}`;
  } finally {
    if (before === undefined) delete process.env["NODE_TLS_REJECT_UNAUTHORIZED"];
    else process.env["NODE_TLS_REJECT_UNAUTHORIZED"] = before;
    await app.close();
    vendor.closeAllConnections();
    vendor.close();
  }
}
