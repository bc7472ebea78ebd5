import { beforeEach, expect, test } from "vitest";
import { defaultProxyPolicy } from "../../server/domain/proxy-policy.ts";
import { knownOwnership } from "../../server/proxy/owned-objects.ts";
import type { ProxyKey } from "../../server/proxy/policy-check.ts";

const mine: ProxyKey = {
  workspace: "default",
  vaultKeyId: "mine",
  vendor: "stripe",
  allowedEndpoints: [],
  billingPeriods: undefined,
  proxy: defaultProxyPolicy,
};
const others: ProxyKey = { ...mine, vaultKeyId: "others" };

let asked: string[];
let written: string[];
/** What the database says: "key account object". */
let stored: Set<string>;

beforeEach(() => {
  asked = [];
  written = [];
  stored = new Set(["mine  ch_1", "mine  ch_2", "mine  ch_3"]);
});

function ownership(max?: number) {
  return knownOwnership(
    {
      async owns({ vaultKeyId }, account, ids) {
        asked.push(...ids);
        return ids.every((id) => stored.has(`${vaultKeyId} ${account} ${id}`));
      },
      async own(_key, _account, ids) {
        written.push(...ids);
      },
    },
    max,
  );
}

test("what is a key's own once is asked once, and not written down again", async () => {
  const { owns, own } = ownership();
  expect([await owns(mine, "", ["ch_1"]), await owns(mine, "", ["ch_1", "ch_2"])]).toEqual([true, true]);
  expect(asked).toEqual(["ch_1", "ch_2"]);
  await own(mine, "", ["ch_1", "ch_9"]);
  expect(written).toEqual(["ch_9"]);
  // That it was written down does not say whose it is: somebody else may have been first.
  expect(await owns(mine, "", ["ch_9"])).toBe(false);
});

test("that it is not is asked every time", async () => {
  const { owns } = ownership();
  expect(await owns(mine, "", ["ch_8"])).toBe(false);
  stored.add("mine  ch_8");
  expect(await owns(mine, "", ["ch_8"])).toBe(true);
});

test("another key, and another account, are asked for themselves", async () => {
  const { owns } = ownership();
  expect(await owns(mine, "", ["ch_1"])).toBe(true);
  expect([await owns(others, "", ["ch_1"]), await owns(mine, "acct_1", ["ch_1"])]).toEqual([false, false]);
});

test("the one that nobody has asked for the longest is forgotten first", async () => {
  const { owns } = ownership(2);
  for (const id of ["ch_1", "ch_2", "ch_1", "ch_3"]) await owns(mine, "", [id]);
  asked = [];
  for (const id of ["ch_1", "ch_3", "ch_2"]) await owns(mine, "", [id]);
  expect(asked).toEqual(["ch_2"]);
});
