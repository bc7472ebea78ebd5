import type { FaultSpec } from "./fault-spec.ts";
import type { ReceivedRequest } from "./request-log.ts";

/** A fault that was set. */
export interface Fault {
  readonly id: string;
  readonly spec: FaultSpec;
  /** Resolves with the first `count` requests it met (1 unless told), as soon as they are there. */
  arrivals(count?: number): Promise<ReceivedRequest[]>;
  /** Opens the gate of a `hold…` fault, for those who wait and those to come. */
  release(): void;
  /** No further request meets it. Those that it holds stay held until released. */
  remove(): void;
}

class ActiveFault implements Fault {
  readonly id: string;
  readonly spec: FaultSpec;
  readonly gate: Promise<void>;
  #open: () => void = () => {};
  #matched = 0;
  #removed = false;
  readonly #met: ReceivedRequest[] = [];
  readonly #waiting: { count: number; resolve: (met: ReceivedRequest[]) => void }[] = [];

  constructor(id: string, spec: FaultSpec) {
    this.id = id;
    this.spec = spec;
    this.gate = new Promise((resolve) => {
      this.#open = resolve;
    });
  }

  arrivals(count = 1): Promise<ReceivedRequest[]> {
    return new Promise((resolve) => {
      this.#waiting.push({ count, resolve });
      this.#tell();
    });
  }

  release(): void {
    this.#open();
  }

  remove(): void {
    this.#removed = true;
  }

  get isUsedUp(): boolean {
    return this.#removed || this.#met.length >= (this.spec.times ?? 1);
  }

  /** Whether this request runs into the fault; counts it if so. */
  meets(request: ReceivedRequest): boolean {
    if (this.isUsedUp || !matches(this.spec, request)) return false;
    this.#matched += 1;
    if (this.#matched < (this.spec.match?.nth ?? 1)) return false;
    this.#met.push(request);
    this.#tell();
    return true;
  }

  #tell(): void {
    for (const waiter of this.#waiting) {
      if (this.#met.length >= waiter.count) waiter.resolve(this.#met.slice(0, waiter.count));
    }
  }
}

export type { ActiveFault };

/** The faults in force, oldest first; the first that matches a request is the one it meets. */
export class Faults {
  readonly #faults = new Map<string, ActiveFault>();
  #count = 0;

  set(spec: FaultSpec): Fault {
    this.#count += 1;
    const fault = new ActiveFault(`fault_${this.#count}`, spec);
    this.#faults.set(fault.id, fault);
    return fault;
  }

  get(id: string): Fault | undefined {
    return this.#faults.get(id);
  }

  /** Removes all faults and lets go of every held request. */
  clear(): void {
    for (const fault of this.#faults.values()) {
      fault.remove();
      fault.release();
    }
  }

  take(request: ReceivedRequest): ActiveFault | undefined {
    for (const fault of this.#faults.values()) if (fault.meets(request)) return fault;
    return undefined;
  }
}

function matches(spec: FaultSpec, request: ReceivedRequest): boolean {
  const { method, path, key, account, params } = spec.match ?? {};
  if (method !== undefined && method !== request.method) return false;
  if (typeof path === "string" && !request.path.startsWith(path)) return false;
  if (path instanceof RegExp && !path.test(request.path)) return false;
  if (key !== undefined && key !== request.key) return false;
  if (account !== undefined && account !== request.account) return false;
  return Object.entries(params ?? {}).every(([name, value]) => request.params[name] === value);
}
