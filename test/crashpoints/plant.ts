import type pg from "pg";

/** Mistakes that the check must find. */
export const plants = [
  "release on expiry",
  "send again after the hold",
  "void on 5xx",
  "a new key for every process",
] as const;

export type Plant = (typeof plants)[number];

/** What a control plane would do that forgets a hold when its time is over. */
export async function plantInDatabase(pool: pg.Pool, plant: Plant): Promise<void> {
  if (plant !== "release on expiry") return;
  await pool.query(
    `create or replace function holdfast.doubt_authorization(p_row holdfast.authorizations, p_now timestamptz)
     returns void language sql volatile
     as $$ select holdfast.void_authorization(p_row, p_now, 'NEVER_SENT', 'too old', 'server', 'sweep', '') $$`,
  );
}
