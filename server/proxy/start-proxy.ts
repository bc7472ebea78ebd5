import type { ProxyConfig } from "../config.ts";
import type { TlsSettings } from "../rpc/listener-tls.ts";
import { type ProxyListener, type ProxyListenerOptions, startProxyListener } from "./listener.ts";
import type { ProxyHandler } from "./vendor.ts";

export interface ProxyStart extends Pick<ProxyListenerOptions, "log"> {
  readonly settings: ProxyConfig;
  readonly handler: ProxyHandler;
  readonly tls: TlsSettings | undefined;
}

/**
 * Opens the port of a vendor's proxy. Its close ends the port first and the handler with what is left of the time, but
 * gives that a second at least: an answer that nobody waits for any more is still to be settled.
 */
export async function startProxy({ settings, handler, tls, log }: ProxyStart): Promise<ProxyListener> {
  const { host, port, names } = settings;
  const listener = await startProxyListener({
    host,
    port,
    handler,
    log,
    ...(names.length === 0 ? {} : { names }),
    ...(tls === undefined ? {} : { tls }),
  });
  return {
    ...listener,
    async close(graceMs) {
      const begun = performance.now();
      await listener.close(graceMs * 0.8);
      await handler.close(Math.max(1_000, graceMs - (performance.now() - begun)));
    },
  };
}
