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

const REMEDIES: Readonly<Record<Exclude<StripeEffect, "none">, string>> = {
  charge: "Charge with paymentIntents.create({ confirm: true, … }) or charges.create.",
  payout: "Use holdfast.spend(identity, …) with a client that is not guarded, and commit what the payout moved.",
  refund: "Refunds are not guarded yet: use holdfast.spend(identity, …) with a client that is not guarded.",
  credit: "Credits are not guarded yet: use holdfast.spend(identity, …) with a client that is not guarded.",
  commit: "Stripe may charge for it later without asking: create it with a client that is not guarded, on purpose.",
  mint: "It lets somebody else pay or act outside the guard: create it with a client that is not guarded, on purpose.",
  config: "It can redirect or trigger money: change it with a client that is not guarded, on purpose.",
};

/** The error for a write that the guard does not send. */
export function unsupported(found: StripeEndpoint | undefined, method: string, path: string): SpendUnsupportedError {
  if (found === undefined || found.effect === "none") {
    return new SpendUnsupportedError(
      `${method} ${path}`,
      "is not a Stripe write this version knows",
      "Upgrade @holdfast/sdk, or send it with a client that is not guarded if it cannot move money.",
    );
  }
  return new SpendUnsupportedError(
    found.endpoint,
    `is of class "${found.effect}", which is not supported yet`,
    REMEDIES[found.effect],
  );
}
