import { Agent, createServer, request as send } from "node:http";
import type { AddressInfo } from "node:net";
import { given, serveParent } from "../child.ts";

/** The least that a reverse proxy in Node does: pipes both ways over kept connections, exchanges the key, judges nothing. */
const { vendorUrl = "", secret = "" } = given();
const { hostname: host, port } = new URL(vendorUrl);
const agent = new Agent({ keepAlive: true, maxSockets: 256 });

const server = createServer({ keepAliveTimeout: 600_000 }, (request, response) => {
  const { method, url: path, headers } = request;
  const upstream = send(
    {
      host,
      port,
      agent,
      method,
      path,
      headers: { ...headers, host: `${host}:${port}`, authorization: `Bearer ${secret}` },
    },
    (answer) => {
      response.writeHead(answer.statusCode ?? 502, answer.headers);
      answer.pipe(response);
    },
  );
  upstream.on("error", () => response.destroy());
  request.pipe(upstream);
});
server.listen(0, "127.0.0.1", () => {
  serveParent({ url: `http://127.0.0.1:${(server.address() as AddressInfo).port}` }, async () => {
    agent.destroy();
    server.closeAllConnections();
    server.close();
  });
});
