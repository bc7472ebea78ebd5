import { create, createFileRegistry, type DescService, setExtension } from "@bufbuild/protobuf";
import {
  EmptySchema,
  file_google_protobuf_empty,
  FileDescriptorProtoSchema,
  MethodOptionsSchema,
} from "@bufbuild/protobuf/wkt";
import { file_holdfast_v1_roles, Role, roles } from "@holdfast/api/holdfast/v1/roles_pb";

export const noopName = "holdfast.bench.v1.NoopService.Noop";
export const noopPath = "/holdfast.bench.v1.NoopService/Noop";

/** A service whose one RPC takes and gives nothing, and which a vault key may call. */
export function noopService(): DescService {
  const options = create(MethodOptionsSchema);
  setExtension(options, roles, [Role.VAULT_KEY]);
  const empty = `.${EmptySchema.typeName}`;
  const file = create(FileDescriptorProtoSchema, {
    name: "holdfast/bench/v1/noop.proto",
    package: "holdfast.bench.v1",
    syntax: "proto3",
    dependency: [file_google_protobuf_empty.proto.name, file_holdfast_v1_roles.proto.name],
    service: [{ name: "NoopService", method: [{ name: "Noop", inputType: empty, outputType: empty, options }] }],
  });
  const known = [
    file_google_protobuf_empty.proto,
    file_holdfast_v1_roles.proto,
    ...file_holdfast_v1_roles.dependencies.map(({ proto }) => proto),
  ];
  const registry = createFileRegistry(file, (name) => known.find((proto) => proto.name === name));
  const service = registry.getService("holdfast.bench.v1.NoopService");
  if (service === undefined) throw new Error("the service is not in its own file");
  return service;
}
