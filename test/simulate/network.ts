import { currentProcess, type VirtualProcess } from "./virtual-process.ts";
import type { EventLoop } from "./event-loop.ts";
import type { Disturbance } from "./disturbance.ts";
import type { Trace } from "./trace.ts";
import type { Chance } from "./random.ts";

/** How one request came through. `reset`: the connection ended without an answer. */
export type Delivery<Answer> = { readonly answer: Answer } | { readonly reset: "refused" | "cut" };

export interface Link {
  readonly name: "control plane" | "vendor";
  /** Nobody listens. */
  readonly isDown: () => boolean;
}

export interface Network {
  /**
   * Carries one request from the running process and its answer back, as the network likes: late, twice, out of order, cut, or never
   * (then it never settles). `serve` runs once per copy that arrives.
   */
  exchange<Answer>(link: Link, label: string, serve: (sentAt: number) => Promise<Answer>): Promise<Delivery<Answer>>;
  /** From now on nothing is lost and nothing is late. */
  heal(): void;
  readonly messages: () => number;
}

const dayMs = 24 * 3_600_000;

export function createNetwork(loop: EventLoop, chance: Chance, disturbance: Disturbance, trace: Trace): Network {
  let healed = false;
  let messages = 0;
  const bad = (rate: number): boolean => !healed && chance.happens(rate);
  const latency = (isWrite = false): number => {
    if (isWrite && bad(disturbance.heldADay)) return chance.between(dayMs, 60 * 3_600_000);
    if (bad(disturbance.parked)) return chance.spread(3_600_000, 60 * 3_600_000);
    if (bad(disturbance.slow)) return chance.spread(200, 120_000);
    return chance.between(1, 40);
  };

  async function carry<Answer>(
    link: Link,
    label: string,
    serve: (sentAt: number) => Promise<Answer>,
    process: VirtualProcess,
    settle: (delivery: Delivery<Answer>) => void,
  ): Promise<void> {
    const id = (messages += 1);
    const say = (what: string): void => trace.add(loop.now(), `#${id} ${process.name} ${label}: ${what}`);
    const sentAt = loop.now();
    const copies = bad(disturbance.duplicate) ? 2 : 1;
    const back = (delivery: Delivery<Answer>, delay: number): void => {
      process.at(loop.now() + delay, () => settle(delivery));
    };
    say(copies === 2 ? "sent, and twice on the way" : "sent");
    if (bad(disturbance.cut)) {
      // The caller sees the end of its connection before, or instead of, whatever becomes of the request.
      back({ reset: "cut" }, chance.between(1, 2_000));
    }
    for (let copy = 0; copy < copies; copy += 1) {
      if (bad(disturbance.drop)) {
        say("lost");
        continue;
      }
      loop.at(loop.now() + latency(link.name === "vendor" && label.startsWith("POST ")), () => {
        if (link.isDown()) {
          say(`the ${link.name} is down`);
          return back({ reset: "refused" }, chance.between(1, 20));
        }
        void arrive(say, link, serve, sentAt, back);
      });
    }
  }

  async function arrive<Answer>(
    say: (what: string) => void,
    link: Link,
    serve: (sentAt: number) => Promise<Answer>,
    sentAt: number,
    back: (delivery: Delivery<Answer>, delay: number) => void,
  ): Promise<void> {
    const late =
      loop.now() - sentAt >= dayMs ? `, composed ${Math.floor((loop.now() - sentAt) / 3_600_000)} h ago` : "";
    say(`arrives at the ${link.name}${late}`);
    const answer = await currentProcess.exit(() => serve(sentAt));
    if (bad(disturbance.drop)) return say("answer lost");
    back({ answer }, latency());
  }

  return {
    exchange(link, label, serve) {
      const process = currentProcess.getStore();
      if (process === undefined) throw new Error("a request from outside of every process");
      return new Promise((resolve) => void carry(link, label, serve, process, resolve));
    },
    heal() {
      healed = true;
    },
    messages: () => messages,
  };
}
