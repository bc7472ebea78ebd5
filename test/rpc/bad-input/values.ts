import { type DescField, ScalarType } from "@bufbuild/protobuf";

/** A value as JSON text that a field must refuse. */
export interface Bad {
  readonly raw: string;
  /** INVALID_FIELD by default. */
  readonly reason?: string;
  /** The path of the place by default; null where the refusal names none. */
  readonly field?: string | null;
}

const bad = (value: unknown): Bad => ({ raw: JSON.stringify(value) });
const all = (...values: readonly unknown[]): readonly Bad[] => values.map(bad);
const raw = (...texts: readonly string[]): readonly Bad[] => texts.map((text) => ({ raw: text }));

const hidden = all("x\u0000y", "x\u0007y", "x\u202ey", "x\u200by", "x\u2028y");
const unseen = all("x\u0000y", "x\u202ey", "x\u200by", " x", "é", "x".repeat(10_000));
const empty = [...all(""), ...raw("null")];
const names = all("cap", "caps/", "vaultKeys/../x", "operators/UP", "projects/1/caps/x", "authorizations/abc-1", "//x");
const name = [...unseen, ...names];

/** The values that a kind of field refuses, beside those of another type. */
export const valuesOf = {
  customer: [...empty, ...unseen, ...all("a:b", "c".repeat(129))],
  customerFilter: [...unseen, ...all("a:b", "c".repeat(129))],
  purpose: [...empty, ...unseen, ...all("p".repeat(129))],
  purposeFilter: [...unseen, ...all("p".repeat(129))],
  holder: [...empty, ...unseen, ...all("h".repeat(129))],
  account: [...unseen, ...all("a".repeat(129))],
  reference: [...empty, ...unseen, ...all("r".repeat(256))],
  referenceFilter: [...unseen, ...all("r".repeat(256))],
  vendor: [...empty, ...unseen, ...all("Stripe", "1stripe", "str-ipe", "s".repeat(33), "__proto__")],
  vendorFilter: [...unseen, ...all("Stripe", "1stripe", "str-ipe", "s".repeat(33), "__proto__")],
  endpoint: [
    ...empty,
    ...unseen,
    ...all("POST", "post /v1/x", "POST v1", "POST /v1//x", "POST /v1/x?y=1", "POST /v1/%2e", "POST /v1/../x", "GET /"),
    ...all("POST /v1/x/", `POST /${"e".repeat(260)}`, "HEAD /v1/x", "POST  /v1/x"),
  ],
  endpointFilter: [
    ...unseen,
    ...all("POST", "post /v1/x", "POST /v1//x", "POST /v1/x?y=1", `POST /${"e".repeat(260)}`),
  ],
  hex32: [...empty, ...unseen, ...all("0".repeat(31), "0".repeat(33), "A".repeat(32), "g".repeat(32))],
  hex32OrEmpty: [...unseen, ...all("0".repeat(31), "0".repeat(33), "A".repeat(32), "g".repeat(32))],
  hex64OrEmpty: [...unseen, ...all("0".repeat(32), "0".repeat(65), "A".repeat(64))],
  // One that is not well-formed counts as none, so that a caller's tracing cannot fail its spends.
  traceParent: all("0".repeat(129), "x".repeat(10_000)),
  reason: [...empty, ...hidden, ...all("x\ny", "x".repeat(501), "x".repeat(10_000))],
  note: [...hidden, ...all("x\ny", "x".repeat(501), "x".repeat(10_000))],
  label: [...hidden, ...all("x\ny", "x".repeat(129))],
  currency: [...empty, ...unseen, ...all("USD", "us", "usdd", "u$d", "__proto__")],
  amount: [
    ...empty,
    ...unseen,
    ...all(
      "0",
      "-0",
      "0.00",
      "-1",
      "-0.000001",
      "1e3",
      "0x10",
      " 5",
      "+5",
      "5.",
      ".5",
      "05",
      "1,000",
      "NaN",
      "Infinity",
    ),
    ...all("0.0000001", "9223372036854775807", "9223372036854775808", "99999999999999", "٣"),
    { raw: '"1000000000000.000001"', reason: "AMOUNT_OUT_OF_RANGE" },
    { raw: '"9223372036854.775807"', reason: "AMOUNT_OUT_OF_RANGE" },
  ],
  amountOrZero: [
    ...empty,
    ...unseen,
    ...all("-1", "-0.000001", "1e3", "0x10", " 5", "+5", "5.", ".5", "05", "1,000", "NaN", "0.0000001"),
    ...all("9223372036854775807", "9223372036854775808"),
    { raw: '"1000000000000.000001"', reason: "AMOUNT_OUT_OF_RANGE" },
  ],
  pageSize: raw("-1", "201", '"201"', "2147483647"),
  lookToken: [...empty, ...unseen, ...all("eA", "bG9vay0", "l=", "t".repeat(129))],
  pageToken: [...all("x", "W10", "e30", "WyJcdTAwMDAiXQ", "x\u0000y", "x\u202ey"), ...all("t".repeat(513))],
  generation: raw("-1", "1000001", "2147483647"),
  status: raw("-1", "600", "2147483647"),
  token: raw("0", "-0", "-1", '"0"', '"-9223372036854775808"', "null"),
  count: raw("-1", "1000000000001", '"9223372036854775807"'),
  hour: raw("-1", "24", "2147483647"),
  day: raw("-1", "32", "2147483647"),
  month: raw("-1", "13", "2147483647"),
  choice: raw("99", "-1", "2147483647"),
  choiceNeeded: raw("0", "99", "-1", "2147483647", "null"),
  flag: [],
  mustBeTrue: raw("false"),
  time: all(
    "2026-12-30",
    "2026-12-30T00:00:00",
    "2026-13-01T00:00:00Z",
    "2026-02-30T00:00:00Z",
    "10000-01-01T00:00:00Z",
  ),
  timeNeeded: [...raw("null"), ...all("2026-12-30", "0000-01-01T00:00:00Z", "2026-02-30T00:00:00Z", "yesterday")],
  resendTime: all("0s", "-1s", "82801s", "315576000000s"),
  holdTime: all("0s", "4.9s", "-10s", "86401s", "86400.000000001s"),
  followTime: all("0s", "-1s", "2592001s"),
  leaseTime: [...raw("null"), ...all("0s", "0.9s", "-5s", "3601s")],
  heartbeat: all("0s", "0.9s", "-5s", "301s", "300.000000001s"),
  overlap: all("-1s", "-0.000000001s", "604801s", "604800.000000001s"),
  declinedTime: all("0s", "59.9s", "-60s", "31622401s", "31622400.000000001s"),
  customerSource: [
    ...empty,
    ...unseen,
    ...all("customer", "body.", "body.email", "body.metadata", "body.metadata[]", "body.metadata[a]x", "fixed:"),
    ...all("fixed:a:b", "header.customer", `body.metadata[${"m".repeat(41)}]`, "body.metadata[a][b]", "Fixed:a"),
  ],
  purposeSource: [
    ...empty,
    ...unseen,
    ...all("purpose", "body.", "body.a b", "body.metadata[]", "body.a[b]", "fixed:", `fixed:${"p".repeat(129)}`),
    ...all("body.A", "body.1", `body.${"n".repeat(65)}`, "body.__proto__"),
  ],
  apiVersion: [
    ...empty,
    ...unseen,
    ...all("2026", "2026-1-1", "v2026-01-28", "2026-01-28.", "2026-01-28.Clover", `2026-01-28.${"c".repeat(60)}`),
  ],
  connectedAccount: [...empty, ...unseen, ...all("acct_", "acct_a-b", "ACCT_1", `acct_${"a".repeat(65)}`, "cus_1")],
  unguarded: [
    ...all(
      "POST",
      "POST /v1//x",
      "POST /v1/x?y=1",
      "POST /v1/x/",
      "POST /v1/unknown_things",
      "POST /v1/accounts/acct_1",
    ),
    ...all("POST /v1/payment_intents", "POST /v1/refunds", "POST /v1/payouts", "POST /v1/products"),
  ],
  spendingWrite: [
    ...empty,
    ...all("POST", "POST /v1//x", "GET /v1/charges/:id", "POST /v1/unknown_things", "POST /v1/products"),
    // Well formed, and not what the key allows.
    ...all("POST /v1/charges", "POST /v1/invoices/in_1/pay", "DELETE /v1/subscriptions/:id"),
  ],
  margin: [...unseen, ...all("-0.1", "10.1", "0.00001", "1e1", "0x1", " 1", "١")],
  zone: [...unseen, ...all("Mars/Olympus", "europe", "z".repeat(65), "../etc/passwd")],
  authorization: [...empty, ...name, { raw: `"authorizations/${"0".repeat(36)}-1"`, reason: "NOT_FOUND", field: null }],
  authorizationFilter: name,
  cap: [...empty, ...name, { raw: '"caps/nobody"', reason: "NOT_FOUND", field: null }],
  capItem: [...empty, ...name, ...all("caps/nobody", "vaultKeys/main")],
  vaultKey: [...empty, ...name, { raw: '"vaultKeys/nobody"', reason: "NOT_FOUND", field: null }],
  vaultKeyFilter: name,
  operator: [...empty, ...name, { raw: '"operators/nobody"', reason: "NOT_FOUND", field: null }],
  killSwitch: [...empty, ...name, { raw: `"killSwitches/${"0".repeat(32)}"`, reason: "NOT_FOUND", field: null }],
  contradiction: [...empty, ...name, { raw: `"contradictions/${"0".repeat(32)}"`, reason: "NOT_FOUND", field: null }],
  credential: [...empty, ...name, { raw: '"vendorCredentials/nobody"', reason: "NOT_FOUND", field: null }],
  run: [...empty, ...name, { raw: `"reconciliationRuns/${"0".repeat(32)}"`, reason: "NOT_FOUND", field: null }],
  capId: [...empty, ...unseen, ...all("UP", "-x", "x-", "x_y", "c".repeat(64), "__proto__", "caps/x")],
  keyId: [...empty, ...unseen, ...all("UP", "x-y", "k".repeat(33), "__proto__", "vaultKeys/x")],
  secret: [...empty, ...unseen, ...all("short", "s".repeat(513), "pk_test_zqxzqxzqx", "xx_live_zqxzqxzqx")],
  etag: [...unseen, ...all("1", "v0", "v-1", "V1", `v${"9".repeat(30)}`, 'W/"v1"')],
  eventKind: [...unseen, ...all("Spend", "spend.denied.x", "a.", ".b", "spend%", "k".repeat(33))],
  actor: [...unseen, ...all("vaultKeys", "keys/x", "operators/", "server/UP", "operators/a/b", "a".repeat(99))],
  word: [...unseen, ...all("granted", "GRANTED1", "W".repeat(65))],
  vendorState: [...unseen, ...all("Requires", "x-y", "s".repeat(65))],
  window: [...unseen, ...all("a:b", "w".repeat(129))],
  required: raw("null"),
  optional: [],
  maskOfCap: [
    ...raw("null"),
    ...all("", "noSuchField", "window", "name", "limit.amount", "*", "constructor", "toString", "limit,", "scope"),
  ],
  maskOfKey: [
    ...raw("null"),
    ...all("", "noSuchField", "vendor", "name", "maxPerSpend.amount", "*", "constructor", "toString", "hasOwnProperty"),
  ],
} satisfies Record<string, readonly Bad[]>;

export type Kind = keyof typeof valuesOf;

/** Values of another type than the field's. */
export function mistyped(field: DescField, isItem: boolean): readonly Bad[] {
  if (isItem && field.fieldKind === "list") return [...raw("null"), ...ofType(field)];
  if (isItem && field.fieldKind === "map") return raw("null", "1", "{}", "[]", '"\\ud800"');
  if (field.fieldKind === "list") return raw("1", '"x"', "{}", "true");
  if (field.fieldKind === "map") return raw("1", '"x"', "[]", "true");
  return ofType(field);
}

const notWhole = [
  "1.5",
  '"1.5"',
  "1e400",
  '"1e3"',
  '" 5"',
  '"5 "',
  '"0x10"',
  '"+5"',
  '"05"',
  '""',
  "true",
  "{}",
  "[]",
].concat([
  '"NaN"',
  "9223372036854775808",
  '"9223372036854775808"',
  "9007199254740993",
  '"-9223372036854775809"',
  '"٣"',
]);

function ofType(field: DescField): readonly Bad[] {
  if (field.enum !== undefined) return raw('"NO_SUCH_WORD"', "1.5", "true", "{}", "[]", '"1"', '""', '"__proto__"');
  const type = field.message?.typeName ?? "";
  if (type === "google.protobuf.Timestamp") return raw("1", "{}", "true", '""', '"soon"', '"1e3"', '"9999999999"');
  if (type === "google.protobuf.Duration")
    return raw("5", "{}", '"5"', '"1e3s"', '" 5s"', '"0x10s"', '"9223372036854775808s"');
  if (type === "google.protobuf.FieldMask")
    return raw("1", "{}", '["limit"]', '"max_per_spend"', '"__proto__"', "true");
  if (type !== "") return [...raw("1", '"x"', "true", "[]"), ...unknown];
  switch (field.scalar) {
    case ScalarType.BOOL:
      return raw('"true"', "1", "0", "{}", "[]");
    case ScalarType.INT32:
    case ScalarType.INT64:
      return raw(...notWhole);
    default:
      return raw("1", "true", "{}", "[]", "-0", "1e3", '"\\ud800"', '"x\\udfff"');
  }
}

/** Lists that are too long, or name an item twice. */
export function lists(field: DescField, item: unknown): readonly Bad[] {
  if (field.fieldKind === "map") {
    const pairs = Array.from({ length: 65 }, (_, n) => [`team-${n}`, "x"]);
    const keys = ["__proto__", "UP", "a.b", "k".repeat(65), "", "a\u202eb", "a\u0000b"];
    return [
      bad(Object.fromEntries(pairs)),
      ...keys.map((key) => ({
        raw: `{${JSON.stringify(key)}: "x"}`,
        field: /^[\w.-]{1,64}$/.test(key) ? `+["${key}"]` : "+",
      })),
    ];
  }
  const text = JSON.stringify(item);
  // Still a message of at most 64 KiB, where it is no batch.
  const length = field.name === "requests" ? 501 : Math.min(1001, Math.floor(60_000 / text.length));
  const long: Bad = { raw: `[${Array.from({ length }, () => text).join()}]` };
  return field.message === undefined ? [long, { raw: `[${text},${text}]` }] : [long];
}

/** Keys that no message has. The refusal names them inside of it. */
export const unknownKeys = ["no_such_field", "__proto__", "constructor", "toString", "Spend", "spend_"];
const unknown: readonly Bad[] = unknownKeys.map((key) => ({ raw: `{"${key}": 1}`, field: `+.${key}` }));
