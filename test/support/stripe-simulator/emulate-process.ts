import { type AddressInfo, Server } from "node:net";

// The `emulate` package's Stripe in a process of its own: prints its port, stops with the process. It would listen on
// every interface of the machine, so listening is narrowed to loopback before it is loaded.
const { listen } = Server.prototype as { listen: (this: Server, options: object) => Server };
Server.prototype.listen = function listenOnLoopback(this: Server): Server {
  this.once("listening", () => console.log(String((this.address() as AddressInfo).port)));
  return listen.call(this, { port: 0, host: "127.0.0.1" });
} as typeof Server.prototype.listen;

const { createEmulator } = await import("emulate");
await createEmulator({ service: "stripe", port: 1 });
