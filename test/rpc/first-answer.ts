import type { DescMethod, DescMethodStreaming, DescMethodUnary } from "@bufbuild/protobuf";
import type { Transport } from "@connectrpc/connect";

/** Calls an RPC of any kind. Of a stream only the first message is waited for. */
export async function firstAnswer(transport: Transport, method: DescMethod, request: object): Promise<void> {
  if (method.methodKind === "unary") {
    await transport.unary(method as DescMethodUnary, undefined, 30_000, undefined, request as never);
    return;
  }
  async function* requests() {
    yield request as never;
  }
  const ending = new AbortController();
  const { message } = await transport.stream(
    method as DescMethodStreaming,
    ending.signal,
    undefined,
    undefined,
    requests(),
  );
  for await (const _first of message) break;
  ending.abort();
}
