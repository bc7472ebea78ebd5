import { create, type DescFile, type DescMessage, type DescService, fromBinary, toBinary } from "@bufbuild/protobuf";
import { FileDescriptorProtoSchema } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError, type ConnectRouter } from "@connectrpc/connect";
import { Health, HealthCheckResponse_ServingStatus as ServingStatus } from "@holdfast/api/grpc/health/v1/health_pb";
import {
  ErrorResponseSchema,
  ExtensionNumberResponseSchema,
  FileDescriptorResponseSchema,
  ListServiceResponseSchema,
  ServerReflection,
  type ServerReflectionRequest,
  ServerReflectionRequestSchema,
  type ServerReflectionResponse,
  ServerReflectionResponseSchema,
} from "@holdfast/api/grpc/reflection/v1/reflection_pb";
import {
  ServerReflectionRequestSchema as AlphaRequestSchema,
  ServerReflectionResponseSchema as AlphaResponseSchema,
  ServerReflection as ServerReflectionAlpha,
} from "@holdfast/api/grpc/reflection/v1alpha/reflection_pb";

export interface HealthSwitch {
  readonly routes: (router: ConnectRouter) => void;
  /** NOT_SERVING at first, until this is called with true. Watchers are told at once. */
  setServing(serving: boolean): void;
  /** NOT_SERVING, and ends every Watch, so that watchers do not hold up a shutdown. */
  close(): void;
}

/**
 * `grpc.health.v1` for the server as a whole ("") and for each of `services`, which all have one state: a server
 * that cannot reach its database can serve none of them.
 */
export function createHealth(services: readonly DescService[]): HealthSwitch {
  const names = new Set(["", ...services.map((service) => service.typeName)]);
  let serving = false;
  let closed = false;
  const waiting = new Set<() => void>();

  const status = () => (serving ? ServingStatus.SERVING : ServingStatus.NOT_SERVING);
  const announce = () => {
    for (const wake of waiting) wake();
  };
  /** Leaves nothing behind when the watcher goes: anyone may watch, as often as they like. */
  const changeOrAbort = (signal: AbortSignal) =>
    new Promise<void>((resolve) => {
      const wake = () => {
        waiting.delete(wake);
        signal.removeEventListener("abort", wake);
        resolve();
      };
      waiting.add(wake);
      signal.addEventListener("abort", wake);
    });

  return {
    setServing(next) {
      serving = next && !closed;
      announce();
    },
    close() {
      serving = false;
      closed = true;
      announce();
    },
    routes: (router) =>
      router.service(Health, {
        check({ service }) {
          if (!names.has(service)) throw new ConnectError("This server has no such service.", Code.NotFound);
          return { status: status() };
        },
        list: () => ({ statuses: Object.fromEntries([...names].map((name) => [name, { status: status() }])) }),
        async *watch({ service }, { signal }) {
          let told: ServingStatus | undefined;
          while (!signal.aborted) {
            const now = names.has(service) ? status() : ServingStatus.SERVICE_UNKNOWN;
            if (now !== told) {
              told = now;
              yield { status: now };
            } else if (closed) {
              return;
            } else {
              await changeOrAbort(signal);
            }
          }
          throw signal.reason;
        },
      }),
  };
}

/** Server reflection, v1 and v1alpha, for `services`, itself and health, with every file that they import. */
export function createReflection(services: readonly DescService[]): (router: ConnectRouter) => void {
  const index = indexFiles([...services, Health, ServerReflection, ServerReflectionAlpha]);
  return (router) => {
    router.service(ServerReflection, {
      async *serverReflectionInfo(requests) {
        for await (const request of requests) yield answer(index, request);
      },
    });
    router.service(ServerReflectionAlpha, {
      // The two versions differ in their package only, so the bytes of one are a message of the other.
      async *serverReflectionInfo(requests) {
        for await (const request of requests) {
          const same = fromBinary(ServerReflectionRequestSchema, toBinary(AlphaRequestSchema, request));
          yield fromBinary(AlphaResponseSchema, toBinary(ServerReflectionResponseSchema, answer(index, same)));
        }
      },
    });
  };
}

interface FileIndex {
  readonly serviceNames: readonly string[];
  readonly files: ReadonlyMap<string, DescFile>;
  readonly fileOfSymbol: ReadonlyMap<string, DescFile>;
  /** Full name of an extended message → number of the extension → its file. */
  readonly extensions: ReadonlyMap<string, ReadonlyMap<number, DescFile>>;
}

function indexFiles(services: readonly DescService[]): FileIndex {
  const files = new Map<string, DescFile>();
  const fileOfSymbol = new Map<string, DescFile>();
  const extensions = new Map<string, Map<number, DescFile>>();

  const addMessage = (file: DescFile, message: DescMessage): void => {
    fileOfSymbol.set(message.typeName, file);
    for (const member of [...message.fields, ...message.oneofs]) {
      fileOfSymbol.set(`${message.typeName}.${member.name}`, file);
    }
    for (const nested of message.nestedEnums) fileOfSymbol.set(nested.typeName, file);
    for (const nested of message.nestedMessages) addMessage(file, nested);
  };
  const addFile = (file: DescFile): void => {
    if (files.has(file.proto.name)) return;
    files.set(file.proto.name, file);
    for (const message of file.messages) addMessage(file, message);
    for (const one of file.enums) fileOfSymbol.set(one.typeName, file);
    for (const one of file.extensions) {
      fileOfSymbol.set(one.typeName, file);
      const numbers = extensions.get(one.extendee.typeName) ?? new Map<number, DescFile>();
      extensions.set(one.extendee.typeName, numbers.set(one.number, file));
    }
    for (const service of file.services) {
      fileOfSymbol.set(service.typeName, file);
      for (const method of service.methods) fileOfSymbol.set(`${service.typeName}.${method.name}`, file);
    }
    for (const dependency of file.dependencies) addFile(dependency);
  };
  for (const service of services) addFile(service.file);
  return { serviceNames: services.map((service) => service.typeName).toSorted(), files, fileOfSymbol, extensions };
}

function answer(index: FileIndex, request: ServerReflectionRequest): ServerReflectionResponse {
  return create(ServerReflectionResponseSchema, {
    validHost: request.host,
    originalRequest: request,
    messageResponse: answerQuery(index, request.messageRequest),
  });
}

type Query = ServerReflectionRequest["messageRequest"];
type Answer = ServerReflectionResponse["messageResponse"];

function answerQuery(index: FileIndex, query: Query): Answer {
  switch (query.case) {
    case "listServices": {
      const service = index.serviceNames.map((name) => ({ name }));
      return { case: "listServicesResponse", value: create(ListServiceResponseSchema, { service }) };
    }
    case "fileByFilename":
      return withFile(index.files.get(query.value), `file ${query.value}`);
    case "fileContainingSymbol":
      return withFile(index.fileOfSymbol.get(query.value), `symbol ${query.value}`);
    case "fileContainingExtension": {
      const { containingType, extensionNumber } = query.value;
      const file = index.extensions.get(containingType)?.get(extensionNumber);
      return withFile(file, `extension ${extensionNumber} of ${containingType}`);
    }
    case "allExtensionNumbersOfType": {
      if (!index.fileOfSymbol.has(query.value)) return notFound(`type ${query.value}`);
      const extensionNumber = [...(index.extensions.get(query.value)?.keys() ?? [])];
      const value = create(ExtensionNumberResponseSchema, { baseTypeName: query.value, extensionNumber });
      return { case: "allExtensionNumbersResponse", value };
    }
    default:
      return refusal(Code.InvalidArgument, "The request asks for nothing.");
  }
}

/** One file without its imports: a client asks for those that it does not have by name. */
function withFile(file: DescFile | undefined, what: string): Answer {
  if (file === undefined) return notFound(what);
  const fileDescriptorProto = [toBinary(FileDescriptorProtoSchema, file.proto)];
  return { case: "fileDescriptorResponse", value: create(FileDescriptorResponseSchema, { fileDescriptorProto }) };
}

function notFound(what: string): Answer {
  return refusal(Code.NotFound, `This server has no ${what}.`);
}

function refusal(errorCode: Code, errorMessage: string): Answer {
  return { case: "errorResponse", value: create(ErrorResponseSchema, { errorCode, errorMessage }) };
}
