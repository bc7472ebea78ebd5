import type { Answer, Report, Resolve } from "./command.ts";
import { noteAccount } from "./model-look.ts";
import { commit, isAnswer, mayNotBind, settled, terminalReason, voidSpend } from "./model-settle.ts";
import { isFollowed, isLive, shown, type World } from "./model-world.ts";

const weekMs = 7 * 24 * 3_600_000;

/** What asking the vendor has found: an open object is bound and followed, everything else is only kept. */
export function report(world: World, request: Report): Answer {
  const found = settled(world, request);
  if (isAnswer(found)) return found;
  if (!isLive(found)) return { error: terminalReason(found) };
  if (world.rules.isMidCall(found, world.now)) return { error: "STATE_NOT_ALLOWED" };
  if (request.reference !== "" && found.bound && found.reference !== request.reference) {
    return { error: "ALREADY_BOUND", winner: found.reference };
  }
  if (request.reference !== "" && mayNotBind(world, found, request.reference)) {
    return { error: "REFERENCE_BOUND_ELSEWHERE" };
  }
  const holdLasts = world.now < found.holdExpireTime && found.settlement === "TWO_STEP";
  const unbound = found.settlement === "TWO_STEP" && !found.bound;
  if (found.state === "HELD" && !isFollowed(found, world.now) && !holdLasts && !unbound) {
    world.rules.toDoubt(found, world.now);
  }
  const { asked } = found;
  const { look } = request;
  noteAccount(world, found, look.account);
  const isElsewhere = request.finding === "ABSENT" && world.rules.maybeElsewhere(world, found, look);
  const finding = isElsewhere ? "UNCLEAR" : request.finding;
  const counts = world.rules.lookCounts(found, look, world.now);
  found.asked = {
    finding,
    firstTime: asked?.firstTime ?? world.now,
    lastTime: world.now,
    count: (asked?.count ?? 0) + 1,
    absentSince: finding === "ABSENT" ? (asked?.absentSince ?? (counts ? look.at : null)) : null,
  };
  if (finding !== "ABSENT") found.looksAfter = world.now;
  if (request.reference !== "") {
    found.state = "HELD";
    found.inDoubtSince = null;
    found.bound = true;
    found.reference = request.reference;
    found.vendorState = request.vendorState;
    found.followUntil ??= world.now + weekMs;
  }
  return shown(found);
}

/** An operator's word counts like the vendor's, unless an attempt is about to learn more. */
export function resolve(world: World, request: Resolve): Answer {
  const found = settled(world, request);
  if (isAnswer(found)) return found;
  if (world.rules.isMidCall(found, world.now)) return { error: "STATE_NOT_ALLOWED" };
  const { spend, generation, committed, reference } = request;
  const common = { key: null, spend, generation, reference };
  if (committed !== null) {
    const answer = commit(world, { op: "commit", ...common, ...committed });
    return isAnswered(answer) ? shown(found) : answer;
  }
  if (isLive(found) && reference !== "" && found.reference !== reference) return { error: "EVIDENCE_INSUFFICIENT" };
  const evidence = reference === "" ? "OPERATOR" : "TOMBSTONE";
  return voidSpend(world, { op: "void", ...common, attempt: "", evidence, vendorStatus: 0, replayed: false });
}

const isAnswered = (answer: Answer): boolean => answer["error"] === null;
