import { AsyncLocalStorage } from "node:async_hooks";

/** The only time that passes: events in the order of their instants, and of their making where those are equal. */
export interface EventLoop {
  /** Milliseconds since the simulation began; whole. */
  now(): number;
  at(instant: number, run: () => void): EventHandle;
  /** Runs after what runs now, before the next event: the simulation's setImmediate. */
  soon(run: () => void): void;
  /** Runs events until none is left or `until` (an instant) is reached. `afterEach` runs when an event has settled. */
  run(until: number, afterEach: () => void): Promise<void>;
}

export interface EventHandle {
  cancel(): void;
}

interface Event {
  readonly instant: number;
  readonly order: number;
  run: (() => void) | undefined;
}

// The machine's own: the global one is replaced while a simulation runs.
const turnOfTheMachine = globalThis.setImmediate;

export function createEventLoop(): EventLoop {
  const heap: Event[] = [];
  const immediates: (() => void)[] = [];
  let now = 0;
  let order = 0;

  // Every promise that can go on has gone on when the machine's own loop turns.
  const settle = async (): Promise<void> => {
    await new Promise<void>((resolve) => turnOfTheMachine(() => resolve()));
    for (let next = immediates.shift(); next !== undefined; next = immediates.shift()) {
      next();
      await new Promise<void>((resolve) => turnOfTheMachine(() => resolve()));
    }
  };
  return {
    now: () => now,
    at(instant, run) {
      const event: Event = { instant: Math.max(now, Math.ceil(instant)), order: (order += 1), run };
      push(heap, event);
      return {
        cancel() {
          event.run = undefined;
        },
      };
    },
    soon: (run) => void immediates.push(AsyncLocalStorage.bind(run)),
    async run(until, afterEach) {
      await settle();
      for (let event = heap[0]; event !== undefined && event.instant <= until; event = heap[0]) {
        pop(heap);
        const { run } = event;
        if (run === undefined) continue;
        now = event.instant;
        run();
        await settle();
        afterEach();
      }
      now = Math.max(now, until);
    },
  };
}

const before = (a: Event, b: Event): boolean => a.instant < b.instant || (a.instant === b.instant && a.order < b.order);

function push(heap: Event[], event: Event): void {
  let at = heap.length;
  heap.push(event);
  while (at > 0) {
    const parent = (at - 1) >> 1;
    if (before(heap[parent] as Event, event)) break;
    heap[at] = heap[parent] as Event;
    at = parent;
  }
  heap[at] = event;
}

function pop(heap: Event[]): void {
  const last = heap.pop() as Event;
  if (heap.length === 0) return;
  let at = 0;
  for (;;) {
    let child = 2 * at + 1;
    if (child >= heap.length) break;
    if (child + 1 < heap.length && before(heap[child + 1] as Event, heap[child] as Event)) child += 1;
    if (before(last, heap[child] as Event)) break;
    heap[at] = heap[child] as Event;
    at = child;
  }
  heap[at] = last;
}
