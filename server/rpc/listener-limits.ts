/** What one listener accepts. Everything has a bound; times are milliseconds, sizes are bytes. */
export interface ListenerLimits {
  /** Largest request message, after decompression. */
  readonly readMaxBytes: number;
  /** The same for the RPCs of `batchMethods`: 500 requests of the largest legal size fit. */
  readonly batchReadMaxBytes: number;
  /** Full names, for example "holdfast.v1.SpendControlService.BatchCommitSpend". */
  readonly batchMethods: ReadonlySet<string>;
  /** Largest response message. 4 MiB is what gRPC clients accept by default. */
  readonly writeMaxBytes: number;
  /** Longest deadline that a caller may ask for; also the deadline of a unary call that states none. */
  readonly timeoutMaxMs: number;
  /** Most header lines of a request. Checked here because Node drops the surplus without a word. */
  readonly headersMax: number;
  /** Most bytes of all headers of a request. */
  readonly headerBytesMax: number;
  /** Most concurrent calls on one HTTP/2 session. */
  readonly streamsMax: number;
  /** Resets by the client that one HTTP/2 session may make at once, and regains per second. */
  readonly resetBurst: number;
  readonly resetsPerSecond: number;
  readonly connectionsMax: number;
  readonly connectionsPerPeerMax: number;
  /** How long a new connection may take until its first request has arrived with all its headers. */
  readonly firstRequestMs: number;
  /** How long a unary request may take to arrive with its body. */
  readonly requestMs: number;
  /** How long a unary call may live, its answer read by the client. */
  readonly callMs: number;
  /** How long a streaming call may live. Clients of health and reflection begin a new one. */
  readonly streamMs: number;
  /** How long an HTTP/2 session that was used may be without a call. */
  readonly idleMs: number;
  /** How often the times above are checked. They are exceeded by at most this. */
  readonly sweepMs: number;
}

export const defaultLimits: ListenerLimits = {
  readMaxBytes: 64 * 1024,
  batchReadMaxBytes: 1024 * 1024,
  batchMethods: new Set([
    "holdfast.v1.SpendControlService.BatchAuthorizeSpend",
    "holdfast.v1.SpendControlService.BatchCommitSpend",
  ]),
  writeMaxBytes: 4 * 1024 * 1024,
  timeoutMaxMs: 30_000,
  headersMax: 64,
  headerBytesMax: 16_384,
  streamsMax: 128,
  // A client whose calls all time out at once resets `streamsMax` streams; twice that is still no attack.
  resetBurst: 256,
  resetsPerSecond: 64,
  connectionsMax: 10_000,
  connectionsPerPeerMax: 2_048,
  firstRequestMs: 9_000,
  requestMs: 9_000,
  callMs: 60_000,
  streamMs: 900_000,
  idleMs: 300_000,
  sweepMs: 1_000,
};
