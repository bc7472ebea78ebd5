import { type ServerProcess, startServerProcess } from "../injection/server-process.ts";
import { type Front, startFront } from "../support/front.ts";
import { type HoldWire, startHoldWire } from "./hold-wire.ts";
import { type CrashWorld, patientFlags } from "./world.ts";

/** A server that is struck, and what stands around it. */
export interface StruckServer {
  readonly wire: HoldWire;
  readonly server: ServerProcess;
  readonly baseUrl: string;
  /** Which of these texts have come to the server since this was called. */
  arrived(this: void, texts: readonly string[]): ReadonlySet<string>;
  /** Leads its clients to a healthy server from now on. */
  redirect(this: void): void;
  close(this: void): Promise<void>;
}

export async function startStruckServer({ stage }: CrashWorld): Promise<StruckServer> {
  const wire = await startHoldWire(stage.connection);
  const server = await startServerProcess({
    connection: wire.connection,
    env: {
      HOLDFAST_OPERATOR_TOKEN: stage.operatorToken,
      HOLDFAST_ALTERED_CLOCK: "allowed",
      HOLDFAST_POOL_SIZE: "100",
      HOLDFAST_SWEEP_INTERVAL_MS: "3600000",
    },
    nodeFlags: patientFlags,
  });
  let target = server.url;
  const front: Front = await startFront(() => Number(new URL(target).port));
  return {
    wire,
    server,
    baseUrl: `http://127.0.0.1:${front.port}`,
    arrived(texts) {
      const found = new Set<string>();
      // A text may come in two pieces.
      const tails = new WeakMap<object, Buffer>();
      const tailBytes = Math.max(...texts.map(({ length }) => length));
      front.watch((bytes, client) => {
        const whole = Buffer.concat([tails.get(client) ?? Buffer.of(), bytes]);
        tails.set(client, whole.subarray(-tailBytes));
        for (const text of texts) if (whole.includes(text)) found.add(text);
      });
      return found;
    },
    redirect() {
      target = stage.url;
      front.reset();
    },
    async close() {
      server.child.kill("SIGCONT");
      await server.end("SIGKILL");
      await front.close();
      await wire.close();
    },
  };
}
