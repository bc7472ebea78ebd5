/** What Stripe puts under `error` in a refusal. */
export interface ErrorBody {
  readonly type: "api_error" | "card_error" | "idempotency_error" | "invalid_request_error";
  readonly code?: string | undefined;
  readonly message: string;
  readonly param?: string | undefined;
  readonly decline_code?: string | undefined;
  readonly charge?: string | undefined;
  readonly payment_intent?: object | undefined;
}

/** A refusal in Stripe's own shape. Thrown before execution it is not saved under the key; thrown in execution it is. */
export class StripeRefusal extends Error {
  readonly status: number;
  readonly body: ErrorBody;
  /** Extra response headers, lower case. */
  readonly headers: Readonly<Record<string, string>>;

  constructor(status: number, body: ErrorBody, headers: Readonly<Record<string, string>> = {}) {
    super(body.message);
    this.name = "StripeRefusal";
    this.status = status;
    this.body = body;
    this.headers = headers;
  }
}

export function invalidRequest(message: string, detail: { code?: string; param?: string } = {}): StripeRefusal {
  return new StripeRefusal(
    400,
    { type: "invalid_request_error", message, code: detail.code, param: detail.param },
    { "stripe-should-retry": "false" },
  );
}

export function unknownUrl(method: string, path: string): StripeRefusal {
  return new StripeRefusal(404, {
    type: "invalid_request_error",
    message: `Unrecognized request URL (${method}: ${path}).`,
  });
}

/** An object named in the path does not exist: 404. */
export function noSuchObject(kind: string, id: string): StripeRefusal {
  return new StripeRefusal(404, {
    type: "invalid_request_error",
    code: "resource_missing",
    message: `No such ${kind}: '${id}'`,
    param: "id",
  });
}

/** An operation that the PaymentIntent's status does not allow. Carries the intent, as Stripe does. */
export function unexpectedState(message: string, intent: object): StripeRefusal {
  return new StripeRefusal(
    400,
    {
      type: "invalid_request_error",
      code: "payment_intent_unexpected_state",
      message,
      payment_intent: structuredClone(intent),
    },
    { "stripe-should-retry": "false" },
  );
}

export function unauthorized(message: string): StripeRefusal {
  return new StripeRefusal(401, { type: "invalid_request_error", message });
}

/** Another request executes under the same key. Says nothing about what that one will do. */
export function keyInUse(key: string): StripeRefusal {
  return new StripeRefusal(
    409,
    {
      type: "invalid_request_error",
      code: "idempotency_key_in_use",
      message:
        `There is currently another in-progress request using this Idempotent Key (that probably means you submitted ` +
        `twice, and the other request is still going through): ${key}. Please try again later.`,
    },
    { "stripe-should-retry": "true" },
  );
}

/** The limiter in front of the idempotency layer. */
export function rateLimited(reason: string): StripeRefusal {
  return new StripeRefusal(
    429,
    { type: "invalid_request_error", code: "rate_limit", message: "Request rate limit exceeded." },
    { "stripe-rate-limited-reason": reason },
  );
}

/** Another request holds the object. Comes from inside the endpoint, so it burns the key. */
export function lockTimeout(): StripeRefusal {
  return new StripeRefusal(
    429,
    {
      type: "invalid_request_error",
      code: "lock_timeout",
      message: "This object cannot be accessed right now because another API request is currently accessing it.",
    },
    { "stripe-should-retry": "true" },
  );
}

export function internalError(): StripeRefusal {
  return new StripeRefusal(500, { type: "api_error", message: "An unknown error occurred." });
}
