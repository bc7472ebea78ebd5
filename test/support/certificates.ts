import { generateKeyPairSync, type KeyObject, randomBytes, sign } from "node:crypto";

/** A certificate and its private key, both PEM. */
export interface Certificate {
  readonly cert: string;
  readonly key: string;
}

export interface Validity {
  readonly from: Date;
  readonly to: Date;
}

/** An authority that lives as long as the test. */
export interface Authority {
  /** Its own certificate, PEM. */
  readonly cert: string;
  /** A certificate for these host names and IPv4 addresses, usable by a server and by a client. */
  issue(this: void, ...names: readonly string[]): Certificate;
  /** The same, valid in another time than now. */
  issueFor(this: void, validity: Validity, ...names: readonly string[]): Certificate;
}

// Just enough of DER (X.690) and X.509 (RFC 5280) for certificates that live for a day.

function der(tag: number, ...contents: readonly Uint8Array[]): Buffer {
  const body = Buffer.concat(contents);
  if (body.length < 128) return Buffer.concat([Buffer.from([tag, body.length]), body]);
  const length = body.length < 256 ? [0x81, body.length] : [0x82, body.length >> 8, body.length & 0xff];
  return Buffer.concat([Buffer.from([tag, ...length]), body]);
}

const sequence = (...items: readonly Uint8Array[]): Buffer => der(0x30, ...items);
const set = (...items: readonly Uint8Array[]): Buffer => der(0x31, ...items);
const bitString = (bytes: Uint8Array): Buffer => der(0x03, Buffer.from([0]), bytes);
const octets = (bytes: Uint8Array): Buffer => der(0x04, bytes);
const yes = der(0x01, Buffer.from([0xff]));

function oid(text: string): Buffer {
  const [first = 0, second = 0, ...rest] = text.split(".").map(Number);
  const base128 = (value: number): number[] =>
    value < 128 ? [value] : [...base128(value >> 7).map((byte) => byte | 0x80), value & 0x7f];
  return der(0x06, Buffer.from([first * 40 + second, ...rest.flatMap(base128)]));
}

function time(date: Date): Buffer {
  return der(0x17, Buffer.from(`${date.toISOString().replaceAll(/\D/g, "").slice(2, 14)}Z`));
}

function name(commonName: string): Buffer {
  return sequence(set(sequence(oid("2.5.4.3"), der(0x0c, Buffer.from(commonName)))));
}

function extension(id: string, critical: boolean, value: Uint8Array): Buffer {
  return sequence(oid(id), ...(critical ? [yes] : []), octets(value));
}

function alternativeNames(names: readonly string[]): Buffer {
  const entries = names.map((one) =>
    /^\d+\.\d+\.\d+\.\d+$/.test(one) ? der(0x87, Buffer.from(one.split(".").map(Number))) : der(0x82, Buffer.from(one)),
  );
  return extension("2.5.29.17", false, sequence(...entries));
}

const ecdsaWithSha256 = sequence(oid("1.2.840.10045.4.3.2"));
const DAY_MS = 24 * 3_600_000;

function certificate(options: {
  readonly subject: string;
  readonly issuer: string;
  readonly publicKey: KeyObject;
  readonly issuerKey: KeyObject;
  readonly extensions: readonly Buffer[];
  readonly validity: Validity;
}): string {
  // The first bit is 0, as a serial number is positive.
  const serial = Buffer.concat([Buffer.from([0x41]), randomBytes(8)]);
  const body = sequence(
    der(0xa0, der(0x02, Buffer.from([2]))),
    der(0x02, serial),
    ecdsaWithSha256,
    name(options.issuer),
    sequence(time(options.validity.from), time(options.validity.to)),
    name(options.subject),
    options.publicKey.export({ type: "spki", format: "der" }),
    der(0xa3, sequence(...options.extensions)),
  );
  const whole = sequence(body, ecdsaWithSha256, bitString(sign("sha256", body, options.issuerKey)));
  const lines = whole.toString("base64").match(/.{1,64}/g) ?? [];
  return `-----BEGIN CERTIFICATE-----\n${lines.join("\n")}\n-----END CERTIFICATE-----\n`;
}

const today = (): Validity => ({ from: new Date(Date.now() - DAY_MS), to: new Date(Date.now() + DAY_MS) });

const keyPair = () => generateKeyPairSync("ec", { namedCurve: "P-256" });

export function createAuthority(commonName = "Test authority"): Authority {
  const own = keyPair();
  const basicConstraints = (isAuthority: boolean) =>
    extension("2.5.29.19", true, sequence(...(isAuthority ? [yes] : [])));
  const issueFor: Authority["issueFor"] = (validity, ...names) => {
    const { publicKey, privateKey } = keyPair();
    const cert = certificate({
      subject: names[0] ?? "test",
      issuer: commonName,
      publicKey,
      issuerKey: own.privateKey,
      extensions: [basicConstraints(false), alternativeNames(names)],
      validity,
    });
    return { cert, key: privateKey.export({ type: "pkcs8", format: "pem" }) as string };
  };
  return {
    cert: certificate({
      subject: commonName,
      issuer: commonName,
      publicKey: own.publicKey,
      issuerKey: own.privateKey,
      extensions: [basicConstraints(true)],
      validity: today(),
    }),
    issue: (...names) => issueFor(today(), ...names),
    issueFor,
  };
}
