import type { Chance } from "../simulate/random.ts";

/** What is put where it does not belong. One character per byte. */
const tokens: Readonly<Record<"target" | "form" | "json", readonly string[]>> = {
  target: [
    "..",
    ".",
    "/",
    "//",
    "/../",
    "/./",
    "\\",
    ";",
    ";a=b",
    "#",
    "?",
    "%2e",
    "%2E%2e",
    "%2f",
    "%5c",
    "%00",
    "%23",
    "%",
    "%25",
    "%252e",
    "%3f",
    "@",
    ":",
    "http://evil.test",
    "//evil.test",
    "	",
    "\n",
    " ",
    "Ã©",
    "\0",
    "/refunds",
    "/v1",
    "search",
    "x.y",
    "x-y",
    ":id",
    "/capture",
    "%e3%80%82",
    "*",
    "V1",
  ],
  form: [
    "&",
    "=",
    "&&",
    "==",
    ";",
    "[",
    "]",
    "[]",
    "[0]",
    "[1]",
    "[00]",
    "[a]",
    "][",
    "%5B%5D",
    "%5b0%5d",
    "%",
    "%0",
    "+",
    "%00",
    "%20",
    "%0d%0a",
    "%26",
    "%3d",
    "%25",
    "%2561",
    "%c3%a9",
    "%c0%af",
    "%ed%a0%80",
    "ÿ",
    "#",
    "\n",
    "\0",
    "amount",
    "&amount=1",
    "&amount[]=1",
    "&%61mount=1",
    "&Amount=1",
    "&amount =1",
    ";amount=1",
    "&amount[amount]=1",
    "&currency=eur",
    "&confirm=true",
    "&customer=cus_9",
    "&capture[]=true",
    "&payment_method[0]=pm_9",
    "&[amount]=1",
    "&__proto__[amount]=1",
    "&constructor=1",
    "&metadata[x]=1",
    "&metadata=",
    "&amount%00=1",
    "ï»¿",
  ],
  json: [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    '"',
    "\\",
    "\\u0000",
    "\\ud800",
    "\\u0061",
    "1e3",
    "1.0",
    "-0",
    "9007199254740993",
    '"amount":{"value":9,"currency":"usd"},',
    ',"amount":1',
    '"Amount":1,',
    '"__proto__":{},',
    "null",
    "ï»¿",
    "//",
    "/**/",
    "'",
    " ",
    "\n",
    "NaN",
    "ÿ",
    '"value":1,',
    '"value":2,',
    '"currency":"eur",',
  ],
};

/** A name that only careless readers take for the one it is made of. */
export function misspelt(chance: Chance, name: string): string {
  return chance.pick([
    name.toUpperCase(),
    `${name.charAt(0).toUpperCase()}${name.slice(1)}`,
    `${name}%20`,
    `%20${name}`,
    `+${name}`,
    `${name}%00`,
    `${name}%0a`,
    `[${name}]`,
    `${name}]`,
    `${name}[`,
    `${name}[]`,
    `${name}[0]`,
    `${name}[a]`,
    `%25${name.charCodeAt(0).toString(16)}${name.slice(1)}`,
    `${name}%2500`,
    `__proto__[${name}]`,
    `constructor[${name}]`,
    "_method",
    "key",
  ]);
}

/** A parameter that comes again, in the same spelling or another. */
export function wrongPairs(chance: Chance, pair: string): readonly string[] {
  const at = pair.indexOf("=");
  const name = pair.slice(0, at);
  const value = pair.slice(at + 1);
  const again = chance.pick([value, `${value}0`, "7", "", "true", "cus_9"]);
  const first = `%${name.charCodeAt(0).toString(16)}${name.slice(1)}`;
  const other = chance.pick([name, ...spellings(name), first, `${name}[]`, `${name}[0]`, `${name}[a]`, `${name}%00`]);
  return [`${other}=${again}`];
}

export function spellings(name: string): readonly string[] {
  return [name, name.toLowerCase(), name.toUpperCase(), name.replaceAll("-", "_")];
}

/** One change: something put in, left out, repeated, turned round, escaped, or another byte. */
export function mutate(chance: Chance, text: string, kind: keyof typeof tokens): string {
  const at = chance.between(0, text.length);
  const to = Math.min(text.length, at + chance.between(1, 6));
  switch (chance.between(0, 7)) {
    case 0:
    case 1:
    case 2:
      return text.slice(0, at) + chance.pick(tokens[kind]) + text.slice(at);
    case 3:
      return text.slice(0, at) + text.slice(to);
    case 4:
      return text + chance.pick(tokens[kind]);
    case 5:
      return text.slice(0, at) + text.slice(at, to) + text.slice(at, to) + text.slice(to);
    case 6: {
      const sign = text.charCodeAt(at);
      if (Number.isNaN(sign)) return text;
      return `${text.slice(0, at)}%${sign.toString(16).padStart(2, "0")}${text.slice(at + 1)}`;
    }
    default:
      return text.slice(0, at) + String.fromCharCode(chance.between(0, 255)) + text.slice(at + 1);
  }
}
