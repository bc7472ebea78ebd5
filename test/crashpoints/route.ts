import type { State } from "./cell.ts";
import type { AtVendor, Flow, Natural, Step } from "./flow.ts";

/**
 * What another attempt, a customer or a reconciler does meanwhile:
 * - `grant`, `bind`: another attempt comes so far, and is never heard of again.
 * - `pay`, `decline`, `follow`: another attempt comes to its end.
 * - `next`: it asks for generation 2 and is never heard of again.
 * - `cancel`: it cancels the object. `browser`: the customer passes the bank's check. `reconcile`: a reconciler looks.
 */
export type Act = "grant" | "bind" | "pay" | "decline" | "follow" | "next" | "cancel" | "browser" | "reconcile";

/** How a row comes to a state: acts, then time, then acts; or why it cannot. */
export type Route =
  | { readonly impossible: string }
  | {
      readonly acts: readonly Act[];
      /** What runs out in between. */
      readonly runsOut?: "hold" | "follow time";
      readonly afterwards: readonly Act[];
    };

export interface Place {
  readonly flow: Flow;
  readonly step: Step;
  readonly edge: "before" | "after";
  readonly state: State;
  readonly natural: Natural;
  readonly atVendor: AtVendor;
}

const asIs: Route = { acts: [], afterwards: [] };
const no = (impossible: string): Route => ({ impossible });
const first = (...acts: Act[]): Route => ({ acts, afterwards: [] });
const later = (acts: readonly Act[], ...afterwards: Act[]): Route => ({ acts, runsOut: "hold", afterwards });

export function routeOf(place: Place): Route {
  const { state, natural, flow } = place;
  if (state === "own generation 2") return ownGeneration(place);
  if (state === "no row") {
    return natural === "none" ? asIs : no("a row is never deleted, and this call has one by now");
  }
  switch (natural) {
    case "none":
      return fromNothing(state, flow);
    case "held":
      return flow.kind === "one_call" ? fromHeldCall(place) : fromHeldStep(state);
    case "bound":
      return fromBound(place);
    case "followed":
      return fromFollowed(place);
    case "in_doubt":
      return fromDoubt(place);
    case "committed":
      return state === "COMMITTED" ? asIs : no("COMMITTED is final");
    case "voided":
      return fromVoided(state);
  }
}

function ownGeneration({ flow, natural }: Place): Route {
  if (flow.work === "reconcile") return no("a reconciler finds a generation 2 as it finds the first");
  return natural === "none" ? no("this call has no row yet; see generation 2") : asIs;
}

function fromNothing(state: State, { kind }: Flow): Route {
  const twoStep = kind === "two_step";
  switch (state) {
    case "HELD fresh":
      return first("grant");
    case "HELD taken over":
      return later([twoStep ? "bind" : "grant"], "grant");
    case "bound":
      return twoStep ? first("bind") : neverBound;
    case "followed":
      return first("follow");
    case "IN_DOUBT":
      return later([twoStep ? "bind" : "grant"]);
    case "COMMITTED":
      return first("pay");
    case "VOIDED":
      return first("decline");
    default:
      return first("decline", "next");
  }
}

const neverBound = no("a spend of one call is bound only when its object is followed");
const selfProof = "a two-step that was never bound is voided by its own row when its hold runs out; see generation 2";

function fromHeldStep(state: State): Route {
  switch (state) {
    case "HELD fresh":
      return asIs;
    case "HELD taken over":
    case "IN_DOUBT":
      return no(selfProof);
    case "bound":
      return later([], "bind");
    case "followed":
      return later([], "follow");
    case "COMMITTED":
      return later([], "pay");
    case "VOIDED":
      return later([]);
    default:
      return later([], "grant");
  }
}

const charged = "the vendor has charged, and nobody can prove that it has not";

function fromHeldCall({ state, atVendor, flow }: Place): Route {
  switch (state) {
    case "HELD fresh":
      return asIs;
    case "HELD taken over":
      return later([], "grant");
    case "bound":
      return neverBound;
    case "followed":
      return no("a takeover with another body is not sent, and this body is charged at once");
    case "IN_DOUBT":
      return later([]);
    case "COMMITTED":
      return flow.card?.includes("Declined") === true ? no(declines) : later([], "pay");
    case "VOIDED":
      return atVendor === "charged" ? no(charged) : later([], "decline");
    default:
      return atVendor === "charged" ? no(charged) : later([], "decline", "next");
  }
}

const declines = "the card is declined, whoever sends it";

function fromBound({ state, atVendor, flow }: Place): Route {
  const isOver = atVendor === "refused";
  // A customer that the bank has asked cannot be declined any more, but nobody needs to wait for it.
  const ending: Act = atVendor === "open" ? "cancel" : "decline";
  switch (state) {
    case "HELD fresh":
      return no("it is bound by now");
    case "bound":
      return asIs;
    case "HELD taken over":
      return later([], "grant");
    case "followed":
      if (atVendor === "charged") return no("what has been charged is committed, not followed");
      return isOver ? no("a refused object is canceled, not followed") : later([], "reconcile");
    case "IN_DOUBT":
      return later([]);
    case "COMMITTED":
      if (flow.card?.includes("Declined") === true) return no(declines);
      return flow.card !== undefined && atVendor === "open" ? later([], "browser", "pay") : later([], "pay");
    case "VOIDED":
      return atVendor === "charged" ? no(charged) : later([], ending);
    default:
      return atVendor === "charged" ? no(charged) : later([], ending, "next");
  }
}

function fromFollowed({ state, atVendor }: Place): Route {
  switch (state) {
    case "HELD fresh":
    case "bound":
      return no("its object is followed by now");
    case "HELD taken over":
      return no("an object in a known state is followed by everybody, and taken over by nobody");
    case "followed":
      return asIs;
    case "IN_DOUBT":
      return { acts: [], runsOut: "follow time", afterwards: [] };
    case "COMMITTED":
      return later([], "browser", "pay");
    case "VOIDED":
      return atVendor === "charged" ? no(charged) : later([], "cancel");
    default:
      return atVendor === "charged" ? no(charged) : later([], "cancel", "next");
  }
}

function fromDoubt({ state, atVendor, flow }: Place): Route {
  const isOver = atVendor === "refused";
  switch (state) {
    case "IN_DOUBT":
      return asIs;
    case "HELD fresh":
      return no("the attempt that held it has given up");
    case "HELD taken over":
      return flow.subject === "lost for days" ? no("its key is not sent again after days") : first("grant");
    case "bound":
      return flow.kind === "two_step" ? no("it is bound already, and in doubt") : neverBound;
    case "followed":
      return atVendor === "open" ? first("reconcile") : no("the vendor has no open object");
    case "COMMITTED":
      if (isOver) return no("the object was ended, and the next generation has another one");
      if (flow.subject === "lost for days") return no("its key is not sent again after days");
      return atVendor === "open" ? first("browser", "pay") : first("pay");
    case "VOIDED":
    case "generation 2": {
      if (atVendor === "charged") return no(charged);
      const acts: Act[] = voidingActs(flow, isOver);
      return state === "VOIDED" ? first(...acts) : first(...acts, "next");
    }
    default:
      return no("not a state of a row");
  }
}

function voidingActs({ subject }: Flow, isOver: boolean): Act[] {
  if (subject === "lost for days") return ["reconcile"];
  if (isOver) return ["reconcile"];
  return subject === "waiting" ? ["cancel"] : ["decline"];
}

function fromVoided(state: State): Route {
  if (state === "VOIDED") return asIs;
  if (state === "generation 2") return first("next");
  return no("after VOIDED comes generation 2, and nothing else");
}
