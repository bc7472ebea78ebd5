import { readFileSync } from "node:fs";
import { type Client, createClient, type Interceptor } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-node";
import { Health } from "@holdfast/api/grpc/health/v1/health_pb";
import { AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { CommandError } from "./exit-codes.ts";

type Environment = Readonly<Record<string, string | undefined>>;

export interface ConnectionOptions {
  /** Address of a server. `HOLDFAST_URL`, else the local default, where it is not given. */
  readonly url: string | undefined;
  /** A PEM file of the authority that signed the server's certificate. */
  readonly caFile: string | undefined;
  /** PEM files of the caller's own certificate, for mTLS. */
  readonly certFile: string | undefined;
  readonly keyFile: string | undefined;
}

/** A server, as an operator calls it. */
export interface Connection {
  readonly url: string;
  readonly admin: Client<typeof AdminService>;
  readonly spend: Client<typeof SpendControlService>;
  readonly health: Client<typeof Health>;
}

const urlDefault = "http://127.0.0.1:7070";
const timeoutMs = 30_000;

/** Opens nothing yet. Throws a CommandError where the settings cannot be used. The token comes from the environment only: a flag would show it to everybody on the machine. */
export function connectionFrom(env: Environment, options: ConnectionOptions): Connection {
  const url = options.url ?? nonEmpty(env["HOLDFAST_URL"]) ?? urlDefault;
  const protocol = URL.parse(url)?.protocol;
  if (protocol !== "http:" && protocol !== "https:") {
    throw new CommandError("usage", `"${url}" is not an address; give --url or HOLDFAST_URL as http://host:7070.`);
  }
  const token = nonEmpty(env["HOLDFAST_OPERATOR_TOKEN"]);
  const transport = createConnectTransport({
    baseUrl: url,
    httpVersion: "2",
    defaultTimeoutMs: timeoutMs,
    interceptors: token === undefined ? [] : [bearer(token)],
    nodeOptions: {
      ...fileOption("ca", "--ca-file", options.caFile),
      ...fileOption("cert", "--cert-file", options.certFile),
      ...fileOption("key", "--key-file", options.keyFile),
    },
  });
  return {
    url,
    admin: createClient(AdminService, transport),
    spend: createClient(SpendControlService, transport),
    health: createClient(Health, transport),
  };
}

function bearer(token: string): Interceptor {
  return (next) => async (request) => {
    request.header.set("authorization", `Bearer ${token}`);
    return await next(request);
  };
}

function nonEmpty(text: string | undefined): string | undefined {
  const trimmed = text?.trim();
  return trimmed === "" ? undefined : trimmed;
}

function fileOption(name: string, flag: string, path: string | undefined): Record<string, Buffer> {
  if (path === undefined) return {};
  try {
    return { [name]: readFileSync(path) };
  } catch (error) {
    throw new CommandError("usage", `${flag} names ${path}, which cannot be read.`, error);
  }
}
