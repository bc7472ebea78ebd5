import { Code, createClient, type Transport } from "@connectrpc/connect";
import { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { createGrpcJsTransport } from "@holdfast/sdk/grpc-js";
import {
  createHoldfast,
  type Holdfast,
  HoldfastRefusedError,
  HoldfastUnavailableError,
  type TlsOptions,
} from "@holdfast/sdk";
import { afterAll, beforeAll, beforeEach, describe, expect, it } from "vitest";
import { createAuthority } from "../support/certificates.ts";
import { createFakeControlPlane, failure, type FakeControlPlane } from "../support/fake-control-plane.ts";
import { type Front, startFront } from "../support/front.ts";
import { type PlaneServer, servePlane } from "../support/plane-server.ts";
import { rejection, SPEND } from "./setup.ts";

const MAIL = { amount: "0.0079", currency: "usd", vendor: "resend", endpoint: "POST /emails" };
const vaultKey = "vk_test_main_secret";

const authority = createAuthority();
const stranger = createAuthority("Another authority");
const serverIdentity = authority.issue("localhost", "holdfast.internal");
const clientIdentity = authority.issue("billing");

let plane: FakeControlPlane;
let server: PlaneServer;
let encrypted: Front;
let mutual: Front;
const closers: (() => unknown)[] = [];

beforeAll(async () => {
  plane = createFakeControlPlane();
  server = await servePlane(plane);
  const port = () => server.port;
  encrypted = await startFront(port, serverIdentity);
  mutual = await startFront(port, {
    ...serverIdentity,
    ca: authority.cert,
    requestCert: true,
    rejectUnauthorized: true,
  });
});
afterAll(async () => {
  for (const close of closers) await close();
  await Promise.all([encrypted.close(), mutual.close()]);
  await server.close();
});
beforeEach(() => {
  plane.calls.length = 0;
  plane.intercept = () => undefined;
});

type Way = (front: Front | PlaneServer, tls?: TlsOptions, timeoutMs?: number) => Holdfast;

function opened(
  options: { baseUrl: string; tls?: TlsOptions } | { transport: Transport },
  timeoutMs = 30_000,
): Holdfast {
  const holdfast = createHoldfast({ vaultKey, timeoutMs, ...options });
  closers.push(() => holdfast.close({ timeoutMs: 1 }));
  return holdfast;
}

const ways: Record<string, Way> = {
  "the SDK's own transport": ({ port }, tls, timeoutMs) =>
    tls === undefined
      ? opened({ baseUrl: `http://localhost:${port}` }, timeoutMs)
      : opened({ baseUrl: `https://localhost:${port}`, tls }, timeoutMs),
  "grpc-js": ({ port }, tls, timeoutMs) => {
    const transport = createGrpcJsTransport({
      target: `dns:///localhost:${port}`,
      ...(tls === undefined ? {} : { tls }),
    });
    closers.push(() => transport.close());
    return opened({ transport }, timeoutMs);
  },
};

// A handshake that fails is tried again by grpc-js until the deadline.
const REFUSED_IN_MS = 700;

let spends = 0;
const spend = (holdfast: Holdfast) => {
  spends += 1;
  return holdfast.spend({ ...SPEND, purpose: `mail-${spends}` }, MAIL, async () => ({
    vendorReference: `mail_${spends}`,
  }));
};

describe.each(Object.keys(ways))("%s", (name) => {
  const way = ways[name] as Way;

  it("carries a spend, and sends the vault key with every call", async () => {
    const keys = new Set<string | null>();
    plane.intercept = (_rpc, _request, headers) => void keys.add(headers.get("authorization"));
    expect(await spend(way(server))).toMatchObject({ alreadyCommitted: false });
    expect(plane.names()).toEqual(["authorize", "commit"]);
    expect([...keys]).toEqual([`Bearer ${vaultKey}`]);
  });

  it("hands on the server's error details", async () => {
    plane.intercept = () => {
      throw failure(Code.FailedPrecondition, "GENERATION_NOT_FOUND", { generation: "3" });
    };
    const error = await rejection(spend(way(server)));
    expect(error).toBeInstanceOf(HoldfastRefusedError);
    expect(error).toMatchObject({ reason: "GENERATION_NOT_FOUND", metadata: { generation: "3" } });
  });

  it("trusts the authority it is given", async () => {
    expect(await spend(way(encrypted, { ca: authority.cert }))).toMatchObject({ alreadyCommitted: false });
  });

  it("takes another name of the server where it is told to", async () => {
    const tls = { ca: authority.cert, serverName: "holdfast.internal" };
    expect(await spend(way(encrypted, tls))).toMatchObject({ alreadyCommitted: false });
  });

  it.each<[string, TlsOptions]>([
    ["an authority that is not trusted", { ca: stranger.cert }],
    ["the public authorities alone", {}],
    ["another host name", { ca: authority.cert, serverName: "elsewhere.internal" }],
  ])("sends nothing to a server with %s", async (_what, tls) => {
    const error = await rejection(spend(way(encrypted, tls, REFUSED_IN_MS)));
    expect(error).toBeInstanceOf(HoldfastUnavailableError);
    expect(plane.calls).toEqual([]);
  });

  it("shows its certificate to a server that asks for one", async () => {
    expect(await spend(way(mutual, { ca: authority.cert, ...clientIdentity }))).toMatchObject({
      alreadyCommitted: false,
    });
  });

  it("is refused by such a server without a certificate, or with a stranger's", async () => {
    for (const identity of [{}, stranger.issue("billing")]) {
      const error = await rejection(spend(way(mutual, { ca: authority.cert, ...identity }, REFUSED_IN_MS)));
      expect(error).toBeInstanceOf(HoldfastUnavailableError);
    }
    expect(plane.calls).toEqual([]);
  });
});

describe("the SDK's own transport", () => {
  it("says what is wrong with a certificate", async () => {
    const error = (await rejection(
      spend(opened({ baseUrl: `https://localhost:${encrypted.port}`, tls: { ca: stranger.cert } })),
    )) as Error;
    expect(error.message).toContain("certificate is not trusted (UNABLE_TO_VERIFY_LEAF_SIGNATURE)");
    expect(error.message).toContain("tls.ca");
  });

  it("says that the other side does not speak TLS", async () => {
    const tls = { ca: authority.cert };
    const error = (await rejection(spend(opened({ baseUrl: `https://localhost:${server.port}`, tls })))) as Error;
    expect(error.message).toContain("the TLS handshake failed");
  });
});

describe("grpc-js", () => {
  const grpcJs = (target: string, options = {}) => {
    const transport = createGrpcJsTransport({ target, ...options });
    closers.push(() => transport.close());
    return opened({ transport });
  };

  it("spreads calls over every server of its target", async () => {
    const fronts = [await startFront(() => server.port), await startFront(() => server.port)];
    try {
      const holdfast = grpcJs(`ipv4:${fronts.map(({ port }) => `127.0.0.1:${port}`).join(",")}`);
      // A call may be made before the second connection stands; a few later none is.
      await expect
        .poll(async () => {
          await spend(holdfast);
          return fronts.map((front) => front.forwarded() > 0);
        })
        .toEqual([true, true]);
    } finally {
      await Promise.all(fronts.map((front) => front.close()));
    }
  });

  it("ends a call at its deadline", async () => {
    const released = Promise.withResolvers<void>();
    plane.intercept = () => released.promise;
    const transport = createGrpcJsTransport({ target: `localhost:${server.port}` });
    closers.push(() => transport.close());
    expect(await rejection(spend(opened({ transport }, 300)))).toBeInstanceOf(HoldfastUnavailableError);
    released.resolve();
  });

  it("refuses an answer above its limit", async () => {
    const transport = createGrpcJsTransport({ target: `localhost:${server.port}`, maxMessageBytes: 40 });
    closers.push(() => transport.close());
    const client = createClient(SpendControlService, transport);
    const error = await rejection(
      client.getAuthorization({ lookup: { case: "name", value: `authorizations/${"0".repeat(36)}-1` } }),
    );
    expect(error).toMatchObject({ code: Code.ResourceExhausted });
  });

  it("ends a call whose signal is aborted, and starts none", async () => {
    plane.intercept = () => new Promise(() => undefined);
    const transport = createGrpcJsTransport({ target: `localhost:${server.port}` });
    closers.push(() => transport.close());
    const client = createClient(SpendControlService, transport);
    const lookup = { case: "name", value: "authorizations/0-1" } as const;
    const controller = new AbortController();
    const running = rejection(client.getAuthorization({ lookup }, { signal: controller.signal }));
    controller.abort();
    expect(await running).toMatchObject({ code: Code.Canceled });
    expect(await rejection(client.getAuthorization({ lookup }, { signal: controller.signal }))).toMatchObject({
      code: Code.Canceled,
    });
  });

  it.each<[string, object]>([
    ["a http address", { target: "http://localhost:1" }],
    ["an empty target", { target: "" }],
    ["plaintext to another machine", { target: "dns:///holdfast.internal:8443" }],
    ["plaintext to one other machine among several", { target: "ipv4:127.0.0.1:1,10.0.0.1:2" }],
    ["an unknown option", { target: "localhost:1", insecure: true }],
    ["half an identity", { target: "localhost:1", tls: { cert: clientIdentity.cert } }],
  ])("refuses %s", (_what, options) => {
    expect(() => createGrpcJsTransport(options as { target: string })).toThrow(TypeError);
  });
});
