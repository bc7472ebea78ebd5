import { type AtVendor, type Flow, flows, type Natural, type Step } from "./flow.ts";
import { type Route, routeOf } from "./route.ts";
import type { ServerPoint } from "./server-cell.ts";

/** What is done to the process that has come to a point. */
export const actions = [
  "kill before",
  "kill after",
  "pause before",
  "pause after",
  "pause a day before",
  "pause a day after",
  "drop the reply",
] as const;

export type Action = (typeof actions)[number];

/** What is done to a server, or to the connection on which it would answer. */
export const serverActions = ["kill", "pause", "pause a day", "drop the reply"] as const;

export type ServerAction = (typeof serverActions)[number];

/** Where the authorization stands when that happens. */
export const states = [
  "no row",
  "HELD fresh",
  "HELD taken over",
  "bound",
  "followed",
  "IN_DOUBT",
  "COMMITTED",
  "VOIDED",
  "generation 2",
  "own generation 2",
] as const;

export type State = (typeof states)[number];

/** One point, one state, one action. */
export interface Cell {
  readonly name: string;
  readonly flow: Flow;
  readonly step: Step;
  readonly edge: "before" | "after";
  readonly state: State;
  readonly action: Action | ServerAction;
  /** Where in the server, if it is there. */
  readonly server?: ServerPoint;
  readonly natural: Natural;
  readonly atVendor: AtVendor;
  readonly route: Route;
}

/** Every point × state × action, those that cannot be included, each with its reason. */
export function enumerateCells(): Cell[] {
  return flows.flatMap((flow) =>
    flow.steps.flatMap((step) =>
      states.flatMap((state) => actions.map((action): Cell => cellOf(flow, step, state, action))),
    ),
  );
}

function cellOf(flow: Flow, step: Step, state: State, action: Action): Cell {
  const edge = action.endsWith("before") ? "before" : "after";
  const natural = edge === "before" ? step.before : step.after;
  const atVendor = edge === "before" ? step.vendorBefore : step.vendorAfter;
  const route = routeOf({ flow, step, edge, state, natural, atVendor });
  const nth = (step.nth ?? 1) > 1 ? ` ${step.nth}` : "";
  return {
    name: `${flow.name} / ${step.name}${nth} / ${state} / ${action}`,
    flow,
    step,
    edge,
    state,
    action,
    natural,
    atVendor,
    route,
  };
}
