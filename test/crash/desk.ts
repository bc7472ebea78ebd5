import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { startTestServer, type TestServer } from "../support/server.ts";
import { startStripeSimulator, type StripeSimulator } from "../support/stripe-simulator/index.ts";
import type { Movement } from "../support/stripe-simulator/movements.ts";
import type { VirtualTime } from "../support/virtual-time.ts";
import type { BillingCall } from "./billing-call.ts";
import { type BillingClient, createBillingClient, type Observer } from "./billing-client.ts";

export const amount = 490;

export interface AuditEvent {
  readonly kind: string;
  readonly attempt_id: string | null;
  readonly disposition: string | null;
  readonly reason: string | null;
  readonly trace_id: string;
  readonly detail: Readonly<Record<string, unknown>>;
}

/** A server and a vendor, and everything that is known about a customer at both. */
export interface Desk {
  readonly server: TestServer;
  readonly simulator: StripeSimulator;
  readonly vaultKey: string;
  call(customerId: string, options?: Partial<BillingCall>): BillingCall;
  /** A billing service; closed with the desk. */
  client(call: BillingCall, observe?: Observer, time?: VirtualTime): BillingClient;
  spend(): ReturnType<typeof createClient<typeof SpendControlService>>;
  charges(customerId: string): Movement[];
  events(customerId: string): Promise<AuditEvent[]>;
  leaseEvents(lease: string): Promise<AuditEvent[]>;
  /** State and vendor reference of each generation. */
  generations(customerId: string): Promise<{ state: string; vendor_reference: string | null }[]>;
  /** How many holds the customer's spends have. */
  holds(customerId: string): Promise<number>;
  /** What the one cap counts, in cents. */
  usage(): Promise<{ committed: number; held: number }>;
  close(): Promise<void>;
}

export async function openDesk(): Promise<Desk> {
  const server = await startTestServer({ protocol: "grpc" });
  const simulator = await startStripeSimulator();
  const allowedEndpoints = ["POST /v1/payment_intents", "POST /v1/charges"];
  const vaultKey = await server.vaultKey("billing", { allowedEndpoints });
  await server.cap("everything", "1000");
  const clients: BillingClient[] = [];
  const baseUrl = server.apps[0]?.url ?? "";
  const { pool } = server.database;
  return {
    server,
    simulator,
    vaultKey,
    call: (customerId, options = {}) => ({
      id: customerId,
      kind: "two_step",
      baseUrl,
      vaultKey,
      stripePort: simulator.port,
      customerId,
      amount,
      timeoutMs: 60_000,
      vendorDeadlineMs: 20_000,
      holdMs: 60_000,
      ...options,
    }),
    client(call, observe, time) {
      const client = createBillingClient(call, observe, time);
      clients.push(client);
      return client;
    },
    spend: () => createClient(SpendControlService, server.transport(vaultKey)),
    charges: (customerId) => simulator.movements().filter(({ customer }) => customer === customerId),
    async events(customerId) {
      const { rows } = await pool.query<AuditEvent>(
        `select kind, attempt_id, disposition, reason, trace_id, detail from holdfast.audit_events
         where customer_id = $1 order by xid, n`,
        [customerId],
      );
      return rows;
    },
    async leaseEvents(lease) {
      const { rows } = await pool.query<AuditEvent>(
        `select kind, attempt_id, disposition, reason, trace_id, detail from holdfast.audit_events
         where detail->>'lease' = $1 order by xid, n`,
        [lease],
      );
      return rows;
    },
    async generations(customerId) {
      const { rows } = await pool.query<{ state: string; vendor_reference: string | null }>(
        "select state, vendor_reference from holdfast.authorizations where customer_id = $1 order by generation",
        [customerId],
      );
      return rows;
    },
    async holds(customerId) {
      const { rowCount } = await pool.query(
        "select from holdfast.holds h join holdfast.authorizations a using (workspace_id, spend_key, generation) " +
          "where a.customer_id = $1",
        [customerId],
      );
      return rowCount ?? 0;
    },
    async usage() {
      const { usage } = await server.admin.getCap({ name: "caps/everything" });
      const cents = (value: string | undefined) => Math.round(Number(value) * 100);
      return { committed: cents(usage?.committed?.amount), held: cents(usage?.held?.amount) };
    },
    async close() {
      simulator.clearFaults();
      await Promise.all(clients.map(({ holdfast }) => holdfast.close()));
      await server.close();
      await simulator.close();
    },
  };
}

/** Loses the first answer of an RPC: the server has carried it out, and the caller does not know. */
export function losesFirst(lost: string): {
  readonly observe: Observer;
  readonly asked: () => number;
  readonly lost: () => boolean;
} {
  let asked = 0;
  let answered = false;
  return {
    asked: () => asked,
    lost: () => answered,
    async observe(point) {
      if (point === `before ${lost}`) asked += 1;
      if (point !== `after ${lost}` || answered) return;
      answered = true;
      throw new ConnectError("the connection was lost before the answer arrived", Code.Unavailable);
    },
  };
}
