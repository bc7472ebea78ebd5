import type { RawHead } from "../../server/proxy/vendor.ts";
import { STRIPE_PARAMETERS } from "../../server/proxy/stripe-parameters.ts";
import { stripeReads, stripeWrites } from "../../server/proxy/stripe-reads.ts";
import type { Chance } from "../simulate/random.ts";
import { misspelt, mutate, spellings, wrongPairs } from "./mutate.ts";

/** A request as its bytes are: `body` has one character per byte. */
export interface FuzzedRequest {
  readonly head: RawHead;
  readonly body: string;
}

const guarded = Object.keys(STRIPE_PARAMETERS);
const values: Readonly<Record<string, readonly string[]>> = {
  amount: ["100", "1", "2500", "9007199254740993"],
  currency: ["usd", "USD", "jpy", "eur"],
  confirm: ["true", "false", "True"],
  capture: ["true", "false"],
  customer: ["cus_1", "cus_2"],
  payment_method: ["pm_1", "pm_card_visa"],
};
const anyValues = ["a", "x_1", "", "5", "caf\u00c3\u00a9", "a b", "50%", "[x]", "a&b=c", "true", "\n", "+"];

/** A request that Stripe would take, in one of the ways in which it can be spelled, and most often with something wrong. */
export function generate(chance: Chance): FuzzedRequest {
  const endpoint = chance.pick([guarded, guarded, stripeWrites, stripeReads][chance.between(0, 3)] ?? guarded);
  const at = endpoint.indexOf(" ");
  const method = endpoint.slice(0, at);
  const wrong = chance.pick([0, 0, 1, 1, 2, 3]);
  let path = endpoint.slice(at + 1).replaceAll(":id", () => `x_${chance.hex(chance.between(1, 4))}`);
  if (chance.happens(0.1)) path = `/stripe${path}`;
  const isJson = path.startsWith("/v2/") && method === "POST";
  let parameters = isJson ? generateJson(chance, endpoint) : generateForm(chance, endpoint);
  let target = path;
  let headers = generateHeaders(chance, isJson);
  let verb = method;
  for (let count = 0; count < wrong; count += 1) {
    const where = chance.between(0, 9);
    if (where < 2) target = mutate(chance, target, "target");
    else if (where < 4) headers = worsen(chance, headers);
    else if (where === 4) verb = chance.pick(["POST", "GET", "DELETE", "HEAD", "PUT", "post", method, method]);
    else parameters = mutate(chance, parameters, isJson ? "json" : "form");
  }
  if (method !== "POST" && parameters !== "") target += `?${parameters}`;
  return { head: { method: verb, target, rawHeaders: headers }, body: method === "POST" ? parameters : "" };
}

function generateForm(chance: Chance, endpoint: string): string {
  const names = STRIPE_PARAMETERS[endpoint]?.split(/\s+/).filter(Boolean) ?? ["description", "metadata", "limit"];
  const pairs: string[] = [];
  const taken = new Set<string>();
  for (let count = chance.between(0, 5); count > 0; count -= 1) {
    const important = names.filter((name) => values[name] !== undefined);
    const name = chance.pick(chance.happens(0.5) && important.length > 0 ? important : [...names, "expand"]);
    if (taken.has(name)) continue;
    taken.add(name);
    pairs.push(...formed(chance, name));
  }
  if (chance.happens(0.12) && pairs.length > 0) pairs.push(...wrongPairs(chance, chance.pick(pairs)));
  if (chance.happens(0.08)) {
    const name = chance.pick([...names, "amount"]);
    pairs.push(`${misspelt(chance, name)}=${chance.pick(values[name] ?? ["1"])}`);
  }
  return pairs.join("&");
}

/** One parameter as a value, a list, a group or a list of groups. */
function formed(chance: Chance, name: string): string[] {
  const known = values[name] ?? (name.includes("amount") ? values["amount"] : undefined);
  const write = (key: string, choices: readonly string[]): string =>
    `${spelled(chance, key)}=${spelled(chance, chance.pick(choices))}`;
  if (known !== undefined && chance.happens(0.95)) return [write(name, known)];
  switch (chance.between(0, 4)) {
    case 0:
      return [write(`${name}[]`, anyValues), write(`${name}[]`, anyValues)];
    case 1:
      return [write(`${name}[0]`, anyValues), write(`${name}[1]`, anyValues)];
    case 2:
      return [write(`${name}[a]`, anyValues), write(`${name}[b c]`, anyValues), write(`${name}[amount]`, ["5"])];
    case 3:
      return [write(`${name}[0][price]`, anyValues), write(`${name}[0][amount]`, ["5"]), write(`${name}[1][a]`, ["1"])];
    default:
      return [write(name, anyValues)];
  }
}

/** The same text for every reader: as it is where that can be, with escapes where it must, and where it need not. */
function spelled(chance: Chance, text: string): string {
  const bytes = text.split("");
  if (chance.happens(0.7)) return bytes.map((sign) => (usual.test(sign) ? sign : escaped(sign))).join("");
  return bytes.map((sign) => (usual.test(sign) && chance.happens(0.5) ? sign : escaped(sign))).join("");
}

const usual = /[\w.[\]-]/;

function escaped(sign: string): string {
  return `%${sign.charCodeAt(0).toString(16).padStart(2, "0")}`;
}

function generateJson(chance: Chance, endpoint: string): string {
  const names = STRIPE_PARAMETERS[endpoint]?.split(/\s+/).filter(Boolean) ?? ["name", "metadata"];
  const members = new Map<string, unknown>();
  for (let count = chance.between(0, 4); count > 0; count -= 1) {
    const name = chance.pick([...names, "amount"]);
    members.set(
      name,
      name === "amount"
        ? { value: chance.pick([1, 100, "100"]), currency: chance.pick(["usd", "USD"]) }
        : chance.pick<unknown>([
            "a",
            5,
            true,
            null,
            ["a", { b: "c" }],
            { a: "b", c: { d: 1.5 } },
            "caf\u00e9 \u{1f600}",
          ]),
    );
  }
  const text = JSON.stringify(Object.fromEntries(members), null, chance.pick([0, 1]));
  return Buffer.from(text).toString("latin1");
}

function generateHeaders(chance: Chance, isJson: boolean): readonly string[] {
  const type = isJson ? "application/json" : "application/x-www-form-urlencoded";
  const lines = ["Host", "127.0.0.1", "Authorization", "Bearer hf_token", "Content-Type", type];
  if (chance.happens(0.4)) lines.push("Idempotency-Key", `key-${chance.hex(4)}`);
  if (chance.happens(0.2)) lines.push("Stripe-Version", "2025-03-31.basil");
  if (chance.happens(0.1)) lines.push("Stripe-Account", "acct_1");
  if (chance.happens(0.1)) lines.push("Holdfast-Spend", "customer=c; period=2026-01; purpose=p");
  return lines;
}

/** Repeats, renames or rewrites one line. */
function worsen(chance: Chance, lines: readonly string[]): readonly string[] {
  const at = chance.between(0, lines.length / 2 - 1) * 2;
  const [name = "", value = ""] = lines.slice(at, at + 2);
  const other = chance.pick([
    value,
    `${value}x`,
    "",
    `${value}, ${value}`,
    `${value}\r\nX: y`,
    `${value}; charset=utf-8`,
    ` ${value}\t`,
    "Basic aGZfdG9rZW46",
    "Bearer other",
    "application/json",
    "acct_2",
    "gzip",
    "chunked",
    "100-continue",
  ]);
  const spelling = chance.pick([
    ...spellings(name),
    "Content-Encoding",
    "Expect",
    "Transfer-Encoding",
    "Stripe-Context",
  ]);
  return chance.happens(0.5) ? [...lines, spelling, other] : lines.with(at, spelling).with(at + 1, other);
}
