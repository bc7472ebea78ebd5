"""Stripe's client for Python as its users write it: only api_base and api_key are other ones.

Reads one JSON object per line: {"key": idempotency key or null, "amount": ..., "source": ...}; answers each with one.
"""

import json
import sys

import stripe

stripe.api_base = sys.argv[1]
stripe.api_key = sys.argv[2]
stripe.max_network_retries = 2
# Of the client of a major later, the errors are elsewhere.
errors = getattr(stripe, "error", stripe)

for line in sys.stdin:
    asked = json.loads(line)
    options = {} if asked.get("key") is None else {"idempotency_key": asked["key"]}
    try:
        charge = stripe.Charge.create(
            amount=asked["amount"],
            currency="usd",
            source=asked["source"],
            metadata={"Order no": "5 & 6 = 11; 50% é"},
            **options,
        )
        again = stripe.Charge.retrieve(charge.id)
        said = {"id": again.id, "paid": again.paid, "amount": again.amount, "metadata": again.metadata["Order no"]}
    except errors.StripeError as error:
        # Not every class has the code as a member, but every one has the body.
        code = (error.json_body or {}).get("error", {}).get("code")
        said = {"error": type(error).__name__, "status": error.http_status, "code": code}
    print(json.dumps(said), flush=True)
