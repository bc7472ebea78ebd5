import type { SpendOption } from "@holdfast/sdk";

/** Bugs that a billing process can be told to have, so that the checker can be seen to find them. */
export const plants = ["random_key", "second_charge", "wrong_amount", "false_answer"] as const;

export type Plant = (typeof plants)[number];

/** What a billing process is made of. Travels as JSON. */
export interface WorkerStart {
  readonly baseUrl: string;
  readonly stripePort: number;
  readonly plainVendorPort: number;
  /** Tokens of the keys for Stripe and for the plain vendor. */
  readonly vaultKeys: { readonly stripe: string; readonly plain: string };
  readonly timeoutMs: number;
  readonly vendorDeadlineMs: number;
  readonly holdMs: number;
  readonly plant?: Plant;
}

/** One call that a billing process is to make. */
export interface WorkerCall {
  readonly operation: number;
  readonly spend: string;
  /** A method of the Stripe client, for example "paymentIntents.create", or "spend" at the plain vendor. */
  readonly call: string;
  readonly args: readonly unknown[];
  /** Absent for a write on an object that belongs to a spend already. */
  readonly spendOption?: SpendOption;
  readonly abortAfterMs?: number;
  readonly onDecline?: "keep";
}

export type WorkerCommand =
  | { readonly start: WorkerStart }
  | { readonly ask: WorkerCall }
  /** Answered with {"flushed"} when nothing of earlier calls goes on in the background. */
  | { readonly flush: number }
  /** Answered with {"reconciled", "steps"}; without steps if the control plane did not answer. */
  | { readonly reconcile: number };
