/** What a port of the proxy accepts. Everything has a bound; times are milliseconds, sizes are bytes. */
export interface ProxyLimits {
  /** Most header lines of a request. Checked here because Node drops the surplus without a word. */
  readonly headersMax: number;
  /** Most bytes of the request line and all headers. */
  readonly headerBytesMax: number;
  /** Most bytes of the request target. */
  readonly targetBytesMax: number;
  /** How long a request's head may take to arrive, and a new connection to begin one; also a TLS handshake. */
  readonly headMs: number;
  /** How long the body may take to arrive, from the moment it is wanted. */
  readonly bodyMs: number;
  /** How long a client may take to read its answer. */
  readonly answerMs: number;
  readonly connectionsMax: number;
  readonly connectionsPerPeerMax: number;
  /** Requests that wait on one connection behind the one that runs. */
  readonly pipelinedMax: number;
  /** After that many answers a connection is closed, so that long-lived clients spread over new replicas. */
  readonly requestsPerConnectionMax: number;
  /** How long a connection may be without a request, once one of its requests was let in. */
  readonly idleMs: number;
  /** What such a client is told. Less than `idleMs`: the client gives the connection up first. */
  readonly idleToldMs: number;
  /** The same for a client that has shown nothing that opens a door. */
  readonly strangerIdleMs: number;
  readonly strangerIdleToldMs: number;
  /** How long what a client still sends is read and dropped after a refusal, so that it gets to read the refusal. */
  readonly lingerMs: number;
  /** How long a connection without a request is kept while the port is shut down. */
  readonly quietMs: number;
  /** How often heads that are late are looked for. `headMs` is exceeded by at most this. */
  readonly sweepMs: number;
}

export const defaultProxyLimits: ProxyLimits = {
  headersMax: 64,
  headerBytesMax: 16_384,
  targetBytesMax: 8_192,
  headMs: 10_000,
  bodyMs: 30_000,
  answerMs: 60_000,
  connectionsMax: 10_000,
  connectionsPerPeerMax: 2_048,
  pipelinedMax: 8,
  requestsPerConnectionMax: 10_000,
  // The side that closes an idle connection must not be ours: a POST that meets the closing socket is lost, and some
  // clients send it again by themselves. Clients keep a connection for 90 s (Go) or 5 minutes (OkHttp), load balancers
  // for up to 10 minutes; those without a limit of their own obey the hint.
  idleMs: 620_000,
  idleToldMs: 600_000,
  strangerIdleMs: 20_000,
  strangerIdleToldMs: 10_000,
  lingerMs: 2_000,
  quietMs: 2_000,
  sweepMs: 1_000,
};
