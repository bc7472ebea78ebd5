import { fromStripeAmount, moneyFrom } from "./money.ts";
import type { Grant } from "./spend.ts";
import { readObject, type StripeCall, stringField } from "./stripe-call.ts";
import type { StripeAnswer } from "./stripe-http.ts";
import { minor } from "./stripe-object.ts";
import { isRecord } from "./stripe-send.ts";
import { sendStep } from "./stripe-step.ts";

/** What the guard needs of a PaymentIntent, with the answer it came in. */
export interface Intent {
  readonly id: string;
  readonly status: string;
  /** What it asks for, in Stripe's integer unit; undefined where it does not say. */
  readonly amount: bigint | undefined;
  /** In Stripe's integer unit. */
  readonly amountReceived: bigint;
  readonly currency: string;
  readonly answer: StripeAnswer;
}

export function intentPath(id: string): string {
  return `/v1/payment_intents/${encodeURIComponent(id)}`;
}

/** Undefined if the answer is not a PaymentIntent. */
export function parseIntent(answer: StripeAnswer): Intent | undefined {
  const { body } = answer;
  if (!isRecord(body)) return undefined;
  const id = stringField(body, "id");
  const status = stringField(body, "status");
  if (id === "" || status === "") return undefined;
  // A succeeded object that does not say what it received is not understood: nothing is guessed about money.
  const received = body["amount_received"] ?? (status === "succeeded" ? undefined : 0);
  if (!Number.isSafeInteger(received)) return undefined;
  if (status === "succeeded" && moneyFrom(BigInt(received as number), stringField(body, "currency")) === undefined) {
    return undefined;
  }
  return {
    id,
    status,
    amount: minor(body, "amount"),
    amountReceived: BigInt(received as number),
    currency: stringField(body, "currency"),
    answer,
  };
}

export async function readIntent(call: StripeCall, id: string, deadline: number): Promise<Intent | undefined> {
  const answer = await readObject(call, intentPath(id), { deadline });
  return answer === undefined ? undefined : parseIntent(answer);
}

export async function commitIntent(
  call: StripeCall,
  authorization: string,
  intent: Intent,
  attemptId?: string,
): Promise<void> {
  await call.settlements.commit(authorization, {
    money: fromStripeAmount(intent.amountReceived, intent.currency),
    vendorReference: intent.id,
    ...(attemptId === undefined ? {} : { attemptId }),
  });
}

/** Cancels, and answers with what the object is afterwards; undefined if that cannot be learned. */
export async function cancelIntent(
  call: StripeCall,
  grant: Grant,
  id: string,
  key: string,
  deadline: number,
): Promise<Intent | undefined> {
  // Cancelling moves no money, so neither a lease nor a hold that ran out forbids it.
  const result = await sendStep(
    call,
    { ...grant, lease: undefined },
    {
      path: `${intentPath(id)}/cancel`,
      endpoint: "POST /v1/payment_intents/:id/cancel",
      body: "",
      key,
      replay: false,
      first: false,
      ends: true,
      sendUntil: Number.POSITIVE_INFINITY,
      deadline,
    },
  );
  if (result.outcome === "charged" && result.exchange.answer !== undefined) {
    const intent = parseIntent(result.exchange.answer);
    if (intent !== undefined) return intent;
  }
  return readIntent(call, id, deadline);
}
