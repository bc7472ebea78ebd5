import { type Account, findObject } from "./state.ts";

/** A copy of the answer in which the ids at these paths (`latest_charge`, `data.customer`) are the objects they name. */
export function expanded(account: Account, answer: object, paths: readonly string[]): object {
  const copy = structuredClone(answer);
  for (const path of paths) expandAt(account, copy, path.split("."));
  return copy;
}

function expandAt(account: Account, at: unknown, path: readonly string[]): void {
  const [name, ...rest] = path;
  if (Array.isArray(at)) {
    for (const item of at) expandAt(account, item, path);
    return;
  }
  if (name === undefined || typeof at !== "object" || at === null) return;
  const group = at as Record<string, unknown>;
  const value = group[name];
  const found = typeof value === "string" ? findObject(account, value) : undefined;
  if (found !== undefined) group[name] = structuredClone(found);
  expandAt(account, group[name], rest);
}
