import { expect, test } from "vitest";
import type { ProxyRefusal } from "../../../server/proxy/refusal.ts";
import { stripeDialect } from "../../../server/proxy/stripe-dialect.ts";

const refusal: ProxyRefusal = { status: 400, code: "duplicate_parameter", message: "Send each once.", param: "amount" };

test("a refusal has the shape of Stripe's errors, and its clients do not try again", () => {
  const answer = stripeDialect.answerTo(refusal, "hf_1");
  expect(answer).toEqual({
    status: 400,
    headers: { "content-type": "application/json", "request-id": "hf_1", "stripe-should-retry": "false" },
    body: JSON.stringify({
      error: {
        type: "invalid_request_error",
        code: "duplicate_parameter",
        message: "Send each once.",
        param: "amount",
      },
    }),
  });
});

test("where the same request may be sent again, clients are told so", () => {
  const answer = stripeDialect.answerTo({ status: 503, code: "busy", message: "Later.", retry: true }, "hf_1");
  expect(answer.headers["stripe-should-retry"]).toBe("true");
  expect(JSON.parse(answer.body)).toEqual({ error: { type: "api_error", code: "busy", message: "Later." } });
});

test.each([
  [400, "idempotency_error", "idempotency_error"],
  [401, "missing_credentials", "invalid_request_error"],
  [403, "spend_cap_exceeded", "invalid_request_error"],
  [409, "spend_in_doubt", "invalid_request_error"],
  [500, "broken", "api_error"],
] as const)("%s %s is of the type %s", (status, code, type) => {
  expect(JSON.parse(stripeDialect.answerTo({ status, code, message: "x" }, "hf_1").body)).toMatchObject({
    error: { type },
  });
});

test("the statuses that need a header have it", () => {
  expect(stripeDialect.answerTo({ ...refusal, status: 401 }, "hf_1").headers["www-authenticate"]).toContain("Basic");
  expect(stripeDialect.answerTo({ ...refusal, status: 405 }, "hf_1").headers["allow"]).toBe("GET, POST, DELETE");
});
