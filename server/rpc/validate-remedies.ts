/**
 * What a pattern of the contract allows, in words that complete "must be …". Descriptors carry no comments at run
 * time, so the words live here; a test fails when the contract gets a pattern that is missing.
 */
export const remedyOfPattern: Readonly<Record<string, string>> = {
  "^[!-9;-~]{1,128}$": "1–128 visible ASCII characters without spaces and without ':'",
  "^[!-9;-~]{0,128}$": "at most 128 visible ASCII characters without spaces and without ':'",
  "^[!-~]{1,128}$": "1–128 visible ASCII characters without spaces",
  "^[!-~]{0,128}$": "at most 128 visible ASCII characters without spaces",
  "^[!-~]{1,255}$": "1–255 visible ASCII characters without spaces, as the vendor wrote it",
  "^[!-~]{0,255}$": "at most 255 visible ASCII characters without spaces, as the vendor wrote it",
  "^[^\\p{Cc}\\p{Cf}\\p{Cs}\\p{Zl}\\p{Zp}]*$": "one line without control, direction and zero-width characters",
  "^[0-9a-f]{32}$": "32 lower-case hex digits: 128 random bits, made once per logical call",
  "^([0-9a-f]{32})?$": "32 lower-case hex digits, or empty",
  "^([0-9a-f]{64})?$": "a SHA-256 as 64 lower-case hex digits, or empty",
  "^[a-z]{3}$": 'an ISO 4217 code in lower case, for example "usd"',
  "^-?(0|[1-9][0-9]{0,12})(\\.[0-9]{1,6})?$":
    'a decimal string with at most 6 decimals and at most 13 digits before the point, for example "49.90"',
  "^[a-z][a-z0-9_]{0,31}$": 'a vendor name like "stripe": a lower-case letter, then up to 31 of a–z, 0–9 and _',
  "^([a-z][a-z0-9_]{0,31})?$":
    'a vendor name like "stripe" (a lower-case letter, then up to 31 of a–z, 0–9 and _), or empty',
  "^[a-z_]{0,64}$": 'the vendor\'s word in lower case, for example "requires_action", or empty',
  "^(GET|POST|PUT|PATCH|DELETE) (/(:[A-Za-z][A-Za-z0-9_]*|[A-Za-z0-9_-][A-Za-z0-9_.-]*))+$":
    'a method, one space and a canonical path template, for example "POST /v1/charges/:id" (segments of letters, digits, _, - and ., none beginning with a dot; no query, escape, empty segment or trailing slash)',
  "^((GET|POST|PUT|PATCH|DELETE) (/(:[A-Za-z][A-Za-z0-9_]*|[A-Za-z0-9_-][A-Za-z0-9_.-]*))+)?$":
    'a method, one space and a canonical path template, for example "POST /v1/charges/:id", or empty',
  "^[0-9]{4}-[0-9]{2}-[0-9]{2}(\\.[a-z]+)?$": 'a version of the vendor\'s API, for example "2026-01-28.clover"',
  "^acct_[A-Za-z0-9]{1,64}$": "an account as the vendor shows it, acct_ and 1–64 letters and digits",
  "^(body\\.customer|body\\.metadata\\[[A-Za-z0-9_.-]{1,40}\\]|fixed:[!-9;-~]{1,128})$":
    '"body.customer", "body.metadata[name]", or "fixed:" and a customer of 1–128 visible ASCII characters without \':\'',
  "^(fixed:[!-~]{1,128}|body\\.metadata\\[[A-Za-z0-9_.-]{1,40}\\]|body\\.[a-z][a-z0-9_]{0,63})$":
    '"fixed:" and a purpose of 1–128 visible ASCII characters, "body.metadata[name]", or "body." and a parameter',
  "^authorizations/[0-9a-f]{36}-[1-9][0-9]{0,6}$":
    "a resource name as AuthorizeSpend returned it, authorizations/{32 hex digits}-{generation}",
  "^contradictions/[0-9a-f]{32}$": "a resource name as ListContradictions returned it, contradictions/{32 hex digits}",
  "^caps/[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$": "a resource name, caps/{cap}",
  "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$": "1–63 of a–z, 0–9 and -, without a - at either end",
  "^vaultKeys/[a-z0-9]{1,32}$": "a resource name, vaultKeys/{vault_key}",
  "^(vaultKeys/[a-z0-9]{1,32})?$": "a resource name, vaultKeys/{vault_key}, or empty",
  "^([a-z_]{1,32}(\\.[a-z_]{1,32})?)?$": 'a kind of event, for example "spend.denied" or "vault_key", or empty',
  "^((vaultKeys|operators|server)/[a-z0-9_-]{1,64})?$":
    "a resource name, vaultKeys/…, operators/… or server/…, or empty",
  "^(authorizations/[0-9a-f]{36}-[1-9][0-9]{0,6})?$": "a resource name, authorizations/…, or empty",
  "^[A-Za-z0-9_-]{1,128}$": "the look_token that ListUnsettledAuthorizations answered, as it is",
  "^[!-.0-~]{0,128}$": "up to 128 visible ASCII characters without a slash, as the vendor shows the account",
  "^[A-Z_]{0,64}$": 'a word such as "GRANTED", or empty',
  "^(v[1-9][0-9]{0,18})?$": "an etag as it was read, or empty",
  "^[a-z]([a-z0-9_-]{0,62}[a-z0-9])?$": "1–64 of a–z, 0–9, _ and -, beginning with a letter, without _ or - at the end",
  "^killSwitches/[0-9a-f]{32}$": "a resource name as EngageKillSwitch returned it",
  "^operators/[a-z0-9]{1,32}$": "a resource name, operators/{operator}",
  "^([0-9](\\.[0-9]{1,4})?|10(\\.0{1,4})?)?$":
    'a decimal fraction from 0 to 10 with at most 4 decimals, for example "0.10", or empty',
  "^vendorCredentials/[a-z0-9]{1,32}$": "a resource name, vendorCredentials/{vendor_credential}",
  "^reconciliationRuns/[0-9a-f]{32}$": "a resource name as StartReconciliationRun returned it",
  "^[!-~]{8,512}$": "8–512 visible ASCII characters, as the vendor shows it",
  "^[a-z0-9]{1,32}$": "1–32 of a–z and 0–9",
  "^[A-Za-z0-9_+/-]{0,64}$": 'an IANA time zone, for example "Europe/Berlin"',
};
