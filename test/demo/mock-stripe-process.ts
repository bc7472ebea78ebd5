import { createServer, type RequestListener } from "node:http";
import { createRequire } from "node:module";
import type { AddressInfo } from "node:net";

// stripe-stateful-mock in a process of its own: prints its port, stops on SIGTERM.
const { createExpressApp } = createRequire(import.meta.url)("stripe-stateful-mock") as {
  createExpressApp(this: void): RequestListener;
};

const server = createServer(createExpressApp());
server.keepAliveTimeout = 120_000;
server.listen(0, "127.0.0.1", () => console.log(String((server.address() as AddressInfo).port)));
process.once("SIGTERM", () => process.exit(0));
