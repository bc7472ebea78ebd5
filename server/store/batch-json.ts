type Value = string | number | boolean | null | undefined;
type Fields = Readonly<Record<string, Value>>;

/**
 * The requests of a batch as a function of the database takes them: `shared` are fields of all of them, `each` has what
 * differs from that. Most requests of a batch have most fields in common, and each field that is written is read again.
 */
export function batchJson(requests: readonly Fields[]): string {
  const [shared = {}] = requests;
  return JSON.stringify({ shared, each: requests.map((request) => differences(request, shared)) });
}

function differences(request: Fields, shared: Fields): Fields {
  const differing: Record<string, Value> = {};
  for (const name in request) {
    // Nothing must be said where the others have something.
    if (request[name] !== shared[name]) differing[name] = request[name] ?? null;
  }
  return differing;
}
