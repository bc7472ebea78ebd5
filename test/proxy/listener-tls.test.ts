import { connect as connectTls } from "node:tls";
import { once } from "node:events";
import { afterEach, expect, test } from "vitest";
import type { Certificates } from "../../server/rpc/certificates.ts";
import type { TlsSettings } from "../../server/rpc/listener-tls.ts";
import { type Authority, createAuthority } from "../support/certificates.ts";
import { closeWorlds, post, startWorld, Wire } from "./listener-world.ts";

afterEach(closeWorlds);

const certificatesOf = (authority: Authority): Certificates => ({
  ...authority.issue("localhost", "127.0.0.1"),
  clientCa: undefined,
  expiresAt: Number.POSITIVE_INFINITY,
});

function settingsOf(authority: Authority) {
  let exchange: (certificates: Certificates) => void = () => {};
  const tls: TlsSettings = {
    certificates: certificatesOf(authority),
    minVersion: "TLSv1.2",
    onOpen: (take) => {
      exchange = take;
    },
  };
  return { tls, exchange: (certificates: Certificates) => exchange(certificates) };
}

test("a secured port serves HTTP/1.1, takes new certificates, and is shut down like an open one", async () => {
  const [first, second] = [createAuthority(), createAuthority()];
  const { tls, exchange } = settingsOf(first);
  const world = await startWorld({ tls, limits: { quietMs: 50 } });
  expect(world.listener.url).toMatch(/^https:/);
  const wire = await Wire.open(world, { ca: first.cert });
  expect(await wire.send(post("a=1")).answer()).toMatchObject({ status: 200 });
  await expect(Wire.open(world, { ca: second.cert })).rejects.toThrow();
  exchange(certificatesOf(second));
  const renewed = await Wire.open(world, { ca: second.cert });
  expect(await renewed.send("no request\r\n\r\n").answer()).toMatchObject({ status: 400 });
  expect(await wire.send(post("b=2")).answer()).toMatchObject({ status: 200 });
  const unused = await Wire.open(world, { ca: second.cert });
  await world.listener.close(600_000);
  expect(await wire.end()).toBe("");
  expect(await unused.end()).toBe("");
  expect(world.handler.bodies).toEqual(["a=1", "b=2"]);
});

test("a secured port speaks no HTTP/2 and no cleartext", async () => {
  const authority = createAuthority();
  const world = await startWorld({ tls: settingsOf(authority).tls });
  const socket = connectTls({
    port: world.listener.port,
    host: "127.0.0.1",
    ca: authority.cert,
    ALPNProtocols: ["h2"],
  });
  await expect(once(socket, "secureConnect")).rejects.toThrow();
  socket.destroy();
  const plain = await Wire.open(world);
  expect(await plain.send(post("a=1")).end()).not.toContain("HTTP/1.1");
  expect(world.handler.heads).toEqual([]);
});
