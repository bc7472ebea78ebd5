import { SpendDeniedError, SpendInDoubtError } from "@holdfast/sdk";
import type { BillingReport, Ending } from "./billing-job.ts";
import type { Customer } from "./customers.ts";

const problemsMax = 5;

/** Notes how each customer's last try ended. */
export class Endings {
  readonly #endings = new Map<string, Ending>();
  readonly #problems: string[] = [];
  retries = 0;

  charged(customer: Customer): void {
    this.#endings.set(customer.id, "charged");
  }

  failed(customer: Customer, error: unknown): void {
    this.#endings.set(customer.id, endingOf(error));
    if (endingOf(error) === "failed" && this.#problems.length < problemsMax) this.#problems.push(String(error));
  }

  report(): BillingReport {
    return { endings: Object.fromEntries(this.#endings), retries: this.retries, problems: this.#problems };
  }
}

function endingOf(error: unknown): Ending {
  if (error instanceof SpendDeniedError) return "denied";
  return error instanceof SpendInDoubtError ? "in_doubt" : "failed";
}
