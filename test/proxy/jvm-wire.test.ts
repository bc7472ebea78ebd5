import { once } from "node:events";
import { readFileSync } from "node:fs";
import { connect, type Socket } from "node:net";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { blocksOf } from "../cli/page.ts";
import { type ProxyWorld, startProxyWorld } from "./world.ts";

const page = readFileSync(join(import.meta.dirname, "../../docs/jvm.md"), "utf8");
const messages = blocksOf(page, "http");
const policy = JSON.parse(blocksOf(page, "json")[0] ?? "") as { readonly identities: [] };

/** A request as stripe-java writes it, and what the page shows of the answer. */
interface Shown {
  readonly request: Buffer;
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: object;
}

interface Answer {
  readonly status: number;
  readonly headers: ReadonlyMap<string, string>;
  readonly body: unknown;
}

/** The page's requests, with this key in them. */
function shown(token: string): Shown[] {
  return Array.from({ length: messages.length / 2 }, (_, n) => {
    const [head = "", form = ""] = (messages[2 * n] ?? "").replace("vk_…", token).split("\n\n");
    const [answerHead = "", body = ""] = (messages[2 * n + 1] ?? "").split("\n\n");
    const [statusLine = "", ...lines] = answerHead.split("\n");
    return {
      request: Buffer.from(`${head.replaceAll("\n", "\r\n")}\r\n\r\n${form.replace(/\n$/, "")}`, "latin1"),
      status: Number(statusLine.split(" ")[1]),
      headers: Object.fromEntries(lines.map((line) => line.toLowerCase().split(": ") as [string, string])),
      body: JSON.parse(body) as object,
    };
  });
}

/** Reads whole answers off one connection, one after the other. */
class Wire {
  readonly #socket: Socket;
  #read = Buffer.alloc(0);

  private constructor(socket: Socket) {
    this.#socket = socket;
  }

  static async open(url: string): Promise<Wire> {
    const { hostname, port } = new URL(url);
    const socket = connect(Number(port), hostname);
    await once(socket, "connect");
    return new Wire(socket);
  }

  async ask(bytes: Buffer): Promise<Answer> {
    this.#socket.write(bytes);
    for (;;) {
      const answer = this.#take();
      if (answer !== undefined) return answer;
      const [chunk] = (await once(this.#socket, "data")) as [Buffer];
      this.#read = Buffer.concat([this.#read, chunk]);
    }
  }

  #take(): Answer | undefined {
    const end = this.#read.indexOf("\r\n\r\n");
    if (end < 0) return undefined;
    const [statusLine = "", ...lines] = this.#read.subarray(0, end).toString("latin1").split("\r\n");
    const headers = new Map(
      lines.map((line) => {
        const at = line.indexOf(": ");
        return [line.slice(0, at).toLowerCase(), line.slice(at + 2)] as const;
      }),
    );
    const length = Number(headers.get("content-length"));
    const body = this.#read.subarray(end + 4, end + 4 + length);
    if (body.length < length) return undefined;
    this.#read = this.#read.subarray(end + 4 + length);
    return { status: Number(statusLine.split(" ")[1]), headers, body: JSON.parse(body.toString("utf8")) };
  }

  close(): void {
    this.#socket.destroy();
  }
}

let world: ProxyWorld;

beforeAll(async () => {
  world = await startProxyWorld();
});

afterAll(() => world.close());

async function keyOfPage(id: string): Promise<string> {
  const token = await world.key(id, {
    allowedEndpoints: ["POST /v1/payment_intents", "POST /v1/charges"],
    billingPeriods: ["2026-11"],
    proxy: policy,
  });
  await world.server.cap(id, "100", { scope: { vaultKey: `vaultKeys/${id}` } });
  return token;
}

test("the page shows whole requests, each with its answer", () => {
  expect(messages).toHaveLength(8);
  for (const { request } of shown("vk_test")) {
    const [head = "", body = ""] = request.toString("latin1").split("\r\n\r\n");
    expect(head).toContain("User-Agent: Stripe/v1 JavaBindings/");
    expect(head).toContain('"lang":"Java"');
    expect(head).toContain("\r\nContent-Type: application/x-www-form-urlencoded;charset=UTF-8\r\n");
    expect(head).toContain(`\r\nContent-Length: ${body.length}`);
  }
});

describe.each([
  { name: "as stripe-java writes them", id: "jvm", escaped: (form: string) => form },
  {
    name: "with their brackets escaped",
    id: "jvmescaped",
    escaped: (form: string) =>
      form
        .replaceAll("[", "%5B")
        .replaceAll("]", "%5D")
        .replace("cus_ada1", "cus_bob1")
        .replace("cust_ada", "cust_bob"),
  },
])("the requests of the page, $name", ({ id, escaped }) => {
  test("get the answers of the page, over one connection, and one charge is made", async () => {
    const token = await keyOfPage(id);
    const before = world.charges();
    const wire = await Wire.open(world.url);
    const ids: unknown[] = [];
    for (const { request, status, headers, body } of shown(token)) {
      const [head = "", form = ""] = request.toString("latin1").split("\r\n\r\n");
      const sent = escaped(form);
      const whole = `${head.replace(/Content-Length: \d+/, `Content-Length: ${sent.length}`)}\r\n\r\n${sent}`;
      const answer = await wire.ask(Buffer.from(whole, "latin1"));
      expect(answer).toMatchObject({ status, body });
      for (const [name, value] of Object.entries(headers)) expect(answer.headers.get(name)).toBe(value);
      if (status === 200) ids.push((answer.body as { id: string }).id);
    }
    wire.close();
    expect(ids).toHaveLength(2);
    expect(new Set(ids).size).toBe(1);
    expect(world.charges() - before).toBe(1);
  });
});

test("a POST that the JDK sends again on another connection, while the first is on its way, is the same charge", async () => {
  const token = await keyOfPage("jvmagain");
  const request = shown(token)[0]?.request.toString("latin1") ?? "";
  const bytes = Buffer.from(request.replace("cus_ada1", "cus_eve1"), "latin1");
  const before = world.charges();
  const wires = [await Wire.open(world.url), await Wire.open(world.url)];
  const answers = await Promise.all(wires.map((wire) => wire.ask(bytes)));
  for (const wire of wires) wire.close();
  const twin = answers.find(({ status }) => status !== 200);
  if (twin !== undefined)
    expect(twin).toMatchObject({ status: 409, body: { error: { code: "idempotency_key_in_use" } } });
  expect(answers.filter(({ status }) => status === 200).length).toBeGreaterThan(0);
  expect(world.charges() - before).toBe(1);
});
