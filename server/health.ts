import { readFileSync } from "node:fs";
import { connect, type SecureClientSessionOptions } from "node:http2";
import { isIP } from "node:net";
import { exitCodes } from "./startup-error.ts";

type Environment = Readonly<Record<string, string | undefined>>;

const timeoutMs = 3000;

/**
 * Asks the server that runs with this environment on this machine whether it serves, as a probe of a container does.
 * Only what Node brings is loaded, as it runs every few seconds. Prints one line and returns the exit code: 0, or 69.
 */
export async function health(env: Environment, print: (line: string) => void): Promise<number> {
  const address = addressOf(env);
  let answer: string;
  try {
    answer = (await check(address, secureOptions(env))) ? "serves" : "answers, but does not serve";
  } catch (error) {
    answer = `does not answer: ${error instanceof Error ? error.message : String(error)}`;
  }
  print(`${address} ${answer}`);
  return answer === "serves" ? exitCodes.ok : exitCodes.databaseUnreachable;
}

function addressOf(env: Environment): string {
  const host = setting(env, "HOLDFAST_HOST") ?? "127.0.0.1";
  const port = setting(env, "HOLDFAST_PORT") ?? "7070";
  // Who listens on every address listens on this one too.
  const name = host === "0.0.0.0" || host === "::" ? "127.0.0.1" : host;
  const scheme = setting(env, "HOLDFAST_TLS_CERT_FILE") === undefined ? "http" : "https";
  return `${scheme}://${isIP(name) === 6 ? `[${name}]` : name}:${port}`;
}

/** Certificates name a server as its callers know it, and no secret goes to this one: who it is need not be proven. */
function secureOptions(env: Environment): SecureClientSessionOptions {
  const own = { rejectUnauthorized: false };
  const [certFile, keyFile] = [setting(env, "HOLDFAST_TLS_CERT_FILE"), setting(env, "HOLDFAST_TLS_KEY_FILE")];
  const asked = setting(env, "HOLDFAST_TLS_CLIENT_CA_FILE") !== undefined;
  if (!asked || certFile === undefined || keyFile === undefined) return own;
  return { ...own, cert: readFileSync(certFile), key: readFileSync(keyFile) };
}

function setting(env: Environment, name: string): string | undefined {
  const value = env[name]?.trim();
  return value === "" ? undefined : value;
}

// grpc.health.v1.Health/Check for the server as a whole: an empty message, and `status: SERVING` for an answer.
const emptyMessage = Buffer.alloc(5);
const servingMessage = Buffer.from([0, 0, 0, 0, 2, 0x08, 0x01]);

function check(address: string, options: SecureClientSessionOptions): Promise<boolean> {
  return new Promise((resolve, reject) => {
    const session = connect(address, options);
    const fail = (error: Error): void => {
      clearTimeout(timer);
      session.destroy();
      reject(error);
    };
    const timer = setTimeout(() => fail(new Error(`nothing came within ${timeoutMs} ms`)), timeoutMs);
    session.once("error", fail);
    const stream = session.request({
      ":method": "POST",
      ":path": "/grpc.health.v1.Health/Check",
      "content-type": "application/grpc",
      te: "trailers",
    });
    const chunks: Buffer[] = [];
    stream.on("data", (chunk: Buffer) => chunks.push(chunk));
    stream.once("error", fail);
    stream.once("end", () => {
      clearTimeout(timer);
      session.close();
      resolve(Buffer.concat(chunks).equals(servingMessage));
    });
    stream.end(emptyMessage);
  });
}
