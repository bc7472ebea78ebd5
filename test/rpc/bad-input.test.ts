import { type DescMethod, fromJson, getOption, type JsonObject, type Message } from "@bufbuild/protobuf";
import { Code, ConnectError, type Interceptor } from "@connectrpc/connect";
import { createConnectTransport, createGrpcTransport } from "@connectrpc/connect-node";
import { ErrorInfoSchema } from "@holdfast/api/google/rpc/error_details_pb";
import { AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { Role, roles } from "@holdfast/api/holdfast/v1/roles_pb";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { problemOf, send } from "./bad-input/call.ts";
import { kindInMethod, kindOf } from "./bad-input/fields.ts";
import { validRequests } from "./bad-input/requests.ts";
import { hashRows } from "./bad-input/rows.ts";
import { type Bad, lists, mistyped, unknownKeys, valuesOf } from "./bad-input/values.ts";
import { methods, type Place, placesOf } from "./bad-input/walk.ts";
import { openWorld, type World } from "./bad-input/world.ts";
import { firstAnswer } from "./first-answer.ts";

let world: World;
let requests: ReturnType<typeof validRequests>;
let url: string;

beforeAll(async () => {
  world = await openWorld();
  requests = validRequests(world.things);
  url = world.server.apps[0]?.url ?? "";
});
afterAll(() => world.close());

const placeholder = "@@spoiled@@";
const codeOf: Readonly<Record<string, string>> = {
  INVALID_FIELD: "invalid_argument",
  AMOUNT_OUT_OF_RANGE: "out_of_range",
  NOT_FOUND: "not_found",
  SPEND_MISMATCH: "failed_precondition",
  STATE_NOT_ALLOWED: "failed_precondition",
};

function tokenFor(method: DescMethod): string {
  const isKeys = getOption(method, roles).includes(Role.VAULT_KEY);
  return isKeys ? world.tokens.vaultKey : world.tokens.operator;
}

/** The request with the value in that place, as JSON text; undefined where it has no such place. */
function spoiled(request: unknown, keys: Place["keys"], raw: string, isThere: boolean): string | undefined {
  // Not structuredClone, which would leave one object where the request has it twice.
  const copy: unknown = JSON.parse(JSON.stringify(request));
  let at = copy as Record<string | number, unknown>;
  for (const key of keys.slice(0, -1)) {
    const inner = at[key];
    if (typeof inner !== "object" || inner === null) return undefined;
    at = inner as typeof at;
  }
  const last = keys.at(-1);
  if (last === undefined || (isThere && !(last in at))) return undefined;
  at[last] = placeholder;
  return JSON.stringify(copy).replace(`"${placeholder}"`, () => raw);
}

function valuesFor(method: DescMethod, place: Place): readonly Bad[] {
  const kind = kindInMethod[method.name]?.[place.path] ?? kindOf[place.entry];
  const isOfItems = place.field.fieldKind === "list" || place.field.fieldKind === "map";
  const wrong = mistyped(place.field, place.isItem);
  if (kind === undefined || kind === "ignored") return wrong;
  if (isOfItems && !place.isItem) return [...wrong, ...lists(place.field, itemOf(method, place))];
  // A null in a oneof leaves it to the others.
  const isOneof = place.field.oneof !== undefined;
  return [...wrong, ...valuesOf[kind].filter(({ raw }) => !(isOneof && raw === "null"))];
}

/** The first item that the valid request has there. */
function itemOf(method: DescMethod, { keys }: Place): unknown {
  const [request] = requests[method.name] ?? [];
  return [...keys, 0].reduce(
    (at: unknown, key) => (at as Record<string | number, unknown> | undefined)?.[key],
    request,
  );
}

/** What is wrong with how that value was refused. */
async function judge(method: DescMethod, place: Place, { raw, reason, field }: Bad): Promise<string | undefined> {
  const all = requests[method.name] ?? [];
  // Rather in a request that has a valid value there.
  const tries = [true, false].flatMap((isThere) => all.map((one) => spoiled(one, place.keys, raw, isThere)));
  const body = tries.find((one) => one !== undefined);
  if (body === undefined) return `${place.path}: no valid request has it`;
  const answer = await send(url, method, { token: tokenFor(method), body });
  const named = field?.startsWith("+") ? place.path + field.slice(1) : (field ?? place.path);
  // What is wrong inside of one request of a batch is named from there on.
  const expected = answer.status === 200 ? named.replace("requests[0].", "") : named;
  const shown = raw.length > 60 ? `${raw.slice(0, 60)}…` : raw;
  const said = `${method.name} ${place.path} = ${shown}: ${answer.code} ${answer.reason} [${answer.field}] ${answer.message}`;
  const problem = problemOf(answer, raw.replace(/^"|"$/g, ""));
  if (problem !== undefined) return `${problem}: ${said}`;
  const known = reason ?? "INVALID_FIELD";
  if (answer.reason !== known || answer.code !== codeOf[known]) return `has another reason: ${said}`;
  if (field !== null && answer.field !== expected) return `names another field than ${expected}: ${said}`;
  return undefined;
}

/** How the same message is refused in binary, by protocol. */
describe.each(["connect", "grpc"] as const)("in binary over %s", (protocol) => {
  const call = async (method: DescMethod, unknown: NonNullable<Message["$unknown"]>) => {
    const baseUrl = url;
    const interceptors: Interceptor[] = [
      (next) => async (request) => {
        request.header.set("authorization", `Bearer ${tokenFor(method)}`);
        return await next(request);
      },
    ];
    const transport =
      protocol === "grpc"
        ? createGrpcTransport({ baseUrl, interceptors })
        : createConnectTransport({ baseUrl, interceptors, httpVersion: "2" });
    const [request = {}] = requests[method.name] ?? [];
    const message = Object.assign(fromJson(method.input, request as JsonObject), { $unknown: unknown });
    const error = await firstAnswer(transport, method, message).then(
      () => undefined,
      (thrown: unknown) => ConnectError.from(thrown),
    );
    const [info] = error?.findDetails(ErrorInfoSchema) ?? [];
    return { code: error?.code, reason: info?.reason, field: info?.metadata["field"], message: error?.rawMessage };
  };

  test("a field that no message has is refused by its number, in every RPC", async () => {
    const before = await hashRows(world.server.database.pool);
    const accepted: unknown[] = [];
    for (const method of methods) {
      const unknown = [{ no: 9999, wireType: 0, data: Uint8Array.of(1) }];
      const { code, reason, field } = await call(method, unknown);
      if (code !== Code.InvalidArgument || reason !== "INVALID_FIELD" || field !== "9999") accepted.push(method.name);
    }
    expect(accepted).toEqual([]);
    expect(await hashRows(world.server.database.pool)).toEqual(before);
  });

  test.each([
    ["is cut off", Uint8Array.of(5, 0xff)],
    ["is no message", Uint8Array.of(2, 0xff, 0xff)],
    ["is no UTF-8", Uint8Array.of(4, 0x0a, 2, 0xff, 0xfe)],
  ])("a message that %s is the caller's mistake", async (_, data) => {
    const method = SpendControlService.method.authorizeSpend;
    const refused = await call(method, [{ no: 1, wireType: 2, data }]);
    expect(refused).toMatchObject({ code: Code.InvalidArgument, reason: "INVALID_FIELD" });
    expect(refused.message).toMatch(/^The body is not a message of this RPC/);
  });
});

test("a message above the limit is refused by every RPC before it is read", async () => {
  const accepted: string[] = [];
  for (const method of methods.filter(({ name }) => !name.startsWith("Batch"))) {
    // A megabyte for the first of each service, to keep the rest quick.
    const isFirst = method === method.parent.methods[0];
    const body = JSON.stringify({ no_such_field: "x".repeat(isFirst ? 1 << 20 : 1 << 17) });
    const { code } = await send(url, method, { token: tokenFor(method), body });
    if (code !== "resource_exhausted") accepted.push(method.name);
  }
  expect(accepted).toEqual([]);
});

test.each([
  ["no JSON", "{"],
  ["nothing", ""],
  ["a list", "[]"],
  ["no UTF-8", Uint8Array.of(0x7b, 0xff, 0x7d)],
  ["a key twice", '{"cap_id": "a", "cap_id": "b"}'],
])("a body that is %s is refused without what a parser says of it", async (_, body) => {
  const answer = await send(url, AdminService.method.createCap, { token: world.tokens.operator, body });
  expect(answer).toMatchObject({ code: "invalid_argument", reason: "INVALID_FIELD" });
  expect(problemOf(answer, "")).toBeUndefined();
});

test("a page token is refused by every listing but its own", async () => {
  const listings = methods.filter(({ input }) => input.fields.some(({ name }) => name === "page_token"));
  const tokens = new Map<string, string>();
  for (const method of listings) {
    const [request = {}] = requests[method.name] ?? [];
    const body = JSON.stringify({ ...request, page_size: 1 });
    const response = await fetch(`${url}/${method.parent.typeName}/${method.name}`, {
      method: "POST",
      headers: { authorization: `Bearer ${tokenFor(method)}`, "content-type": "application/json" },
      body,
    });
    const { nextPageToken = "" } = (await response.json()) as { nextPageToken?: string };
    if (nextPageToken !== "") tokens.set(method.name, nextPageToken);
  }
  expect(tokens.size).toBeGreaterThan(5);
  const wrong: string[] = [];
  for (const method of listings) {
    for (const [owner, page_token] of tokens) {
      const [request = {}] = requests[method.name] ?? [];
      const body = JSON.stringify({ ...request, page_token });
      const answer = await send(url, method, { token: tokenFor(method), body });
      const expected = owner === method.name ? "ok" : "invalid_argument";
      if (answer.code !== expected || (expected !== "ok" && answer.field !== "page_token")) {
        wrong.push(`${method.name} with a token of ${owner}: ${answer.code} [${answer.field}]`);
      }
    }
  }
  expect(wrong).toEqual([]);
});

/** Values that are well formed, and wrong beside the others. */
test.each<[string, Record<string, unknown>, string, string]>([
  ["IncreaseHold", { amount: { currency: "eur", amount: "20" } }, "SPEND_MISMATCH", ""],
  ["GetCap", { window: "2026-02-30" }, "INVALID_FIELD", "window"],
  ["UpdateVaultKey", { update_mask: "vendor" }, "INVALID_FIELD", "update_mask"],
  ["UpdateCap", { update_mask: "timeZone" }, "INVALID_FIELD", "update_mask"],
  [
    "CreateBillingPeriodKey",
    { max_per_spend: { currency: "eur", amount: "1" } },
    "INVALID_FIELD",
    "max_per_spend.currency",
  ],
  ["VoidSpend", { evidence: "VOID_EVIDENCE_OPERATOR" }, "INVALID_FIELD", "reason"],
  ["AuthorizeSpend", { settlement: "SETTLEMENT_TWO_STEP" }, "INVALID_FIELD", "resend_safe_for"],
  ["AuthorizeSpend", { direction: "DIRECTION_SPEND" }, "INVALID_FIELD", "refund_of"],
  ["ReportReconciliation", { vendor_state: "open" }, "INVALID_FIELD", "vendor_state"],
])("%s refuses %j, which does not fit", async (name, change, reason, field) => {
  const method = methods.find((one) => one.name === name);
  if (method === undefined) throw new Error(`there is no ${name}`);
  const before = await hashRows(world.server.database.pool);
  const body = JSON.stringify({ ...requests[name]?.[0], ...change });
  const answer = await send(url, method, { token: tokenFor(method), body });
  expect(answer).toMatchObject({ reason, code: codeOf[reason], ...(field === "" ? {} : { field }) });
  expect(problemOf(answer, "")).toBeUndefined();
  expect(await hashRows(world.server.database.pool)).toEqual(before);
});

describe("the table", () => {
  test("has an entry for every field that a request can carry, and no other", () => {
    const entries = new Set(methods.flatMap((method) => placesOf(method).map(({ entry }) => entry)));
    expect(Object.keys(kindOf).toSorted()).toEqual([...entries].toSorted());
  });

  test("has a valid request for every RPC", () => {
    expect(Object.keys(requests).toSorted()).toEqual(methods.map(({ name }) => name).toSorted());
  });

  test("names only fields that there are", () => {
    const wrong = Object.entries(kindInMethod).flatMap(([name, kinds]) => {
      const method = methods.find((one) => one.name === name);
      const paths = method === undefined ? [] : placesOf(method).map(({ path }) => path);
      return Object.keys(kinds).filter((path) => !paths.includes(path));
    });
    expect(wrong).toEqual([]);
  });
});

describe("a bad value is refused by field and changes nothing", () => {
  test.each(methods.map((method) => [method.name, method] as const))("%s", async (_, method) => {
    const before = await hashRows(world.server.database.pool);
    const problems: string[] = [];
    for (const place of placesOf(method)) {
      const found = await Promise.all(valuesFor(method, place).map((value) => judge(method, place, value)));
      problems.push(...found.filter((one) => one !== undefined));
    }
    for (const key of unknownKeys) {
      const [request = {}] = requests[method.name] ?? [];
      const body = `${JSON.stringify(request).slice(0, -1)}, "${key}": 1}`.replace("{,", "{");
      const answer = await send(url, method, { token: tokenFor(method), body });
      const problem = problemOf(answer, "1");
      if (problem !== undefined || answer.field !== key)
        problems.push(`${method.name} ${key}: ${JSON.stringify(answer)}`);
    }
    expect(problems).toEqual([]);
    expect(await hashRows(world.server.database.pool)).toEqual(before);
  });
});

test("the valid requests are accepted", async () => {
  const refused: string[] = [];
  // There is one credential for a vendor: this one can be made when the other is gone.
  const last = ["DeleteVendorCredential", "CreateVendorCredential"];
  const order = methods.toSorted((one, other) => last.indexOf(one.name) - last.indexOf(other.name));
  for (const method of order) {
    for (const request of requests[method.name] ?? []) {
      const answer = await send(url, method, { token: tokenFor(method), body: JSON.stringify(request) });
      if (answer.code !== "ok") refused.push(`${method.name}: ${answer.code} ${answer.message}`);
    }
  }
  expect(refused).toEqual([]);
});
