/** What is stored of one secret: never the secret itself. */
export interface StoredSecret {
  readonly sha256: Uint8Array;
  /** How long it still opens, from when it was read; undefined: until it is exchanged. */
  readonly validForMs: number | undefined;
}

/** A repeat of a creation is recognised by these. */
export interface CreationRequest {
  /** 32 hex digits that the caller has chosen. */
  readonly requestId: string;
  /** Of everything that was asked for. */
  readonly sha256: Uint8Array;
}
