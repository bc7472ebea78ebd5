import type { Answer, Answers, Command, CounterName, Identity, System } from "./command.ts";
import { authorize } from "./model-authorize.ts";
import { counterNamed, usageOf } from "./model-cap.ts";
import { acquireLease, findLease, isOut, releaseLease, renewLease } from "./model-lease.ts";
import { report, resolve } from "./model-reconcile.ts";
import { engage, release, rotateKey, updateKey } from "./model-switch.ts";
import { rules as meant } from "./model-rules.ts";
import { bind, commit, increase, reportUnknown, voidSpend } from "./model-settle.ts";
import { createWorld, findGeneration, isFollowed, isLive, shown, type Rules, type World } from "./model-world.ts";

/** A system in memory whose answers are known at once. */
export interface Model extends System {
  readonly world: World;
  apply(command: Command): Answers;
  usage(counter: CounterName): Answer;
  authorization(spend: Identity, generation: number): Answer;
}

/**
 * The reference model: every answer that a server has to give, written a second time from the rules and sharing
 * no code with the server. `rules` is replaced only to plant a defect.
 */
export function createModel(now: number, rules: Rules = meant): Model {
  const world = createWorld(rules, now);
  return {
    world,
    apply: (command) => {
      if (command.op === "authorizeBatch") return command.requests.map((request) => authorize(world, request));
      if (command.op === "commitBatch") return command.requests.map((request) => commit(world, request));
      return [applyOne(world, command)];
    },
    usage: (name) => {
      const cap = world.caps.get(name.cap);
      return cap === undefined ? { error: "NOT_FOUND" } : usageOf(cap, counterNamed(world, name));
    },
    authorization: (spend, generation) => {
      const found = findGeneration(world, spend, generation);
      return found === undefined ? { error: "NOT_FOUND" } : shown(found);
    },
  };
}

function applyOne(world: World, command: Exclude<Command, { op: "authorizeBatch" | "commitBatch" }>): Answer {
  switch (command.op) {
    case "authorize":
      return authorize(world, command);
    case "commit":
      return commit(world, command);
    case "void":
      return voidSpend(world, command);
    case "reportUnknown":
      return reportUnknown(world, command);
    case "bind":
      return bind(world, command);
    case "report":
      return report(world, command);
    case "resolve":
      return resolve(world, command);
    case "increase":
      return increase(world, command);
    case "acquireLease":
      if (isOut(world.keys.get(command.key), world.now)) return { error: "STATE_NOT_ALLOWED" };
      return acquireLease(world.leases, command, world.now);
    case "renewLease": {
      const lease = findLease(world.leases, command.lease, command.period);
      if (isOut(world.keys.get(command.key), world.now) && lease !== undefined) return { error: null, renewed: false };
      return renewLease(world.leases, command, world.now);
    }
    case "releaseLease":
      return releaseLease(world.leases, command, world.now);
    default:
      return administer(world, command);
  }
}

function administer(
  world: World,
  command: Extract<
    Command,
    {
      op:
        | "createCap"
        | "updateCap"
        | "archiveCap"
        | "createVaultKey"
        | "suspendVaultKey"
        | "resumeVaultKey"
        | "revokeVaultKey"
        | "updateVaultKey"
        | "rotateVaultKey"
        | "engageSwitch"
        | "releaseSwitch"
        | "setClock"
        | "sweep";
    }
  >,
): Answer {
  switch (command.op) {
    case "createCap":
      if (command.fixed !== null && command.fixed.end <= world.now) return { error: "INVALID_FIELD" };
      if (world.caps.has(command.cap)) return { error: "ALREADY_EXISTS" };
      world.caps.set(command.cap, {
        rule: command,
        limit: command.limit,
        restores: command.restores,
        enforcement: command.enforcement,
        archived: false,
      });
      return { error: null };
    case "updateCap": {
      const cap = world.caps.get(command.cap);
      if (cap === undefined) return { error: "NOT_FOUND" };
      if (cap.archived) return { error: "STATE_NOT_ALLOWED" };
      const mayRestore = cap.rule.direction === "SPEND" && cap.rule.currency !== null;
      if (command.restores === true && !mayRestore) return { error: "INVALID_FIELD" };
      cap.limit = command.limit ?? cap.limit;
      cap.restores = command.restores ?? cap.restores;
      cap.enforcement = command.enforcement ?? cap.enforcement;
      return { error: null };
    }
    case "archiveCap": {
      const cap = world.caps.get(command.cap);
      if (cap === undefined) return { error: "NOT_FOUND" };
      cap.archived = true;
      return { error: null };
    }
    case "createVaultKey":
      if (command.expireTime !== null && command.expireTime <= world.now) return { error: "INVALID_FIELD" };
      if (world.keys.has(command.key)) return { error: "ALREADY_EXISTS" };
      world.keys.set(command.key, { policy: command, suspended: false, revoked: false });
      return { error: null };
    case "suspendVaultKey":
    case "resumeVaultKey": {
      const key = world.keys.get(command.key);
      if (key === undefined) return { error: "NOT_FOUND" };
      if (key.revoked) return { error: "STATE_NOT_ALLOWED" };
      key.suspended = command.op === "suspendVaultKey";
      return { error: null };
    }
    case "revokeVaultKey": {
      const key = world.keys.get(command.key);
      if (key === undefined) return { error: "NOT_FOUND" };
      key.revoked = true;
      return { error: null, open: countOpen(world, command.key) };
    }
    case "updateVaultKey":
      return updateKey(world, command);
    case "rotateVaultKey":
      return rotateKey(world, command);
    case "engageSwitch":
      return engage(world, command);
    case "releaseSwitch":
      return release(world, command);
    case "setClock":
      world.before = world.now;
      world.now = command.now;
      return { error: null };
    case "sweep":
      sweep(world);
      return { error: null };
  }
}

function countOpen(world: World, key: string): number {
  return generations(world).filter((one) => one.key === key && isLive(one)).length;
}

export function generations(world: World) {
  return [...world.spends.values()].flat();
}

/** A hold that ran out is ended: without proof it stays counted. */
function sweep(world: World): void {
  for (const one of generations(world)) {
    const unbound = one.settlement === "TWO_STEP" && !one.bound;
    if (!isLive(one) || world.now < one.holdExpireTime || isFollowed(one, world.now)) continue;
    if (one.state === "HELD" || unbound) world.rules.expire(one, world.now);
  }
}
