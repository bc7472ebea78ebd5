import { expect, test } from "vitest";
import { readConfig } from "../../server/config.ts";

const key = { HOLDFAST_CREDENTIAL_KEY: Buffer.alloc(32, 1).toString("base64") };

test("there is no proxy without a port for it; with one it listens where the server does", () => {
  expect(readConfig({ HOLDFAST_STRIPE_PROXY_HOST: "127.0.0.2" }, []).stripeProxy).toBeUndefined();
  expect(readConfig({ ...key, HOLDFAST_STRIPE_PROXY_PORT: "0" }, []).stripeProxy).toEqual({
    host: "127.0.0.1",
    port: 0,
    names: [],
  });
  const named = { HOLDFAST_STRIPE_PROXY_HOST: "127.0.0.2", HOLDFAST_STRIPE_PROXY_NAMES: " Pay.example.com, [::1],," };
  expect(readConfig({ ...key, HOLDFAST_STRIPE_PROXY_PORT: "12111", ...named }, []).stripeProxy).toEqual({
    host: "127.0.0.2",
    port: 12_111,
    names: ["pay.example.com", "[::1]"],
  });
});

test("a proxy without a key, without TLS on an open address, or with names that are none is refused", () => {
  const port = { HOLDFAST_STRIPE_PROXY_PORT: "12111" };
  expect(() => readConfig(port, [])).toThrow(/HOLDFAST_STRIPE_PROXY_PORT needs HOLDFAST_CREDENTIAL_KEY.*openssl rand/);
  const open = { ...key, ...port, HOLDFAST_STRIPE_PROXY_HOST: "0.0.0.0" };
  expect(() => readConfig(open, [])).toThrow(/HOLDFAST_STRIPE_PROXY_HOST is "0\.0\.0\.0".*HOLDFAST_TLS_CERT_FILE/);
  expect(readConfig({ ...open, HOLDFAST_ALLOW_PLAINTEXT: "true" }, []).stripeProxy?.host).toBe("0.0.0.0");
  const tls = { HOLDFAST_TLS_CERT_FILE: "/c", HOLDFAST_TLS_KEY_FILE: "/k" };
  expect(readConfig({ ...open, ...tls }, []).stripeProxy?.host).toBe("0.0.0.0");
  for (const names of ["a b", "http://x", "x:80", "[x]"]) {
    expect(() => readConfig({ ...key, ...port, HOLDFAST_STRIPE_PROXY_NAMES: names }, [])).toThrow(/PROXY_NAMES/);
  }
});
