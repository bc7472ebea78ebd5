import { createHash, randomBytes, timingSafeEqual } from "node:crypto";
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
import { type ErrorLog, toConnectError } from "./errors.ts";

/** `vk` is the token of a vault key, `op` that of an operator. */
export type TokenKind = "vk" | "op";

/** Who calls. `id` is the vault key's or the operator's id inside the workspace. */
export interface Principal {
  readonly role: "vault_key" | "operator";
  readonly workspace: string;
  readonly id: string;
}

/** Set by the gate before the request is read. Undefined only on health and reflection. */
export const principalKey: ContextKey<Principal | undefined> = createContextKey<Principal | undefined>(undefined, {
  description: "holdfast principal",
});

export interface AuthOptions {
  /** The SHA-256 digests of all secrets that are valid now for this id; empty for an unknown one. */
  readonly lookupTokenHash: (kind: TokenKind, workspace: string, id: string) => Promise<readonly Uint8Array[]>;
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
const nobody = [Buffer.alloc(32)] as const;

const roleOf = { vk: "vault_key", op: "operator" } as const;
const neededRole = { vault_key: Role.VAULT_KEY, operator: Role.OPERATOR } as const;

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
  return createHash("sha256").update(token, "utf8").digest();
}

/** The roles that an RPC's options name. Empty means that nobody may call it. */
export function rolesOf(method: DescMethod): readonly Role[] {
  return hasOption(method, roles) ? getOption(method, roles) : [];
}

/** The caller of an RPC that is not open. Throws INVALID_TOKEN where the gate has not run. */
export function principalOf(values: ContextValues): Principal {
  const principal = values.get(principalKey);
  if (principal === undefined) throw invalidToken();
  return principal;
}

/**
 * Authenticates on the headers, before a byte of the body is read or parsed, and checks the role. Pass it to
 * `startListener` as `requestGate`.
 *
 * A token that was right stays right here for up to 10 s. That is no hole in the kill switch: a revoke is enforced
 * by the transaction that grants, which locks and reads the vault key, never by this cache. Wrong tokens are not
 * remembered, so a new key works at once.
 */
export function authGate(options: AuthOptions): (context: HandlerContext) => Promise<void> {
  const authenticate = createAuthenticator(options);
  return async (context) => {
    if (openServices.has(context.service.typeName)) return;
    try {
      const principal = await authenticate(context.requestHeader);
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

function createAuthenticator(options: AuthOptions): (headers: Headers) => Promise<Principal> {
  const now = options.now ?? (() => performance.now());
  const cache = new Map<string, { readonly principal: Principal; readonly until: number }>();
  const pending = new Map<string, Promise<Principal>>();

  // Every refusal hashes and compares once. Only a well-formed token reaches the database: that a token is
  // malformed is nothing its sender does not know, and garbage must not become queries.
  const verify = async (token: string, hash: Buffer): Promise<Principal> => {
    const parts = tokenPattern.exec(token);
    const [, kind, workspace, id] = (parts ?? []) as readonly (string | undefined)[];
    const wellFormed = kind !== undefined && workspace !== undefined && id !== undefined;
    const stored = wellFormed ? await options.lookupTokenHash(kind as TokenKind, workspace, id) : [];
    if (!matches(hash, stored) || !wellFormed) throw invalidToken();
    return { role: roleOf[kind as TokenKind], workspace, id };
  };

  return async (headers) => {
    const token = bearerToken(headers);
    const hash = tokenHash(token);
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
    const principal = await lookup;
    if (cache.size >= cacheEntriesMax) cache.delete(cache.keys().next().value as string);
    cache.set(cacheKey, { principal, until: now() + cacheMs });
    return principal;
  };
}

function bearerToken(headers: Headers): string {
  // Several authorization headers arrive joined by ", ", which \S+ does not match.
  return bearerPattern.exec(headers.get("authorization") ?? "")?.[1] ?? "";
}

function matches(hash: Buffer, stored: readonly Uint8Array[]): boolean {
  let found = false;
  for (const candidate of stored.length === 0 ? nobody : stored) {
    if (candidate.byteLength === hash.byteLength && timingSafeEqual(candidate, hash)) found = true;
  }
  return found;
}

function requireRole(principal: Principal, method: DescMethod): void {
  if (rolesOf(method).includes(neededRole[principal.role])) return;
  throw new HoldfastError(
    "ROLE_NOT_ALLOWED",
    `${method.name} may not be called with ${principal.role === "vault_key" ? "a vault key's token; use an operator's" : "an operator's token; use a vault key's"}.`,
    { metadata: { method: `${method.parent.typeName}/${method.name}`, role: principal.role } },
  );
}

function invalidToken(): HoldfastError {
  return new HoldfastError(
    "INVALID_TOKEN",
    'The token is missing, malformed or unknown: send exactly one header "authorization: Bearer <token>".',
  );
}
