import { readFileSync } from "node:fs";

/** What a write does to money, as the product's own table says. */
export type Effect = "charge" | "payout" | "refund" | "credit" | "commit" | "mint" | "config" | "none";

export interface MoneyEndpoint {
  readonly method: "POST" | "DELETE";
  /** `/v1/charges/:id/capture` */
  readonly pattern: string;
  readonly effect: Effect;
  /** The method of the Stripe client that calls it. */
  readonly sdk: string;
}

/** Every write of Stripe's API that is known: 412 of them. */
export const moneyEndpoints: readonly MoneyEndpoint[] = (
  JSON.parse(readFileSync(new URL("../../../tools/data/money-endpoints.json", import.meta.url), "utf8")) as readonly {
    m: "POST" | "DELETE";
    p: string;
    effect: Effect;
    sdk: string;
  }[]
).map(({ m, p, effect, sdk }) => ({ method: m, pattern: p, effect, sdk }));
