/** What random histories are about: few names, so that they meet. */
export const customers = ["c1", "c2", "c3"] as const;
export const periods = ["2026-11", "2026-12"] as const;
export const purposes = ["sub", "fee:late"] as const;
export const endpoints = ["POST /v1/charges", "POST /v1/payment_intents/pi_1/confirm"] as const;
export const keyIds = ["k0", "k1", "k2"] as const;
/** Byte order and dictionary order differ: the hyphen. */
export const capIds = ["ab", "a-c", "b1", "b10", "b2"] as const;
export const leases = ["nightly", "hourly"] as const;
export const dollar = 1_000_000n;
