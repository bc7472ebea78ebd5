import fc from "fast-check";
import type { Calendar, CreateCap, Direction, Enforcement, Window } from "./command.ts";
import { mostly, often } from "./history-chance.ts";
import { dollar, endpoints } from "./history-names.ts";

const zones = [
  "UTC",
  "America/New_York",
  "Asia/Kolkata",
  "America/Sao_Paulo",
  "Pacific/Apia",
  "America/Havana",
  "Australia/Lord_Howe",
  "America/St_Johns",
] as const;

const calendar: fc.Arbitrary<Calendar> = fc.record({
  zone: fc.constantFrom<string>(...zones),
  startHour: often(0, 1, 2, 6, 23),
  weekStart: often(1, 7, 4),
  anchorDay: fc.constantFrom(1, 1, 15, 30, 31),
  anchorMonth: fc.constantFrom(1, 2, 11, 12),
});

const hour = 3_600_000;

/** Counted from the instant at which the cap is made. */
const fixed = fc.record({
  start: fc.constantFrom(-hour, 0, 1_000, 60_000),
  end: fc.constantFrom(61_000, 600_000, 30 * hour, 2_000 * hour),
});

const counted = fc.record({
  currency: fc.constant(null),
  limit: fc.constantFrom(0n, 1n, 2n, 3n, 5n, 1_000n),
  maxPerSpend: fc.constant(null),
});

const spent = fc.record({
  currency: mostly<string>("usd", "eur"),
  limit: fc.constantFrom(0n, 4n * dollar, 8n * dollar, 8n * dollar + 1n, 20n * dollar, 20n * dollar, 1_000n * dollar),
  maxPerSpend: mostly<bigint | null>(null, 3n * dollar),
});

/** A cap of any kind with one of the given ids. The times of a FIXED one are counted from when it is made. */
export const capRule = (cap: fc.Arbitrary<string>): fc.Arbitrary<CreateCap> =>
  fc
    .record({
      op: fc.constant("createCap" as const),
      cap,
      unit: fc.oneof({ weight: 4, arbitrary: spent }, { weight: 1, arbitrary: counted }),
      enforcement: mostly<Enforcement>("ENFORCE", "SHADOW", "SHADOW"),
      window: fc.constantFrom<Window>(
        ...([
          "LIFETIME",
          "LIFETIME",
          "DAY",
          "DAY",
          "WEEK",
          "MONTH",
          "YEAR",
          "BILLING_PERIOD",
          "BILLING_PERIOD",
          "FIXED",
        ] as const),
      ),
      calendar,
      fixed,
      attachedOnly: mostly(false, true, true),
      perCustomer: often(false, true),
      direction: often<Direction>("SPEND", "REFUND"),
      restores: fc.constantFrom(true, true, false),
      scope: often<CreateCap["scope"]>(
        {},
        { key: "k1" },
        { vendor: "stripe" },
        { endpoint: endpoints[0] },
        { customer: "c2" },
        { purpose: "sub", key: "k0" },
      ),
    })
    .map(({ unit, ...rule }) => ({
      ...rule,
      ...unit,
      fixed: rule.window === "FIXED" ? rule.fixed : null,
      restores: rule.restores && rule.direction === "SPEND" && unit.currency !== null,
    }));
