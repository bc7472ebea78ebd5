import type { HoldfastError, SpendOption } from "@holdfast/sdk";
import type { ProxyPolicy } from "../domain/proxy-policy.ts";
import type { ProxyRefusal } from "./refusal.ts";

/** The head of a request as it came over the wire. Nothing in it is trusted, and no byte of it is sent on. */
export interface RawHead {
  readonly method: string;
  /** The request target as it stands in the request line. */
  readonly target: string;
  /** Names and values in turn, line by line, as they came. */
  readonly rawHeaders: readonly string[];
}

/** One parameter, decoded. */
export interface Pair {
  readonly key: string;
  readonly value: string;
}

/** What was read of a head: decoded, checked, and free of anything that could be read in two ways. */
export interface RequestHead {
  /** "GET", "POST" or "DELETE". */
  readonly method: string;
  /** Method and path template, for example "POST /v1/charges/:id/capture": a known endpoint of the vendor. */
  readonly endpoint: string;
  /** The path built anew from the template and the ids. */
  readonly path: string;
  /** The ids in the path, in their order. */
  readonly ids: readonly string[];
  readonly query: readonly Pair[];
  /** A vault key's token. Undefined where no credentials came. */
  readonly token: string | undefined;
  readonly idempotencyKey: string | undefined;
  /** The value of the Holdfast-Spend header. */
  readonly spend: string | undefined;
  /** The version of the vendor's API that the client asks for. */
  readonly apiVersion: string | undefined;
  /** The vendor's account that the client asks for; empty for the platform's own. */
  readonly account: string;
  readonly contentType: string | undefined;
  /** The client waits for a go-ahead before it sends the body. */
  readonly expectsContinue: boolean;
  /** Whether any body may follow: false for GET and DELETE, whose body is refused. */
  readonly takesBody: boolean;
}

/** A whole request, in our own words. */
export interface ProxyRequest extends RequestHead {
  /** The parameters of a form body; empty for JSON. */
  readonly fields: readonly Pair[];
  /** The body written anew, form or JSON; empty without one. */
  readonly body: string;
}

/** What the client gets. */
export interface ProxyAnswer {
  readonly status: number;
  /** Lower-case names; no framing header among them. */
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
}

/** How one vendor's requests are read and its answers are spelled. Pure: reads no clock and sends nothing. */
export interface VendorDialect {
  /** The vendor's word, "stripe"; also its path prefix, "/stripe/". */
  readonly name: string;
  readonly bodyBytesMax: number;
  /** The vault key's token, or undefined without credentials. @throws RefusedRequest where it is sent in two readings. */
  tokenOf(head: RawHead): string | undefined;
  /** @throws RefusedRequest on what is no request of this vendor's API in exactly one reading. */
  readHead(head: RawHead): RequestHead;
  /** @throws RefusedRequest as above. */
  readBody(head: RequestHead, body: Uint8Array): ProxyRequest;
  /** A refusal in the vendor's own shape, with what keeps its clients from trying again, or lets them. */
  answerTo(refusal: ProxyRefusal, requestId: string): ProxyAnswer;
}

/** A request whose head was accepted: its body is wanted. */
export interface WantedBody {
  readonly bytesMax: number;
  /** Carries the request through, also where the client has gone: its repeat is told the answer. */
  answer(body: Uint8Array, signal: AbortSignal): Promise<ProxyAnswer>;
  /** The body did not come, or was too large: ends the request, which is recorded. */
  refused(refusal: ProxyRefusal): Promise<ProxyAnswer>;
}

/** What a listener needs to serve a vendor. None of it rejects. */
export interface ProxyHandler {
  /** Judges the head, credentials and policy included, before a byte of the body is read. */
  begin(head: RawHead): Promise<ProxyAnswer | WantedBody>;
  /** A request whose framing could be read in two ways: refuses it, which is recorded where it is somebody's. */
  refuse(head: RawHead, refusal: ProxyRefusal): Promise<ProxyAnswer>;
  /** For what is no HTTP request at all. */
  unreadable(refusal: ProxyRefusal): ProxyAnswer;
  /** No new requests; resolves when those that run have ended and what waits to be settled is settled or given up. */
  close(graceMs: number): Promise<void>;
}

/** What has to be known of a request before it is carried out. */
export type Flow =
  /** Reads one object. */
  | "retrieve"
  /** Reads what belongs to everybody who shares the account: lists, searches, the account itself. */
  | "list"
  /** A write that moves no money. */
  | "pass"
  /** Moves no money, but may change what later payments do: then only where the policy names it. */
  | "named"
  /** Begins a spend, so it has to say which one. */
  | "begin"
  /** Goes on with an object that may belong to a spend already; only where it does not, it has to say which one. */
  | "continue"
  /**
   * The same, and passed on under the client's own idempotency key where the object belongs to a spend: nothing but the
   * vendor's memory of that key keeps a repeat from changing the object once more.
   */
  | "edit";

/** One request on its way to the vendor. */
export interface Carriage {
  readonly request: ProxyRequest;
  readonly flow: Flow;
  /** The vault key's token, under which the spend is authorized. */
  readonly token: string;
  /** The vendor's own key. */
  readonly secret: string;
  readonly apiVersion: string | undefined;
  readonly proxy: ProxyPolicy;
  readonly spend: SpendOption | undefined;
  /** A spend that was made or begun with another body, by whatever way, is refused and not answered with its object. */
  readonly sameBodyRequired: boolean;
  /** The idempotency key of a write that is no spend. */
  readonly passedKey: string | undefined;
  /** Runs right before each request that moves money. What it throws is certain to have kept it from being sent. */
  readonly beforeMoney: () => Promise<void>;
}

export interface Carried {
  readonly status: number;
  /** The vendor's own, lower-case. */
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
  /** Set where Holdfast and not the vendor answered. */
  readonly refusal: HoldfastError | undefined;
}

/** A vendor as the proxy's core sees it. */
export interface ProxiedVendor {
  readonly dialect: VendorDialect;
  /** How long the vendor surely remembers an idempotency key, in milliseconds. */
  readonly keysRememberedForMs: number;
  /** The state of an object that was declined and waits for another payment method. */
  readonly declinedState: string;
  flowOf(request: RequestHead): Flow;
  /** Whether a write, by its parameters, neither moves money nor changes what later payments do. */
  isHarmless(request: ProxyRequest): boolean;
  /** Ids of the vendor's objects that a request acts on. */
  objectsIn(request: ProxyRequest): readonly string[];
  /** Ids of objects that an answer, a decline too, shows to belong to whoever it was made for. */
  objectsOf(request: ProxyRequest, body: string): readonly string[];
  /** The read of the object that a write with an id in its path answers with. */
  readOf(request: ProxyRequest): ProxyRequest;
  /** Whether a parameter says with which payment method, so that a declined customer's next one is another try. */
  readonly isPaymentMethod: (parameter: string) => boolean;
  /** Whether the vendor said that the payment method was refused. */
  isDecline(status: number): boolean;
  /** Names of the vendor's headers that a client may see. */
  readonly answerHeaders: ReadonlySet<string>;
  /** Never rejects. */
  carry(carriage: Carriage): Promise<Carried>;
  close(graceMs: number): Promise<void>;
}
