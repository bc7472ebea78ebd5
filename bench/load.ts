import { Agent, request as send } from "node:http";

/** One request of a load, as it goes over the wire. */
export interface LoadRequest {
  readonly method: "GET" | "POST";
  readonly path: string;
  readonly headers: Readonly<Record<string, string>>;
  /** Empty for a GET. */
  readonly body: string;
}

/** Keep-alive connections to one server. */
export interface Target {
  /** The answer's text. Rejects on any status but 200. */
  ask(request: LoadRequest): Promise<string>;
  close(): void;
}

export function openTarget(url: string, connections: number): Target {
  const { hostname: host, port } = new URL(url);
  const agent = new Agent({ keepAlive: true, maxSockets: connections });
  return {
    ask: ({ method, path, headers, body }) =>
      new Promise((resolve, reject) => {
        const length = method === "GET" ? {} : { "content-length": Buffer.byteLength(body) };
        const sent = send({ host, port, agent, method, path, headers: { ...headers, ...length } }, (response) => {
          let text = "";
          response.setEncoding("utf8");
          response.on("data", (chunk: string) => (text += chunk));
          response.on("error", reject);
          response.on("end", () => {
            if (response.statusCode === 200) resolve(text);
            else reject(new Error(`${method} ${path} at ${url}: ${response.statusCode} ${text}`));
          });
        });
        sent.on("error", reject);
        sent.end(body);
      }),
    close: () => agent.destroy(),
  };
}

/** Milliseconds of each of `count` calls that follow one another. */
export async function oneByOne(count: number, call: () => Promise<unknown>): Promise<number[]> {
  const times: number[] = [];
  for (let n = 0; n < count; n += 1) {
    const begun = performance.now();
    await call();
    times.push(performance.now() - begun);
  }
  return times;
}

/** Calls per second, while `callers` of them are in flight at any time. */
export async function together(count: number, callers: number, call: () => Promise<unknown>): Promise<number> {
  let left = count;
  const begun = performance.now();
  const caller = async (): Promise<void> => {
    while (left > 0) {
      left -= 1;
      await call();
    }
  };
  await Promise.all(Array.from({ length: callers }, caller));
  return (count * 1_000) / (performance.now() - begun);
}
