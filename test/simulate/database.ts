import type { Database } from "@holdfast/server/store/database";
import type { Answer, Authorize, Evidence, Finding, Identity, Look, Settlement } from "../property/command.ts";
import { type Model, createModel, generations } from "../property/model.ts";
import { type Generation, type Rules, isLive, latest, spendKey } from "../property/model-world.ts";
import { authorizationRow, noCap } from "./database-row.ts";

/**
 * Stands in for Postgres: it answers the store's statements by their names with the reference model of test/property,
 * which the differential histories keep equal to the SQL functions. Only what reads and lists rows is written here. One
 * statement is one transaction, and what it wrote is durable.
 */
export interface StandIn extends Database {
  readonly model: Model;
  /** What a server does from a timer: writes down which holds have run out. */
  sweep(): void;
}

export interface StandInOptions {
  readonly rules: Rules;
  /** The database clock in milliseconds since 1970. */
  readonly clock: () => number;
  /** Learns of every statement once it is carried out. */
  readonly executed: (statement: string, answer: Answer) => void;
  /** Alters every row on its way out; only to plant a defect. */
  readonly alter?: ((row: Row) => Row) | undefined;
}

export type Row = Record<string, unknown>;
type Values = readonly unknown[];

export function createStandIn(options: StandInOptions): StandIn {
  const model = createModel(0, options.rules);
  const context: Context = { model };
  return {
    model,
    sweep() {
      model.world.now = options.clock();
      model.apply({ op: "sweep" });
    },
    query({ name = "", values }) {
      model.world.now = options.clock();
      const statement = statements[name];
      if (statement === undefined) return Promise.reject(new Error(`no stand-in for the statement ${name}`));
      const found = statement(context, values, (answer) => options.executed(name, answer));
      const rows = options.alter === undefined ? found : found.map(options.alter);
      return Promise.resolve({ rows, rowCount: rows.length, command: "", oid: 0, fields: [] } as never);
    },
  };
}

interface Context {
  readonly model: Model;
}

type Statement = (context: Context, values: Values, executed: (answer: Answer) => void) => Row[];

/** The requests of a batch, whole. */
function requestsOf(json: string): Row[] {
  const { shared, each } = JSON.parse(json) as { readonly shared: Row; readonly each: readonly Row[] };
  return each.map((one) => ({ ...shared, ...one }));
}

const statements: Readonly<Record<string, Statement>> = {
  authorize_batch: (context, [, requests], executed) =>
    requestsOf(requests as string).map((request) => {
      const command = authorizeOf(request);
      const [answer = { error: "INTERNAL" }] = context.model.apply(command);
      executed(answer);
      return decisionRow(answer, latest(context.model.world, command));
    }),
  commit_batch: (context, [, requests], executed) =>
    requestsOf(requests as string).map((request) => {
      const found = find(context, request["spend_key"], request["generation"]);
      const spend = identityOf(found);
      const [answer = { error: "INTERNAL" }] = context.model.apply({
        op: "commit",
        key: request["actor_kind"] === "operator" ? null : String(request["actor_id"]),
        spend,
        generation: Number(request["generation"]),
        currency: String(request["currency"]),
        amount: BigInt(String(request["amount_micros"])),
        reference: String(request["vendor_reference"]),
      });
      executed(answer);
      return {
        ...settledRow(answer, found),
        over_committed: answer["overCommitted"] === true,
        hold_left_ms: null,
      };
    }),
  void_spend(context, values, executed) {
    const [, key, generation, kind, actor, attempt, evidence, status, replayed, reference, , , at, account] = values;
    const found = find(context, key, generation);
    const [answer = { error: "INTERNAL" }] = context.model.apply({
      op: "void",
      key: kind === "operator" ? null : String(actor),
      spend: identityOf(found),
      generation: Number(generation),
      attempt: String(attempt),
      evidence: evidence as Evidence,
      vendorStatus: Number(status),
      replayed: replayed === true,
      reference: String(reference),
      ...(at === null ? {} : { look: lookOf(at, account) }),
    });
    executed(answer);
    return [settledRow(answer, found)];
  },
  report_unknown(context, [, key, generation, vaultKey, attempt], executed) {
    const found = find(context, key, generation);
    const [answer = { error: "INTERNAL" }] = context.model.apply({
      op: "reportUnknown",
      key: String(vaultKey),
      spend: identityOf(found),
      generation: Number(generation),
      attempt: String(attempt),
    });
    executed(answer);
    return [settledRow(answer, found)];
  },
  bind_vendor_reference(context, [, key, generation, vaultKey, attempt, reference, state, followFor], executed) {
    const found = find(context, key, generation);
    const [answer = { error: "INTERNAL" }] = context.model.apply({
      op: "bind",
      key: String(vaultKey),
      spend: identityOf(found),
      generation: Number(generation),
      attempt: String(attempt),
      reference: String(reference),
      vendorState: String(state),
      followForMs: milliseconds(followFor),
    });
    executed(answer);
    return [settledRow(answer, found)];
  },
  increase_hold(context, [, key, generation, vaultKey, amount, currency, attempt], executed) {
    const found = find(context, key, generation);
    const [answer = { error: "INTERNAL" }] = context.model.apply({
      op: "increase",
      key: String(vaultKey),
      attempt: String(attempt),
      fence: null,
      spend: identityOf(found),
      generation: Number(generation),
      amount: amount as bigint,
      currency: String(currency),
    });
    executed(answer);
    return [{ ...settledRow(answer, found), rule: answer["rule"] ?? null, ...capFigures(answer, String(currency)) }];
  },
  get_authorization: (context, [, key, generation]) => rowsOf(find(context, key, generation)),
  get_authorization_by_vendor_reference(context, [, vendor, account, reference, vaultKey]) {
    const rank = (one: Generation): number => ["COMMITTED", "HELD", "IN_DOUBT", "VOIDED"].indexOf(one.state);
    const [first] = generations(context.model.world)
      .filter((one) => one.vendor === vendor && one.vendorAccount === account && one.reference === reference)
      .filter((one) => vaultKey === null || one.key === vaultKey)
      .toSorted((a, b) => rank(a) - rank(b) || b.grantTime - a.grantTime || b.generation - a.generation);
    return rowsOf(first);
  },
  list_unsettled_authorizations(context, [, vaultKey]) {
    const { now } = context.model.world;
    return generations(context.model.world)
      .filter((one) => one.key === vaultKey && isLive(one))
      .filter((one) => one.state === "IN_DOUBT" || one.vendorState !== "" || one.holdExpireTime <= now)
      .filter((one) => !(one.state === "HELD" && one.settlement === "TWO_STEP" && one.reference === null))
      .toSorted((a, b) => a.grantTime - b.grantTime)
      .flatMap((one) => rowsOf(one))
      .map((row) => ({ ...row, since: row["state"] === "IN_DOUBT" ? row["hold_expire_time"] : null }));
  },
  read_look_time: ({ model }) => [{ look_time: BigInt(Math.round(model.world.now)) * 1000n }],
  report_reconciliation(context, values, executed) {
    const [, key, generation, , vaultKey, finding, reference, state, , , , at, account] = values;
    const found = find(context, key, generation);
    const [answer = { error: "INTERNAL" }] = context.model.apply({
      op: "report",
      key: String(vaultKey),
      spend: identityOf(found),
      generation: Number(generation),
      finding: finding as Finding,
      reference: String(reference),
      vendorState: String(state),
      look: lookOf(at, account),
    });
    executed(answer);
    return [settledRow(answer, found)];
  },
};

function lookOf(at: unknown, account: unknown): Look {
  return { at: Number((at as bigint) / 1000n), account: String(account) };
}

function find({ model }: Context, key: unknown, generation: unknown): Generation | undefined {
  return model.world.spends.get(String(key))?.[Number(generation) - 1];
}

/** The model finds a generation by its spend; a name that nothing has finds nothing there either. */
function identityOf(found: Generation | undefined): Identity {
  return found ?? { customer: "nobody", period: "-", purpose: "-" };
}

function rowsOf(found: Generation | undefined): Row[] {
  return found === undefined ? [] : [authorizationRow(found, spendKey(found))];
}

function settledRow(answer: Answer, found: Generation | undefined): Row {
  const hidden = found === undefined || answer.error === "OTHER_VAULT_KEY" || answer.error === "NOT_FOUND";
  return { error_reason: answer.error ?? null, ...(hidden ? { spend_key: null } : rowsOf(found)[0]) };
}

function decisionRow(answer: Answer, found: Generation | undefined): Row {
  const shown = typeof answer["name"] === "string" && found !== undefined;
  const fields = String(answer["fields"] ?? "");
  return {
    // A first grant is told by its time alone, as the SQL does where a whole batch is granted.
    ...(shown && isFirstGrant(answer, found)
      ? { new_grant_time: rowsOf(found)[0]?.["grant_time"], authorization_row: null }
      : { new_grant_time: null, authorization_row: shown ? jsonOf(rowsOf(found)[0]) : null }),
    disposition: answer["disposition"] ?? null,
    error_reason: answer.error ?? null,
    differing_fields: fields === "" ? [] : fields.split(","),
    may_have_been_sent: answer["mayHaveBeenSent"] ?? false,
    retry_after_ms: answer["waits"] === true ? 250n : null,
    failed_generation: answer["failedGeneration"] ?? null,
    rule: answer["rule"] ?? null,
    ...capFigures(answer, "usd"),
    draws: null,
    kill_switch: null,
    kill_switch_target: null,
  };
}

function isFirstGrant(answer: Answer, found: Generation): boolean {
  return answer["disposition"] === "GRANTED" && answer["mayHaveBeenSent"] !== true && found.generation === 1;
}

/** As the SQL writes it: what has 64 bits as a text. */
function jsonOf(row: Row | undefined): string {
  return JSON.stringify(row, (_name, value: unknown) => (typeof value === "bigint" ? value.toString() : value));
}

function capFigures(answer: Answer, currency: string): Row {
  if (typeof answer["cap"] !== "string") return noCap;
  return {
    cap_id: answer["cap"],
    window_label: answer["window"] ?? "",
    window_start: null,
    window_end: null,
    cap_limit: answer["limit"] ?? 0n,
    cap_committed: answer["committed"] ?? 0n,
    cap_held: answer["held"] ?? 0n,
    cap_currency: currency,
  };
}

function authorizeOf(request: Row): Authorize {
  const text = (name: string): string => {
    const value = request[name];
    return typeof value === "string" ? value : "";
  };
  return {
    op: "authorize",
    customer: text("customer_id"),
    period: text("billing_period"),
    purpose: text("purpose"),
    key: text("vault_key_id"),
    currency: text("currency"),
    amount: BigInt(text("amount_micros")),
    vendor: text("vendor"),
    vendorAccount: text("vendor_account"),
    endpoint: text("endpoint"),
    direction: text("direction") as Authorize["direction"],
    refundOf: text("refund_of"),
    attempt: text("attempt_id"),
    settlement: text("settlement") as Settlement,
    resendSafeForMs: milliseconds(request["resend_safe_for"]),
    holdMs: milliseconds(request["hold_for"]) ?? 600_000,
    retryAfterGeneration: Number(request["retry_after_generation"]),
    continueReference: text("continue_reference"),
    fence: null,
    fingerprint: text("body_fingerprint"),
    credential: text("credential_fingerprint"),
    sameBodyRequired: request["same_body_required"] === true,
    dryRun: false,
  };
}

/** The store writes intervals as "<n> milliseconds". */
function milliseconds(interval: unknown): number | null {
  return typeof interval === "string" ? Number.parseInt(interval, 10) : null;
}
