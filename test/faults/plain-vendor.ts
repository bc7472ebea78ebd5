import { once } from "node:events";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { text } from "node:stream/consumers";
import { setTimeout as delay } from "node:timers/promises";
import type { FaultedRequest, LedgerMovement } from "./evidence.ts";
import type { Random } from "./random.ts";

/** A vendor that knows no idempotency: whatever reaches it costs money, unless it says no. */
export interface PlainVendor {
  readonly port: number;
  readonly movements: readonly LedgerMovement[];
  readonly faulted: readonly FaultedRequest[];
  /** From now on everything is carried out and answered. */
  calm(): void;
  close(): Promise<void>;
}

const ways = { answers: 70, refuses: 8, drops_before: 6, drops_after: 8, fails_after: 4, answers_late: 4 } as const;

/** `now` is the vendors' clock. */
export async function startPlainVendor(random: Random, now: () => number): Promise<PlainVendor> {
  const movements: LedgerMovement[] = [];
  const faulted: FaultedRequest[] = [];
  let isCalm = false;
  const serve = async (message: IncomingMessage, response: ServerResponse): Promise<void> => {
    const body = JSON.parse(await text(message)) as { readonly spend: string; readonly amount: number };
    const key = String(message.headers["idempotency-key"]);
    const way = isCalm ? "answers" : random.weighted(ways);
    const executed = way !== "refuses" && way !== "drops_before";
    if (way !== "answers") {
      faulted.push({ at: now(), method: "POST", path: "/messages", key, fault: way, executed, status: null });
    }
    const id = `msg_${movements.length + 1}`;
    if (executed) {
      const metadata = { faults_spend: body.spend };
      movements.push({
        at: now(),
        kind: "message",
        id,
        amount: body.amount,
        currency: "usd",
        idempotency_key: key,
        metadata,
      });
    }
    if (way === "drops_before" || way === "drops_after") {
      message.socket.resetAndDestroy();
      return;
    }
    if (way === "answers_late") await delay(random.whole(100, 2_500));
    response.writeHead(way === "refuses" ? 402 : way === "fails_after" ? 500 : 200).end(JSON.stringify({ id }));
  };
  const server = createServer((message, response) => {
    serve(message, response).catch(() => response.destroy());
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  return {
    port: (server.address() as AddressInfo).port,
    movements,
    faulted,
    calm() {
      isCalm = true;
    },
    async close() {
      server.close();
      server.closeAllConnections();
      await once(server, "close");
    },
  };
}
