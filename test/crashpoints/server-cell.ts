import { type Cell, type ServerAction, serverActions, type State, states } from "./cell.ts";
import { type Flow, flows, type Step } from "./flow.ts";
import { type Route, routeOf } from "./route.ts";

/**
 * Where a request is in a server. No product code takes part: a wire between server and database keeps the statement or
 * the answer to what was committed, a lock of the test keeps the statement in the database, and a batch that the wire
 * keeps makes the next one wait. Killed and stopped is a server process of its own.
 */
export const serverPoints = [
  "before the SQL leaves",
  "the SQL waits",
  "behind a batch",
  "committed, before the answer",
] as const;

export type ServerPoint = (typeof serverPoints)[number];

/** The statement of each RPC that writes. */
export const statements: Readonly<Record<string, string>> = {
  AuthorizeSpend: "authorize_batch",
  CommitSpend: "commit_batch",
  BindVendorReference: "bind_vendor_reference",
  VoidSpend: "void_spend",
  ReportUnknown: "report_unknown",
  IncreaseHold: "increase_hold",
  ReportReconciliation: "report_reconciliation",
  AcquireBillingLease: "acquire_billing_lease",
  RenewBillingLease: "renew_billing_lease",
  ReleaseBillingLease: "release_billing_lease",
};

/** The statements that are sent for many requests together, one batch at a time. */
export const batched: ReadonlySet<string> = new Set(["AuthorizeSpend", "CommitSpend"]);

export function enumerateServerCells(): Cell[] {
  return flows.flatMap((flow) =>
    flow.steps
      .filter(({ name }) => name in statements)
      .flatMap((step) =>
        serverPoints.flatMap((point) =>
          states.flatMap((state) => serverActions.map((action) => cellOf(flow, step, point, state, action))),
        ),
      ),
  );
}

function cellOf(flow: Flow, step: Step, server: ServerPoint, state: State, action: ServerAction): Cell {
  const edge = server === "committed, before the answer" ? "after" : "before";
  const natural = edge === "before" ? step.before : step.after;
  const atVendor = edge === "before" ? step.vendorBefore : step.vendorAfter;
  const route = narrow(routeOf({ flow, step, edge, state, natural, atVendor }), step, server);
  const nth = (step.nth ?? 1) > 1 ? ` ${step.nth}` : "";
  const name = `server, ${server} / ${flow.name} / ${step.name}${nth} / ${state} / ${action}`;
  return { name, flow, step, edge, state, action, natural, atVendor, route, server };
}

function narrow(route: Route, { name }: Step, server: ServerPoint): Route {
  if ("impossible" in route) return route;
  const isQuiet = route.acts.length === 0 && route.afterwards.length === 0 && route.runsOut === undefined;
  switch (server) {
    case "behind a batch":
      return batched.has(name) ? route : { impossible: `${name} is sent at once, beside every batch` };
    case "the SQL waits":
      if (name === "AcquireBillingLease") return { impossible: "there is no row yet that could be locked" };
      return isQuiet
        ? route
        : { impossible: "it is next in the queue of a locked row, which nobody changes meanwhile" };
    default:
      return route;
  }
}

/** The cells of each round: of one point, one action, and whether time has to run out. */
export function serverRoundsOf(cells: readonly Cell[]): Cell[][] {
  const rounds = new Map<string, Cell[]>();
  for (const cell of cells) {
    if ("impossible" in cell.route) continue;
    const days = cell.flow.subject === "lost for days" ? "days later" : "";
    const name = [cell.server, cell.action, cell.route.runsOut ?? "", days].join();
    const round = rounds.get(name);
    if (round === undefined) rounds.set(name, [cell]);
    else round.push(cell);
  }
  return [...rounds.values()];
}
