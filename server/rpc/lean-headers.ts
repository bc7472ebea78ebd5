import type { IncomingHttpHeaders, OutgoingHttpHeaders } from "node:http2";

/**
 * The headers of a request as Node has read them, behind the interface of the web. Making real ones costs more than
 * all that the calls of the lean path do with them, which is to read four; they are made for whoever does anything else.
 */
export class RequestHeaders implements Headers {
  readonly #given: IncomingHttpHeaders;
  #whole: Headers | undefined;

  constructor(given: IncomingHttpHeaders) {
    this.#given = given;
  }

  get(name: string): string | null {
    if (this.#whole !== undefined || name.startsWith(":")) return this.#headers().get(name);
    const value = this.#given[name.toLowerCase()];
    if (value === undefined) return null;
    return typeof value === "string" ? value : value.join(", ");
  }

  has(name: string): boolean {
    return this.get(name) !== null;
  }

  append(name: string, value: string): void {
    this.#headers().append(name, value);
  }

  delete(name: string): void {
    this.#headers().delete(name);
  }

  set(name: string, value: string): void {
    this.#headers().set(name, value);
  }

  getSetCookie(): string[] {
    return this.#headers().getSetCookie();
  }

  forEach(callback: (value: string, key: string, parent: Headers) => void, thisArg?: unknown): void {
    for (const [key, value] of this) callback.call(thisArg, value, key, this);
  }

  keys(): ReturnType<Headers["keys"]> {
    return this.#headers().keys();
  }

  values(): ReturnType<Headers["values"]> {
    return this.#headers().values();
  }

  entries(): ReturnType<Headers["entries"]> {
    return this.#headers().entries();
  }

  [Symbol.iterator](): ReturnType<Headers["entries"]> {
    return this.#headers().entries();
  }

  #headers(): Headers {
    if (this.#whole !== undefined) return this.#whole;
    this.#whole = new Headers();
    for (const [name, value] of Object.entries(this.#given)) {
      if (name.startsWith(":") || value === undefined) continue;
      for (const one of typeof value === "string" ? [value] : value) this.#whole.append(name, one);
    }
    return this.#whole;
  }
}

/** As Node writes them. */
export function outgoing(headers: Headers): OutgoingHttpHeaders {
  const result: Record<string, string | string[]> = {};
  for (const [name, value] of headers) {
    const known = result[name];
    result[name] = known === undefined ? value : [known, value].flat();
  }
  return result;
}
