import type { Answer, EngageSwitch, ReleaseSwitch, RotateVaultKey, SwitchTarget, UpdateVaultKey } from "./command.ts";
import { type Asked, keyDenial, type VaultKey } from "./model-cap.ts";
import { isLive, type World } from "./model-world.ts";

/** A kill switch: since when it is engaged, or that it is not any more. */
export interface Switch {
  readonly target: SwitchTarget;
  readonly since: number;
  engaged: boolean;
}

const switchName = ({ kind, name }: SwitchTarget): string => `${kind}:${name}`;

export function isStoppedBy({ kind, name }: SwitchTarget, asked: Asked): boolean {
  switch (kind) {
    case "WORKSPACE":
      return true;
    case "VENDOR":
      return asked.vendor === name;
    case "CUSTOMER":
      return asked.customer === name;
  }
}

/** Why a key may be granted nothing: its own policy first, then what stops others too. */
export function policyDenial(world: World, key: VaultKey, asked: Asked): string | null {
  const stopped = [...world.switches.values()].some((one) => one.engaged && isStoppedBy(one.target, asked));
  return keyDenial(key, asked, world.now) ?? (stopped ? "KILL_SWITCH" : null);
}

/** Engaged twice, it is the first one; the answer says what is open either way. */
export function engage(world: World, { target }: EngageSwitch): Answer {
  const name = switchName(target);
  if (world.switches.get(name)?.engaged !== true) {
    world.switches.set(name, { target, since: world.now, engaged: true });
  }
  const open = [...world.spends.values()].flat().filter((one) => isLive(one) && isStoppedBy(target, one));
  return { error: null, open: open.length };
}

export function release(world: World, { target }: ReleaseSwitch): Answer {
  const found = world.switches.get(switchName(target));
  if (found === undefined) return { error: "NOT_FOUND" };
  found.engaged = false;
  return { error: null };
}

export function updateKey(world: World, { key, purposes, maxPerSpend }: UpdateVaultKey): Answer {
  const found = world.keys.get(key);
  if (found === undefined) return { error: "NOT_FOUND" };
  if (found.revoked) return { error: "STATE_NOT_ALLOWED" };
  world.keys.set(key, { ...found, policy: { ...found.policy, purposes, maxPerSpend } });
  return { error: null };
}

/** Another secret, the same key: nothing that it may do changes. */
export function rotateKey(world: World, { key }: RotateVaultKey): Answer {
  const found = world.keys.get(key);
  if (found === undefined) return { error: "NOT_FOUND" };
  return { error: found.revoked ? "STATE_NOT_ALLOWED" : null };
}
