import { RefusedRequest } from "../../server/proxy/refusal.ts";
import type { ProxyRequest, VendorDialect } from "../../server/proxy/vendor.ts";
import { createChance } from "../simulate/random.ts";
import { type FuzzedRequest, generate } from "./generate.ts";
import { outsidePolicy } from "./policy.ts";

export interface FuzzOptions {
  readonly requests: number;
  readonly seed: number;
  readonly dialect: VendorDialect;
}

export interface Finding {
  readonly number: number;
  readonly what: string;
  readonly request: FuzzedRequest;
}

export interface FuzzResult {
  readonly requests: number;
  readonly accepted: number;
  /** How often each code was the answer. */
  readonly refused: ReadonlyMap<string, number>;
  readonly outside: number;
  /** The first of them. */
  readonly findings: readonly Finding[];
}

const findingsMax = 20;

/** Reads generated requests, and compares what was read of those that were accepted with what others would have read. */
export function fuzz({ requests, seed, dialect }: FuzzOptions): FuzzResult {
  const chance = createChance(seed);
  const refused = new Map<string, number>();
  const findings: Finding[] = [];
  let accepted = 0;
  let outside = 0;
  for (let number = 0; number < requests; number += 1) {
    const request = generate(chance);
    const found = readWhole(dialect, request);
    if (found instanceof RefusedRequest) {
      refused.set(found.refusal.code, (refused.get(found.refusal.code) ?? 0) + 1);
      continue;
    }
    accepted += found instanceof Error ? 0 : 1;
    const what = found instanceof Error ? `it threw ${found.message}` : outsidePolicy(dialect, request, found);
    if (what === undefined) continue;
    outside += 1;
    if (findings.length < findingsMax) findings.push({ number, what, request });
  }
  return { requests, accepted, refused, outside, findings };
}

function readWhole(dialect: VendorDialect, { head, body }: FuzzedRequest): ProxyRequest | Error {
  try {
    dialect.tokenOf(head);
    return dialect.readBody(dialect.readHead(head), Buffer.from(body, "latin1"));
  } catch (error) {
    return error instanceof Error ? error : new Error(String(error));
  }
}
