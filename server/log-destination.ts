import { constants, fstatSync, openSync, writeSync } from "node:fs";

/** Where a logger writes its lines. Pino takes it. */
export interface LogDestination {
  write(line: string): void;
}

const waitingBytesMax = 1024 * 1024;
const retryMs = 200;

/**
 * Writes lines to a file descriptor and never waits for it: a server must not stand still because nobody reads its log
 * or because the disk of the log is full. What cannot be written waits, up to 1 MiB; more is dropped, and a line tells
 * how much once there is room again. Nothing depends on the log: what must not be lost is in the audit.
 *
 * A descriptor that cannot be opened a second time, such as a socket, is written to as it is, and then blocks.
 */
export function createLogDestination(descriptor: number): LogDestination {
  const fd = withoutBlocking(descriptor);
  let waiting: Buffer[] = [];
  let waitingBytes = 0;
  let dropped = 0;
  /** What the line that waits first says was dropped; it may not get through either. */
  let telling = 0;
  let timer: NodeJS.Timeout | undefined;

  const drop = (): void => {
    dropped += telling + waiting.length - (telling > 0 ? 1 : 0);
    telling = 0;
    waiting = [];
    waitingBytes = 0;
  };
  const flush = (): void => {
    timer = undefined;
    while (waiting.length > 0) {
      const first = waiting[0] as Buffer;
      let written: number;
      try {
        written = writeSync(fd, first);
      } catch (error) {
        // A full pipe may be read later. A full disk or a pipe without a reader takes nothing of what waits now.
        if ((error as NodeJS.ErrnoException).code !== "EAGAIN") return drop();
        timer = setTimeout(flush, retryMs).unref();
        return;
      }
      waitingBytes -= written;
      if (written < first.length) {
        waiting[0] = first.subarray(written);
      } else {
        waiting.shift();
        telling = 0;
      }
    }
  };
  return {
    write(line) {
      const bytes = Buffer.from(line);
      if (waitingBytes + bytes.length > waitingBytesMax) {
        dropped += 1;
        return;
      }
      if (dropped > 0 && waiting.length === 0) {
        const told = Buffer.from(
          `{"level":40,"time":${Date.now()},"dropped":${dropped},"msg":"log lines were lost"}\n`,
        );
        telling = dropped;
        dropped = 0;
        waiting.push(told);
        waitingBytes += told.length;
      }
      waiting.push(bytes);
      waitingBytes += bytes.length;
      if (timer === undefined) flush();
    },
  };
}

/** The same pipe or terminal under another descriptor that does not block; the original one is shared with others. */
function withoutBlocking(descriptor: number): number {
  if (fstatSync(descriptor).isFile()) return descriptor;
  try {
    return openSync(`/proc/self/fd/${descriptor}`, constants.O_WRONLY | constants.O_NONBLOCK);
  } catch {
    // No /proc, a socket, or another owner's terminal: written to as it is.
    return descriptor;
  }
}
