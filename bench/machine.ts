import { closeSync, fdatasyncSync, openSync, rmSync, writeSync } from "node:fs";
import { cpus, loadavg } from "node:os";
import { join } from "node:path";
import { percentile } from "./statistics.ts";

/** What the figures of a run depend on. `folder` is on the disk that the database writes to. */
export function describeMachine(folder: string): string {
  const [cpu] = cpus();
  const load = loadavg().map((value) => value.toFixed(1));
  const sync = syncTimes(folder);
  return (
    `${cpus().length} × ${cpu?.model.trim() ?? "unknown CPU"}, Node ${process.version}, load ${load.join(" ")}, ` +
    `fdatasync of 8 KiB p50 ${percentile(sync, 0.5).toFixed(2)} ms, p99 ${percentile(sync, 0.99).toFixed(2)} ms`
  );
}

function syncTimes(folder: string): number[] {
  const file = join(folder, "fdatasync");
  const descriptor = openSync(file, "w");
  const page = Buffer.alloc(8_192, 1);
  const times: number[] = [];
  for (let n = 0; n < 200; n += 1) {
    const begun = performance.now();
    writeSync(descriptor, page, 0, page.length, 0);
    fdatasyncSync(descriptor);
    times.push(performance.now() - begun);
  }
  closeSync(descriptor);
  rmSync(file);
  return times;
}
