import { once } from "node:events";
import { createServer, type ServerHttp2Session } from "node:http2";
import type { AddressInfo } from "node:net";
import type { DescMethodUnary } from "@bufbuild/protobuf";
import { createClient } from "@connectrpc/connect";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import type { FakeControlPlane } from "./fake-control-plane.ts";

/** The control plane in memory, served over HTTP/2 without encryption. */
export interface PlaneServer {
  readonly port: number;
  /** Tells every client to go elsewhere, and ends their connections with their last call. */
  goAway(): void;
  close(): Promise<void>;
}

export async function servePlane(plane: FakeControlPlane): Promise<PlaneServer> {
  const client = createClient(SpendControlService, plane.transport) as unknown as Record<
    string,
    (request: object, options: { headers: Headers }) => Promise<object>
  >;
  const sessions = new Set<ServerHttp2Session>();
  const server = createServer(
    connectNodeAdapter({
      routes(router) {
        for (const method of SpendControlService.methods) {
          if (method.methodKind !== "unary") continue;
          router.rpc(method as DescMethodUnary, (request, context) => {
            const headers = new Headers();
            for (const name of ["authorization", "traceparent"]) {
              const value = context.requestHeader.get(name);
              if (value !== null) headers.set(name, value);
            }
            return client[method.localName]?.(request, { headers }) as never;
          });
        }
      },
    }),
  );
  server.on("session", (session) => {
    sessions.add(session);
    session.on("error", () => undefined);
    session.once("close", () => sessions.delete(session));
  });
  server.on("sessionError", () => undefined);
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return {
    port: (server.address() as AddressInfo).port,
    goAway() {
      for (const session of sessions) session.close();
    },
    async close() {
      server.close();
      for (const session of sessions) session.destroy();
      await once(server, "close");
    },
  };
}
