import {
  create,
  fromBinary,
  toBinary,
  type DescMessage,
  type DescMethodUnary,
  type MessageInitShape,
} from "@bufbuild/protobuf";
import { Code, ConnectError, createContextValues, type HandlerContext, type Transport } from "@connectrpc/connect";
import { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { principalKey } from "@holdfast/server/rpc/auth";
import { toConnectError } from "@holdfast/server/rpc/errors";
import { increaseHoldMethod } from "@holdfast/server/rpc/increase-hold";
import { reconcileMethods } from "@holdfast/server/rpc/reconcile";
import { spendMethods } from "@holdfast/server/rpc/spend";
import { validateMessage } from "@holdfast/server/rpc/validate";
import type { Database } from "@holdfast/server/store/database";
import { GroupCommit } from "@holdfast/server/store/group-commit";
import { authorizeBatch } from "@holdfast/server/store/authorize";
import { commitBatch } from "@holdfast/server/store/spend";
import type { Link, Network } from "./network.ts";

/**
 * The server's own validation, handlers, group commit, store and errors, without listener, tokens and Postgres. One
 * request in, one answer out, both as the bytes of their messages.
 */
export interface ControlPlane {
  call(method: DescMethodUnary, input: Uint8Array): Promise<Uint8Array>;
}

type Method = (request: unknown, context: HandlerContext) => Promise<MessageInitShape<DescMessage>>;

/** One running server. A restart makes another one over the same database. */
export function createControlPlane(database: Database, vaultKey: string): ControlPlane {
  const defects = { error: ({ err }: { err?: unknown }) => fail(err) };
  const lane = {
    classify: () => "fail" as const,
    translate: (error: unknown) => error,
    batchMax: 500,
    queueMax: 10_000,
  };
  const methods: Record<string, unknown> = {
    ...spendMethods({
      database,
      authorizations: new GroupCommit({
        ...lane,
        name: "authorize",
        run: (workspace, commands) => authorizeBatch(database, workspace, commands),
      }),
      commits: new GroupCommit({
        ...lane,
        name: "commit",
        run: (workspace, commands) => commitBatch(database, workspace, commands),
      }),
      rehearse: () => Promise.reject(new Error("nothing here is rehearsed")),
      log: defects,
    }),
    ...increaseHoldMethod(database),
    ...reconcileMethods(database),
  };
  const values = createContextValues().set(principalKey, { role: "vault_key", workspace: "acme", id: vaultKey });
  const context = {
    values,
    signal: new AbortController().signal,
    timeoutMs: () => undefined,
  } as unknown as HandlerContext;
  return {
    async call(method, input) {
      const run = methods[method.localName] as Method | undefined;
      if (run === undefined) throw new ConnectError(`${method.name} is not simulated`, Code.Unimplemented);
      try {
        const request = fromBinary(method.input, input);
        validateMessage(method.input, request);
        return toBinary(method.output, create(method.output, await run(request, context)));
      } catch (error) {
        throw toConnectError(error, defects);
      }
    },
  };
}

/** A defect in the handlers or the stand-in is no refusal: it ends the simulation. */
function fail(error: unknown): never {
  throw new DefectError(error);
}

/** Something here broke, and not the simulated world. */
export class DefectError extends Error {
  constructor(cause: unknown) {
    super(cause instanceof Error ? (cause.stack ?? cause.message) : String(cause), { cause });
    this.name = "DefectError";
  }
}

/** What a process's SDK sends its calls through. */
export function createSimulatedTransport(
  network: Network,
  link: Link,
  plane: () => ControlPlane,
  defect: (error: unknown) => void,
): Transport {
  return {
    async unary(method, _signal, _timeoutMs, _header, input) {
      const bytes = toBinary(method.input, create(method.input, input));
      const delivery = await network.exchange(link, method.localName, async () => {
        try {
          return { bytes: await plane().call(method, bytes) };
        } catch (error) {
          if (!(error instanceof ConnectError) || error.code === Code.Internal) defect(error);
          return { error };
        }
      });
      if ("reset" in delivery) throw new ConnectError(`the connection was ${delivery.reset}`, Code.Unavailable);
      const { answer } = delivery;
      if ("error" in answer) throw answer.error;
      return {
        stream: false,
        service: SpendControlService,
        method,
        header: new Headers(),
        trailer: new Headers(),
        message: fromBinary(method.output, answer.bytes),
      } as never;
    },
    stream: () => Promise.reject(new Error("nothing streams here")),
  };
}
