import { hash as digest, randomBytes, timingSafeEqual } from "node:crypto";
import { type DescMethod, getOption, hasOption } from "@bufbuild/protobuf";
import {
  type ContextKey,
  type ContextValues,
  createContextKey,
  type HandlerContext,
  type Interceptor,
} from "@connectrpc/connect";
import { Role, roles } from "@holdfast/api/holdfast/v1/roles_pb";
import { HoldfastError } from "../domain/errors.ts";
import type { StoredSecret } from "../domain/secret.ts";
import type { Actor } from "../domain/spend.ts";
import { type ErrorLog, toConnectError } from "./errors.ts";

/** `vk` is the token of a vault key, `op` that of an operator or an auditor. */
export type TokenKind = "vk" | "op";

/** Who calls. `id` is the vault key's or the operator's id inside the workspace. */
export interface Principal {
  readonly role: "vault_key" | "operator" | "auditor";
  readonly workspace: string;
  readonly id: string;
}

/** Set by the gate before the request is read. Undefined only on health and reflection. */
export const principalKey: ContextKey<Principal | undefined> = createContextKey<Principal | undefined>(undefined, {
  description: "holdfast principal",
});

/** Whom the tokens of one id open for, and what is stored of their secrets. */
export interface TokenOwner {
  readonly role: Principal["role"];
  readonly secrets: readonly StoredSecret[];
}

export interface AuthOptions {
  /** Undefined for an unknown id. */
  readonly lookupToken: (kind: TokenKind, workspace: string, id: string) => Promise<TokenOwner | undefined>;
  readonly log: ErrorLog;
  /** Monotonic milliseconds. */
  readonly now?: () => number;
}

const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
const secretLength = 43; // 43 characters of 62 are 256.03 bits.
const idPattern = /^[a-z0-9]{1,32}$/;
// Our own secrets have 43 characters; an operator's token from the configuration may have 32 to 128.
const tokenPattern = /^(vk|op)_([a-z0-9]{1,32})_([a-z0-9]{1,32})_[A-Za-z0-9]{32,128}$/;
const bearerPattern = /^bearer +(\S+)$/i;

const cacheMs = 10_000;
const cacheEntriesMax = 10_000;

/** Compared against when an id has no secret, so that an unknown id costs what a wrong secret costs. */
const nobody: readonly StoredSecret[] = [{ sha256: Buffer.alloc(32), validForMs: undefined }];

const neededRole = { vault_key: Role.VAULT_KEY, operator: Role.OPERATOR, auditor: Role.AUDITOR } as const;

/** Services that need no token: they say nothing about any workspace. */
const openServices: ReadonlySet<string> = new Set([
  "grpc.health.v1.Health",
  "grpc.reflection.v1.ServerReflection",
  "grpc.reflection.v1alpha.ServerReflection",
]);

/**
 * Makes a token `vk_<workspace>_<id>_<secret>` or `op_…`. Show it once and store only `tokenHash` of it.
 * `random` returns that many random bytes. Throws on a workspace or an id that is not `[a-z0-9]{1,32}`.
 */
export function createToken(
  kind: TokenKind,
  workspace: string,
  id: string,
  random: (size: number) => Uint8Array = randomBytes,
): string {
  if (!idPattern.test(workspace) || !idPattern.test(id)) {
    throw new RangeError(`a token needs a workspace and an id of [a-z0-9]{1,32}, got "${workspace}" and "${id}"`);
  }
  let secret = "";
  while (secret.length < secretLength) {
    for (const byte of random(secretLength)) {
      // 248 = 4 × 62: larger bytes would make the first characters of the alphabet more likely.
      if (byte < 248 && secret.length < secretLength) secret += alphabet.charAt(byte % 62);
    }
  }
  return `${kind}_${workspace}_${id}_${secret}`;
}

/** SHA-256 of the whole token: what is stored and compared. A 256-bit secret needs no slow hash. */
export function tokenHash(token: string): Buffer {
  return digest("sha256", token, "buffer");
}

const rolesByMethod = new WeakMap<DescMethod, readonly Role[]>();

/** The roles that an RPC's options name. Empty means that nobody may call it. Read once: every call is judged twice. */
export function rolesOf(method: DescMethod): readonly Role[] {
  let known = rolesByMethod.get(method);
  if (known === undefined) {
    known = hasOption(method, roles) ? getOption(method, roles) : [];
    rolesByMethod.set(method, known);
  }
  return known;
}

/** The caller of an RPC that is not open. Throws INVALID_TOKEN where the gate has not run. */
export function principalOf(values: ContextValues): Principal {
  const principal = values.get(principalKey);
  if (principal === undefined) throw invalidToken();
  return principal;
}

/** Who asks for a change. The roles of the RPC keep auditors away; this is for one whose roles are wrong. */
export function actorOf({ role, id }: Principal): Actor {
  if (role === "auditor") throw new HoldfastError("ROLE_NOT_ALLOWED", "An auditor reads and changes nothing.");
  return { kind: role, id };
}

/**
 * Authenticates on the headers, before a byte of the body is read or parsed, and checks the role. Pass it to
 * `startListener` as `requestGate`.
 *
 * A vault key's token that was right stays right here for up to 10 s, and never beyond the overlap of a rotation. That
 * is no hole in the kill switch: a suspend or a revoke is enforced by the transaction that grants, which locks and reads
 * the vault key, never by this cache. Wrong tokens are not remembered, so a new key works at once. An operator's token
 * is looked up with every call: no transaction asks for it again.
 */
export function authGate(options: AuthOptions): (context: HandlerContext) => Promise<void> {
  const authenticate = createAuthenticator(options);
  return async (context) => {
    if (openServices.has(context.service.typeName)) return;
    try {
      const principal = await authenticate(bearerToken(context.requestHeader));
      requireRole(principal, context.method);
      context.values.set(principalKey, principal);
    } catch (error) {
      // Interceptors do not see what a gate throws, so the translation happens here.
      throw toConnectError(error, options.log, context.signal);
    }
  };
}

/** The second wall: refuses every call to a guarded service that came past no gate. */
export function principalInterceptor(): Interceptor {
  return (next) => async (request) => {
    if (!openServices.has(request.service.typeName)) requireRole(principalOf(request.contextValues), request.method);
    return await next(request);
  };
}

/** Who a token opens for. Throws INVALID_TOKEN. */
export type Authenticate = (token: string) => Promise<Principal>;

/** Looks tokens up, and remembers right ones of vault keys for a while, as `authGate` says. */
export function createAuthenticator(options: AuthOptions): Authenticate {
  const now = options.now ?? (() => performance.now());
  const cache = new Map<string, Verified>();
  const pending = new Map<string, Promise<Verified>>();

  // Every refusal hashes and compares once. Only a well-formed token reaches the database: that a token is
  // malformed is nothing its sender does not know, and garbage must not become queries.
  const verify = async (token: string, hash: Buffer): Promise<Verified> => {
    const parts = tokenPattern.exec(token);
    const [, kind, workspace, id] = (parts ?? []) as readonly (string | undefined)[];
    const wellFormed = kind !== undefined && workspace !== undefined && id !== undefined;
    // From before the look-up: what is left of an overlap counts from when it was read.
    const begun = now();
    const owner = wellFormed ? await options.lookupToken(kind as TokenKind, workspace, id) : undefined;
    const secret = matching(hash, owner?.secrets ?? []);
    if (secret === undefined || owner === undefined || !wellFormed) throw invalidToken();
    const cachedForMs = kind === "op" ? 0 : Math.min(cacheMs, secret.validForMs ?? cacheMs);
    return { principal: { role: owner.role, workspace, id }, until: begun + cachedForMs };
  };

  return async (token) => {
    const hash = tokenHash(token);
    // Not even shared with a call that came at the same time: that one may have asked before a revoke, this one after.
    if (token.startsWith("op_")) return (await verify(token, hash)).principal;
    const cacheKey = hash.toString("latin1");
    const known = cache.get(cacheKey);
    if (known !== undefined && now() < known.until) return known.principal;
    cache.delete(cacheKey);

    // A server that has just started is asked about one token by many calls at once: one look-up answers them all.
    let lookup = pending.get(cacheKey);
    if (lookup === undefined) {
      lookup = verify(token, hash).finally(() => pending.delete(cacheKey));
      pending.set(cacheKey, lookup);
    }
    const verified = await lookup;
    if (cache.size >= cacheEntriesMax) cache.delete(cache.keys().next().value as string);
    cache.set(cacheKey, verified);
    return verified.principal;
  };
}

/** A right token, and until when nobody asks about it again. */
interface Verified {
  readonly principal: Principal;
  readonly until: number;
}

function bearerToken(headers: Headers): string {
  // Several authorization headers arrive joined by ", ", which \S+ does not match.
  return bearerPattern.exec(headers.get("authorization") ?? "")?.[1] ?? "";
}

/** Compares with every secret, so that the time says nothing about which one it was. */
function matching(hash: Buffer, stored: readonly StoredSecret[]): StoredSecret | undefined {
  let found: StoredSecret | undefined;
  for (const candidate of stored.length === 0 ? nobody : stored) {
    const { sha256 } = candidate;
    if (sha256.byteLength === hash.byteLength && timingSafeEqual(sha256, hash)) found = candidate;
  }
  return found;
}

function requireRole(principal: Principal, method: DescMethod): void {
  if (rolesOf(method).includes(neededRole[principal.role])) return;
  throw new HoldfastError(
    "ROLE_NOT_ALLOWED",
    `${method.name} may not be called with ${wrongToken(principal.role, rolesOf(method))}.`,
    { metadata: { method: `${method.parent.typeName}/${method.name}`, role: principal.role } },
  );
}

function wrongToken(role: Principal["role"], allowed: readonly Role[]): string {
  const other = allowed.includes(Role.OPERATOR) ? "an operator's" : "a vault key's";
  if (role === "auditor") return `an auditor's token, which only reads; use ${other}`;
  return `${role === "vault_key" ? "a vault key's" : "an operator's"} token; use ${other}`;
}

function invalidToken(): HoldfastError {
  return new HoldfastError(
    "INVALID_TOKEN",
    'The token is missing, malformed or unknown: send exactly one header "authorization: Bearer <token>".',
  );
}
