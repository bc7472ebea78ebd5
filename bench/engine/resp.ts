import { connect, type Socket } from "node:net";

export type RespAnswer = string | number | null;

/** A connection that speaks Redis' protocol, as far as strings, numbers and errors go. */
export interface Resp {
  /** Sent with whatever else is asked in the same turn. Rejects with the server's error. */
  command(parts: readonly (string | number)[]): Promise<RespAnswer>;
  close(): void;
}

export async function openResp(path: string): Promise<Resp> {
  const socket = connect(path);
  await new Promise<void>((resolve, reject) => socket.once("connect", resolve).once("error", reject));
  const waiting: PromiseWithResolvers<RespAnswer>[] = [];
  let outgoing = "";
  readAnswers(socket, waiting);
  return {
    command(parts) {
      const answer = Promise.withResolvers<RespAnswer>();
      waiting.push(answer);
      if (outgoing === "") {
        setImmediate(() => {
          socket.write(outgoing);
          outgoing = "";
        });
      }
      outgoing += `*${parts.length}\r\n`;
      for (const part of parts) outgoing += `$${Buffer.byteLength(String(part))}\r\n${part}\r\n`;
      return answer.promise;
    },
    close: () => socket.destroy(),
  };
}

function readAnswers(socket: Socket, waiting: PromiseWithResolvers<RespAnswer>[]): void {
  let text = "";
  // Every answer of the bench is ASCII, so characters are bytes.
  socket.setEncoding("latin1");
  socket.on("error", (error) => waiting.splice(0).forEach(({ reject }) => reject(error)));
  socket.on("data", (chunk: string) => {
    text += chunk;
    let at = 0;
    for (;;) {
      const lineEnd = text.indexOf("\r\n", at);
      if (lineEnd === -1) break;
      const [kind, rest] = [text[at], text.slice(at + 1, lineEnd)];
      let next = lineEnd + 2;
      let value: RespAnswer = kind === ":" ? Number(rest) : rest;
      if (kind === "$" && rest === "-1") value = null;
      else if (kind === "$") {
        if (text.length < next + Number(rest) + 2) break;
        value = text.slice(next, next + Number(rest));
        next += Number(rest) + 2;
      }
      at = next;
      const answer = waiting.shift();
      if (kind === "-") answer?.reject(new Error(rest));
      else answer?.resolve(value);
    }
    text = text.slice(at);
  });
}
