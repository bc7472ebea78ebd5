import type { MessageInitShape } from "@bufbuild/protobuf";
import type { VaultKeySchema } from "@holdfast/api/holdfast/v1/vault_key_pb";
import type { AttackWorld } from "./attack-world.ts";

/** One request that must be refused without a word to the vendor. */
export interface Shot {
  readonly bytes: string;
  /** Status and code, "400 invalid_target"; "closed" where the connection ends unanswered. */
  readonly answer: string;
  /** The audit's events of it: one, unless the request could not be read so far that it is anybody's. */
  readonly events: 0 | 1;
}

interface RowHead {
  readonly id: string;
  /** What is tried, in words. */
  readonly what: string;
  readonly policy?: MessageInitShape<typeof VaultKeySchema>;
}

export type AttackRow =
  | (RowHead & { readonly shots: readonly Shot[] })
  /** An attack in several steps, or one whose first step is served. Answers what it saw. */
  | (RowHead & { readonly outcome: string; readonly walk: (world: AttackWorld, id: string) => Promise<string> });

/** Shots with the same answer, each with its one event. */
export function all(answer: string, ...requests: readonly string[]): readonly Shot[] {
  return requests.map((bytes) => ({ bytes, answer, events: 1 }));
}

/** Shots that nobody's audit can hold. */
export function unread(answer: string, ...requests: readonly string[]): readonly Shot[] {
  return requests.map((bytes) => ({ bytes, answer, events: 0 }));
}
