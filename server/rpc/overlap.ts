import type { Duration } from "@bufbuild/protobuf/wkt";
import { millisecondsFrom } from "./convert.ts";

const overlapMsDefault = 3_600_000;

/** How long the secret before a rotation still opens, of a validated request. Zero: it ends with the rotation. */
export function overlapMs(overlap: Duration | undefined): number {
  return overlap === undefined ? overlapMsDefault : millisecondsFrom(overlap, "overlap");
}
