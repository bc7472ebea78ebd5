import { createServer, type IncomingMessage } from "node:http";
import type { AddressInfo } from "node:net";
import { serveParent } from "../child.ts";

/** Stripe as far as the bench asks, as fast as Node answers: remembers nothing but the payments that are not confirmed. */
const intents = new Map<string, object>();
let made = 0;

function answerTo(method: string, path: string, form: URLSearchParams): object {
  const [, , collection = "", id = "", action = ""] = path.split("/");
  if (collection === "account") return { id: "acct_bench", object: "account" };
  const charge = { object: "charge", paid: true, captured: true, status: "succeeded", ...common(form) };
  if (collection === "charges") return { id: method === "GET" ? id : newId("ch"), ...charge };
  if (collection === "customers") return { id: newId("cus"), object: "customer", ...common(form) };
  if (collection !== "payment_intents") return { error: { type: "invalid_request_error", message: path } };
  return action === "confirm" ? confirmed(id) : createdIntent(form);
}

function createdIntent(form: URLSearchParams): object {
  const id = newId("pi");
  const intent = { id, object: "payment_intent", ...common(form), capture_method: "automatic" };
  const isConfirmed = form.get("confirm") === "true";
  if (!isConfirmed) intents.set(id, intent);
  return {
    ...intent,
    ...(isConfirmed ? paid(intent.amount) : { status: "requires_confirmation", amount_received: 0 }),
  };
}

function confirmed(id: string): object {
  const intent = intents.get(id) as ReturnType<typeof common> | undefined;
  intents.delete(id);
  return { ...intent, ...paid(intent?.amount ?? 0) };
}

function paid(amount: number): object {
  return { status: "succeeded", amount_received: amount, latest_charge: newId("ch") };
}

/** An answer is about as long as a short one of Stripe's. */
function common(form: URLSearchParams) {
  const metadata = [...form].flatMap(([key, value]) => {
    const [, name] = /^metadata\[(.+)\]$/.exec(key) ?? [];
    return name === undefined ? [] : [[name, value] as const];
  });
  return {
    amount: Number(form.get("amount") ?? 0),
    currency: form.get("currency") ?? "usd",
    created: 1_790_000_000,
    livemode: false,
    metadata: Object.fromEntries(metadata),
    description: "x".repeat(1_000),
  };
}

function newId(prefix: string): string {
  made += 1;
  return `${prefix}_${made.toString(36).padStart(24, "0")}`;
}

async function bodyOf(request: IncomingMessage): Promise<string> {
  const chunks: Buffer[] = [];
  for await (const chunk of request as AsyncIterable<Buffer>) chunks.push(chunk);
  return Buffer.concat(chunks).toString("utf8");
}

const server = createServer({ keepAliveTimeout: 600_000 }, (request, response) => {
  void bodyOf(request).then((body) => {
    const path = (request.url ?? "").split("?")[0] ?? "";
    const text = JSON.stringify(answerTo(request.method ?? "", path, new URLSearchParams(body)));
    response.writeHead(200, { "content-type": "application/json", "content-length": Buffer.byteLength(text) });
    response.end(text);
  });
});
server.listen(0, "127.0.0.1", () => {
  serveParent({ url: `http://127.0.0.1:${(server.address() as AddressInfo).port}` }, async () => {
    server.closeAllConnections();
    server.close();
  });
});
