import { SpendUnsupportedError } from "./errors.ts";
import { STRIPE_ENDPOINTS } from "./stripe-endpoint-table.ts";

/** What a Stripe write can do to money. */
export type StripeEffect = keyof typeof STRIPE_ENDPOINTS;

export interface StripeEndpoint {
  /** Method and path template, for example "POST /v1/payment_intents/:id/confirm". */
  readonly endpoint: string;
  readonly effect: StripeEffect;
}

interface Node {
  readonly children: Map<string, Node>;
  found?: StripeEndpoint;
}

function parseTable(): Node {
  const root: Node = { children: new Map() };
  for (const [effect, list] of Object.entries(STRIPE_ENDPOINTS)) {
    for (const endpoint of list.split(",").map((text) => text.trim())) {
      if (endpoint === "") continue;
      let node = root;
      for (const segment of endpoint.split(/[ /]+/)) {
        const next = node.children.get(segment) ?? { children: new Map() };
        node.children.set(segment, next);
        node = next;
      }
      node.found = { endpoint, effect: effect as StripeEffect };
    }
  }
  return root;
}

const ROOT = parseTable();

function find(node: Node, segments: readonly string[]): StripeEndpoint | undefined {
  const [segment, ...rest] = segments;
  if (segment === undefined) return node.found;
  // A written-out segment wins over ":id", as in a router.
  for (const child of [node.children.get(segment), node.children.get(":id")]) {
    const found = child === undefined ? undefined : find(child, rest);
    if (found !== undefined) return found;
  }
  return undefined;
}

// One spelling per path: no empty segment, no escape, no dot segment, no trailing slash.
const CANONICAL_PATH = /^(?:\/[A-Za-z0-9_-][A-Za-z0-9_.:-]*)+$/;

/** The table's row for a request, or undefined for a write that the table does not know. */
export function findStripeEndpoint(method: string, path: string): StripeEndpoint | undefined {
  if (!CANONICAL_PATH.test(path)) return undefined;
  return find(ROOT, [method, ...path.slice(1).split("/")]);
}

/** The error for a write that the table does not know. */
export function unknownWrite(method: string, path: string): SpendUnsupportedError {
  return new SpendUnsupportedError(
    `${method} ${path}`,
    "is not a Stripe write this version knows",
    "Upgrade @holdfast/sdk, or send it with a client that is not guarded if it cannot move money.",
  );
}
