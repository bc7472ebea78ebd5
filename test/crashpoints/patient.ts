// Loaded before everything else in a process that has to stand at a point for as long as the check needs to bring the
// world into a state: whoever waits for an answer there has not given up meanwhile. SIGUSR2 ends that: each timer then
// fires when it would have, or at once.

const shortMs = 2_000;
const patience = 100;

/** Node's own timer; a timer that has fired or was cleared is destroyed. */
interface OpenTimer extends NodeJS.Timeout {
  _idleTimeout: number;
  readonly _destroyed: boolean;
}

const inner = globalThis.setTimeout;
const stretched = new Map<OpenTimer, number>();
let isPatient = true;

function outer(callback: (...args: unknown[]) => void, ms = 0, ...args: unknown[]): NodeJS.Timeout {
  if (!isPatient || ms < shortMs) return inner(callback, ms, ...args);
  const timer = inner(callback, Math.min(ms * patience, 2 ** 31 - 1), ...args) as OpenTimer;
  stretched.set(timer, performance.now() + ms);
  return timer;
}

globalThis.setTimeout = Object.assign(outer, { __promisify__: inner.__promisify__ }) as unknown as typeof inner;

process.on("SIGUSR2", () => {
  isPatient = false;
  for (const [timer, due] of stretched) {
    if (timer._destroyed) continue;
    timer._idleTimeout = Math.max(1, due - performance.now());
    timer.refresh();
  }
  stretched.clear();
});
