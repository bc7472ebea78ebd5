import type { AuthorizationId } from "../domain/spend.ts";
import { authorizationColumns } from "./authorization.ts";
import { type Database, run, statement } from "./database.ts";
import { holdLeftMs, readSettled, type Settled, type SettledRow } from "./spend.ts";

const resolveVoidStatement = statement(
  "resolve_void",
  `select f.error_reason, ${holdLeftMs("f.hold_left")} as hold_left_ms,
     ${authorizationColumns("(f.authorization_row)")}
   from holdfast.resolve_void($1::text, $2::text, $3::integer,
     holdfast.actor_in_force($1::text, 'operator', $4::text), $5::text, $6::text, $7::text) as f`,
);

export interface VoidResolution {
  readonly operatorId: string;
  readonly authorization: AuthorizationId;
  /** The bound object that was seen ended, or empty: then the operator's word is the evidence. */
  readonly vendorReference: string;
  readonly reason: string;
  readonly traceId: string;
}

/** Voids on an operator's word what no attempt is in the middle of; one statement, one commit. */
export async function resolveVoid(database: Database, workspace: string, resolution: VoidResolution): Promise<Settled> {
  const { spendKey, generation } = resolution.authorization;
  const [row] = await run<SettledRow>(database, resolveVoidStatement, [
    workspace,
    spendKey,
    generation,
    resolution.operatorId,
    resolution.vendorReference,
    resolution.reason,
    resolution.traceId,
  ]);
  if (row === undefined) throw new Error("resolve_void returned no row");
  return readSettled(row);
}
