import { readFileSync } from "node:fs";
import { join } from "node:path";

export interface Customer {
  /** Our own id, the one a spend is about. */
  readonly id: string;
  readonly name: string;
  readonly stripeCustomer: string;
  /** A Stripe test card, "pm_card_…". */
  readonly paymentMethod: string;
  /** What the customer owes for the period, in cents. */
  readonly cents: number;
}

const header = "id,name,stripe_customer,payment_method,amount_usd";

/** The customers of the file, at most `count`. Throws a plain Error that names the line it cannot read. */
export function readCustomers(count: number): readonly Customer[] {
  const lines = readFileSync(join(import.meta.dirname, "customers.csv"), "utf8")
    .trimEnd()
    .split(/\r?\n/);
  if (lines[0] !== header) throw new Error(`customers.csv must begin with: ${header}`);
  return lines.slice(1, count + 1).map((line, index) => readCustomer(line, index + 2));
}

function readCustomer(line: string, number: number): Customer {
  const [id, name, stripeCustomer, paymentMethod, amount] = splitLine(line);
  const digits = /^(\d{1,6})\.(\d{2})$/.exec(amount ?? "");
  if (
    id === undefined ||
    name === undefined ||
    stripeCustomer === undefined ||
    paymentMethod === undefined ||
    !digits
  ) {
    throw new Error(`Line ${number} of customers.csv cannot be read: ${line}`);
  }
  return { id, name, stripeCustomer, paymentMethod, cents: Number(`${digits[1]}${digits[2]}`) };
}

/** One line of CSV; a field with a comma is in quotes. */
function splitLine(line: string): string[] {
  return [...line.matchAll(/(?:^|,)(?:"((?:[^"]|"")*)"|([^,]*))/g)].map(
    ([, quoted, plain]) => quoted?.replaceAll('""', '"') ?? plain ?? "",
  );
}

/** 123456 → "1234.56", the form in which Holdfast takes amounts. */
export function toDollars(cents: number): string {
  const text = String(cents).padStart(3, "0");
  return `${text.slice(0, -2)}.${text.slice(-2)}`;
}

export function sumOfCents(items: readonly { readonly cents: number }[]): number {
  return items.reduce((sum, { cents }) => sum + cents, 0);
}
