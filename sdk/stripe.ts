import type Stripe from "stripe";
import type { SpendOption } from "./context.ts";
import { createStripeGuard, type GuardSettings, type StripeCallScope } from "./stripe-guard.ts";
import type { StripeHttpClient } from "./stripe-http.ts";

/** What a guarded call takes besides Stripe's own request options. */
export interface GuardedCallOptions {
  /** Which spend the call is. Not needed for a write on an object that belongs to a spend already. */
  readonly spend: SpendOption;
  /**
   * Ends the wait for a grant; nothing is sent then. A request that moves money is never cut: after the grant the
   * caller is told at once, and the call is carried through and settled in the background.
   */
  readonly signal?: AbortSignal;
}

/** By these members a request options type is told from parameters. */
interface StripeRequestOptions {
  readonly apiKey?: string;
  readonly idempotencyKey?: string;
  readonly maxNetworkRetries?: number;
  readonly stripeAccount?: string;
}

type AnyMethod = (...args: never[]) => unknown;

// Both overloads of a method; of a method with one signature, that one twice.
type WithSpend<Method> = Method extends { (...args: infer First): infer One; (...args: infer Second): infer Two }
  ? WithOptions<First, One> & WithOptions<Second, Two>
  : never;

type WithOptions<Args extends readonly unknown[], Result> =
  Required<Args> extends readonly [...infer Head, infer Last]
    ? Last extends StripeRequestOptions
      ? (...args: [...Head, Last & GuardedCallOptions]) => Result
      : unknown
    : unknown;

type GuardedMembers<Resource> = {
  readonly [Name in keyof Resource]: Resource[Name] extends AnyMethod
    ? WithSpend<Resource[Name]>
    : Resource[Name] extends object
      ? GuardedMembers<Resource[Name]>
      : Resource[Name];
};

/** What `holdfast.stripe` needs of a Stripe client; every supported major version has it. */
export interface StripeLike {
  readonly paymentIntents: object;
  readonly charges: object;
  rawRequest(method: string, path: string, params?: Record<string, unknown>, options?: object): Promise<unknown>;
}

/**
 * A Stripe client whose charges are spends. Everything else is the client it was made from; every method also takes
 * `spend` and `signal` among its request options.
 */
export type GuardedStripe<Client extends StripeLike = Stripe> = Client & GuardedMembers<Client>;

// The parts of a Stripe client that are stable over its major versions but not in its types.
interface StripeInternals {
  _api: { httpClient: StripeHttpClient };
  _requestSender: object;
  _enableTelemetry: boolean;
  getApiField(name: "httpClient"): StripeHttpClient;
}

/**
 * Makes a guarded view of a Stripe client: the same object with another HttpClient. The given client is not changed
 * and not copied, so its configuration, its events and its version stay what they are.
 */
export function guardStripe<Client extends StripeLike>(stripe: Client, settings: GuardSettings): GuardedStripe<Client> {
  const original = stripe as unknown as StripeInternals;
  if (typeof stripe !== "object" || stripe === null || typeof original.getApiField !== "function") {
    throw new TypeError("holdfast.stripe needs a Stripe client: holdfast.stripe(new Stripe(secret)).");
  }
  const guard = createStripeGuard(settings, original.getApiField("httpClient"));
  const view = Object.create(stripe) as StripeInternals;
  // Telemetry would put request ids of other calls into headers, and write a file.
  override(view, "_enableTelemetry", false);
  override(view, "_api", { ...original._api, httpClient: guard.client });
  override(view, "_requestSender", derive(original._requestSender, view));
  return wrapClient(view, (scope, fn) => guard.scope.run(scope, fn)) as GuardedStripe<Client>;
}

function override(target: object, name: PropertyKey, value: unknown): void {
  Object.defineProperty(target, name, { value, writable: true, configurable: true, enumerable: true });
}

/** The object with the guarded view in place of the client it belongs to. */
function derive(object: object, view: object): object {
  const derived = Object.create(object) as object;
  override(derived, "_stripe", view);
  return derived;
}

type RunInScope = <Result>(scope: StripeCallScope, fn: () => Result) => Result;

interface Wrapping {
  readonly view: object;
  readonly run: RunInScope;
  /** The wrapped client, for what leads back to it. */
  client: object;
}

function wrapClient(view: object, run: RunInScope): object {
  const wrapping: Wrapping = { view, run, client: view };
  wrapping.client = wrap(wrapping, view);
  return wrapping.client;
}

type AnyFunction = (...args: unknown[]) => unknown;

function wrap(wrapping: Wrapping, target: object): object {
  const cache = new Map<PropertyKey, unknown>();
  return new Proxy(target, {
    get(object, name) {
      const value: unknown = Reflect.get(object, name, object);
      const cached = cache.get(name);
      if (cached !== undefined) return cached;
      const wrapped = wrapProperty(wrapping, object, name, value);
      if (wrapped !== value) cache.set(name, wrapped);
      return wrapped;
    },
    set(object, name, value) {
      cache.delete(name);
      return Reflect.set(object, name, value, object);
    },
  });
}

/** Namespaces and resources are wrapped, methods run in a call scope, everything else is handed out as it is. */
function wrapProperty(wrapping: Wrapping, owner: object, name: PropertyKey, value: unknown): unknown {
  if (typeof name !== "string" || !/^[a-z]/.test(name) || name === "constructor") return value;
  if (typeof value === "function") return wrapMethod(wrapping, owner, value as AnyFunction);
  if (typeof value !== "object" || value === null) return value;
  // A namespace knows its client, which would be a way around the guard.
  if (isClient(value)) return wrapping.client;
  if ("_stripe" in value) return wrap(wrapping, derive(value, wrapping.view));
  return isNamespace(value, 0) ? wrap(wrapping, value) : value;
}

function isClient(value: object): boolean {
  return "_requestSender" in value && "_api" in value;
}

const NAMESPACE_DEPTH_MAX = 4;

/** An object that holds resources, such as `stripe.billing`. */
function isNamespace(value: object, depth: number): boolean {
  return Object.values(value).some((member: unknown) => {
    if (typeof member !== "object" || member === null || isClient(member)) return false;
    return "_stripe" in member || (depth < NAMESPACE_DEPTH_MAX && isNamespace(member, depth + 1));
  });
}

function wrapMethod(wrapping: Wrapping, owner: object, method: AnyFunction): AnyFunction {
  return (...args) => {
    const { spend, signal, rest } = takeSpend(args);
    const ownRetries = retriesOf(args);
    const scope: StripeCallScope = { spend, signal, ownRetries, refusals: new Map(), passedKeys: new Map() };
    return wrapResult(
      wrapping,
      scope,
      wrapping.run(scope, () => Reflect.apply<object, readonly unknown[], unknown>(method, owner, rest)),
    );
  };
}

/** Takes the spend and its signal out of the request options: Stripe's client does not know them. */
function takeSpend(args: readonly unknown[]): {
  spend: SpendOption | undefined;
  signal: AbortSignal | undefined;
  rest: readonly unknown[];
} {
  const index = args.findLastIndex((arg) => typeof arg === "object" && arg !== null && Object.hasOwn(arg, "spend"));
  if (index < 0) return { spend: undefined, signal: undefined, rest: args };
  const { spend, signal, ...options } = args[index] as { spend: SpendOption; signal?: AbortSignal };
  const last = index === args.length - 1;
  // An empty options object would be taken for parameters by older versions.
  const kept = Object.keys(options).length === 0 && last && index > 0 ? [] : [options];
  return { spend, signal, rest: [...args.slice(0, index), ...kept, ...args.slice(index + 1)] };
}

/** `maxNetworkRetries` of the request options, which only some versions of Stripe's client hand on to any hook. */
function retriesOf(args: readonly unknown[]): unknown {
  const options = args.findLast((arg) => typeof arg === "object" && arg !== null);
  return options === undefined ? undefined : (options as { maxNetworkRetries?: unknown }).maxNetworkRetries;
}

function wrapResult(wrapping: Wrapping, scope: StripeCallScope, result: unknown): unknown {
  if (typeof result !== "object" || result === null) return result;
  if (isClient(result)) return wrapClient(result, wrapping.run);
  if (!(result instanceof Promise)) return isIterator(result) ? wrapFunctions(scope, result, {}) : result;
  const translated = result.catch((error: unknown) => {
    throw translate(scope, error);
  });
  return wrapFunctions(scope, result, translated);
}

function isIterator(value: object): boolean {
  return "next" in value && typeof value.next === "function";
}

/** Gives `target` the paging functions that Stripe hangs on its promises, with their errors translated too. */
function wrapFunctions(scope: StripeCallScope, source: object, target: object): object {
  for (const name of Reflect.ownKeys(source)) {
    const member: unknown = Reflect.get(source, name);
    if (typeof member !== "function") continue;
    override(target, name, (...args: unknown[]) => {
      const result: unknown = Reflect.apply(member, source, args);
      if (result === source) return target;
      if (result instanceof Promise) {
        return result.catch((error: unknown) => {
          throw translate(scope, error);
        });
      }
      return typeof result === "object" && result !== null && isIterator(result)
        ? wrapFunctions(scope, result, {})
        : result;
    });
  }
  return target;
}

/** The typed error behind a synthetic refusal, with Stripe's own error as its cause. */
function translate(scope: StripeCallScope, error: unknown): unknown {
  if (!(error instanceof Error) || !("requestId" in error)) return error;
  const typed = scope.refusals.get(String(error.requestId));
  if (typed === undefined) return error;
  if (typed.cause !== undefined) error.cause = typed.cause;
  typed.cause = error;
  return typed;
}
