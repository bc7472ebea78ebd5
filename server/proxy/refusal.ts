/** Why a request is not forwarded: an answer in words, before it takes a vendor's shape. */
export interface ProxyRefusal {
  /** HTTP status. None of them makes a vendor's client try again by itself, unless `retry` says so. */
  readonly status: 400 | 401 | 403 | 404 | 405 | 408 | 409 | 413 | 414 | 415 | 417 | 421 | 431 | 500 | 503;
  /** A stable word, for example "duplicate_parameter". */
  readonly code: string;
  /** One sentence: what is wrong, and what to do. Never repeats what was sent. */
  readonly message: string;
  /** The parameter or header that is meant, where there is one. */
  readonly param?: string;
  /** The client may send the same request again. */
  readonly retry?: true;
}

/** Thrown while a request is read; nothing was sent to a vendor. */
export class RefusedRequest extends Error {
  override readonly name = "RefusedRequest";
  readonly refusal: ProxyRefusal;

  constructor(refusal: ProxyRefusal) {
    super(refusal.message);
    this.refusal = refusal;
  }
}

export function refuse(status: ProxyRefusal["status"], code: string, message: string, param?: string): RefusedRequest {
  return new RefusedRequest({ status, code, message, ...(param === undefined ? {} : { param }) });
}
