import { once } from "node:events";
import http from "node:http";
import { text } from "node:stream/consumers";

/** One request that reached the vendor's door. */
export interface FrontRequest {
  /** "POST /v1/charges". */
  readonly endpoint: string;
  readonly authorization: string | undefined;
}

/** A request in the hands of a test. */
export interface FrontExchange {
  answer(status: number, body: unknown): void;
  /** Lets the vendor carry it out, and keeps its answer back. Gives its status. */
  carryOut(): Promise<number>;
  /** Ends the connection without an answer. */
  cut(): void;
}

/** Stands before the vendor: shows what comes by with which secret, and lets a test take single requests into its hands. */
export interface VendorFront {
  readonly url: string;
  /** Oldest first. */
  readonly seen: FrontRequest[];
  /** The next request of that endpoint, which is then the test's to answer. */
  take(endpoint: string): Promise<FrontExchange>;
  close(): void;
}

interface Taking {
  readonly endpoint: string;
  readonly resolve: (exchange: FrontExchange) => void;
}

export async function startVendorFront(vendor: string): Promise<VendorFront> {
  const seen: FrontRequest[] = [];
  const takings: Taking[] = [];

  async function serve(request: http.IncomingMessage, response: http.ServerResponse): Promise<void> {
    const { method = "", url = "", headers } = request;
    const endpoint = `${method} ${url}`;
    seen.push({ endpoint, authorization: headers.authorization });
    const body = await text(request);
    const at = takings.findIndex((one) => one.endpoint === endpoint);
    if (at >= 0) {
      const [taking] = takings.splice(at, 1);
      taking?.resolve({
        answer: (status, answer) =>
          response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(answer)),
        carryOut: async () => (await ask(method, url, headers, body)).status,
        cut: () => response.destroy(),
      });
      return;
    }
    const answer = await ask(method, url, headers, body);
    response.writeHead(answer.status, answer.headers).end(answer.body);
  }

  async function ask(method: string, path: string, headers: http.IncomingHttpHeaders, body: string) {
    const onward = http.request(`${vendor}${path}`, { method, headers });
    onward.end(body);
    const [answer] = (await once(onward, "response")) as [http.IncomingMessage];
    const { statusCode = 0 } = answer;
    return { status: statusCode, headers: answer.headers, body: await text(answer) };
  }

  const server = http.createServer((request, response) => {
    serve(request, response).catch(() => response.destroy());
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const address = server.address();
  return {
    url: `http://127.0.0.1:${typeof address === "object" ? address?.port : ""}`,
    seen,
    take: (endpoint) => new Promise((resolve) => takings.push({ endpoint, resolve })),
    close() {
      server.closeAllConnections();
      server.close();
    },
  };
}
