/** The fields of Stripe's objects that clients of this project read. Amounts in minor units, times in seconds. */

export type Metadata = Record<string, string>;

export interface Charge {
  id: string;
  object: "charge";
  amount: number;
  amount_captured: number;
  amount_refunded: number;
  application_fee: string | null;
  application_fee_amount: number | null;
  balance_transaction: string | null;
  captured: boolean;
  created: number;
  currency: string;
  customer: string | null;
  description: string | null;
  dispute: string | null;
  disputed: boolean;
  failure_code: string | null;
  failure_message: string | null;
  livemode: false;
  metadata: Metadata;
  outcome: { network_status: string; type: string; seller_message: string };
  paid: boolean;
  payment_intent: string | null;
  payment_method: string | null;
  refunded: boolean;
  status: "succeeded" | "pending" | "failed";
  transfer_group: string | null;
}

export type PaymentIntentStatus =
  | "requires_payment_method"
  | "requires_confirmation"
  | "requires_action"
  | "processing"
  | "requires_capture"
  | "succeeded"
  | "canceled";

export interface PaymentIntent {
  id: string;
  object: "payment_intent";
  amount: number;
  amount_capturable: number;
  amount_received: number;
  application_fee_amount: number | null;
  canceled_at: number | null;
  cancellation_reason: string | null;
  capture_method: "automatic" | "automatic_async" | "manual";
  client_secret: string;
  confirmation_method: "automatic" | "manual";
  created: number;
  currency: string;
  customer: string | null;
  description: string | null;
  last_payment_error: object | null;
  latest_charge: string | null;
  livemode: false;
  metadata: Metadata;
  next_action:
    | { type: "use_stripe_sdk"; use_stripe_sdk: object }
    | { type: "verify_with_microdeposits"; verify_with_microdeposits: object }
    | null;
  payment_method: string | null;
  payment_method_types: string[];
  status: PaymentIntentStatus;
  transfer_group: string | null;
}

export interface Customer {
  id: string;
  object: "customer";
  created: number;
  default_source: string | null;
  balance: number;
  description: string | null;
  email: string | null;
  invoice_settings: { default_payment_method: string | null };
  livemode: false;
  metadata: Metadata;
  name: string | null;
}

export interface Refund {
  id: string;
  object: "refund";
  amount: number;
  charge: string;
  created: number;
  currency: string;
  metadata: Metadata;
  payment_intent: string | null;
  reason: string | null;
  status: "pending" | "requires_action" | "succeeded" | "failed" | "canceled";
  failure_reason?: string;
}

export interface StripeEvent {
  id: string;
  object: "event";
  api_version: string;
  created: number;
  data: { object: object };
  livemode: false;
  pending_webhooks: 0;
  /** Null for what Stripe does by itself, such as a bank debit that settles. */
  request: { id: string | null; idempotency_key: string | null } | null;
  type: string;
}
