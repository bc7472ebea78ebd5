import type { Chance } from "./random.ts";

/** How likely each disturbance is, per message or per event of a process; 0 to 1. Every seed draws its own. */
export interface Disturbance {
  /** A message never arrives. */
  readonly drop: number;
  /** A request arrives twice. */
  readonly duplicate: number;
  /** Seconds to two minutes late. */
  readonly slow: number;
  /** Hours to days late, as in the buffers of a frozen host. */
  readonly parked: number;
  /** A write to the vendor that is composed, and leaves a day later: past what the vendor remembers of its key. */
  readonly heldADay: number;
  /** The caller's connection ends. */
  readonly cut: number;
  /** The process stops for seconds to days. */
  readonly freeze: number;
  readonly crash: number;
  /** The vendor answers, or ends, otherwise than it should. */
  readonly vendorFault: number;
  /** Per run: the control plane is down for a while. */
  readonly restart: number;
  /** The database's clock jumps. */
  readonly clockJump: number;
  readonly revoke: number;
  readonly capChange: number;
}

export type DisturbanceName = keyof Disturbance;

export const disturbanceNames = [
  "drop",
  "duplicate",
  "slow",
  "parked",
  "heldADay",
  "cut",
  "freeze",
  "crash",
  "vendorFault",
  "restart",
  "clockJump",
  "revoke",
  "capChange",
] as const satisfies readonly DisturbanceName[];

const highest: Disturbance = {
  drop: 0.25,
  duplicate: 0.2,
  slow: 0.25,
  parked: 0.08,
  heldADay: 0.15,
  cut: 0.2,
  freeze: 0.08,
  crash: 0.06,
  vendorFault: 0.4,
  restart: 0.8,
  clockJump: 0.6,
  revoke: 0.3,
  capChange: 0.6,
};

/** Swarm: each disturbance is off in half of the seeds, so that combinations of few are tried as well. */
export function drawDisturbance(chance: Chance, without: ReadonlySet<DisturbanceName>): Disturbance {
  const drawn: Record<DisturbanceName, number> = { ...highest };
  for (const name of disturbanceNames) {
    const rate = chance.happens(0.5) ? highest[name] * (0.3 + 0.7 * chance.next()) : 0;
    drawn[name] = without.has(name) ? 0 : rate;
  }
  return drawn;
}
