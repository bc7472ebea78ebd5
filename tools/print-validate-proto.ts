// Prints third_party/buf/validate/validate.proto from the descriptor that @bufbuild/protovalidate carries,
// because no npm package ships the text and our proto files import it. Rule implementations (CEL field
// options) are left out: the library that evaluates the rules has its own copy of them.
import { mkdirSync, writeFileSync } from "node:fs";
import type { DescEnum, DescExtension, DescField, DescMessage, DescOneof } from "@bufbuild/protobuf";
import { FieldDescriptorProto_Label, FieldDescriptorProto_Type } from "@bufbuild/protobuf/wkt";
import { file_buf_validate_validate as file } from "@bufbuild/protovalidate/gen/buf/validate/validate_pb.js";

const target = "third_party/buf/validate/validate.proto";
const lines: string[] = [];

function line(depth: number, text: string): void {
  lines.push(text === "" ? "" : `${"  ".repeat(depth)}${text}`);
}

function typeName(field: DescField | DescExtension): string {
  if (field.proto.typeName !== "") return field.proto.typeName;
  return FieldDescriptorProto_Type[field.proto.type]?.toLowerCase() ?? "unknown";
}

function printField(depth: number, field: DescField | DescExtension): void {
  if (field.fieldKind === "map") {
    const value =
      field.mapKind === "scalar" ? FieldDescriptorProto_Type[field.scalar as number]?.toLowerCase() : typeName(field);
    line(
      depth,
      `map<${FieldDescriptorProto_Type[field.mapKey as number]?.toLowerCase()}, ${value}> ${field.name} = ${field.number};`,
    );
    return;
  }
  const inOneof = field.kind === "field" && field.oneof !== undefined;
  const label = inOneof ? "" : `${FieldDescriptorProto_Label[field.proto.label]?.toLowerCase()} `;
  const options = field.proto.defaultValue === "" ? "" : ` [default = ${field.proto.defaultValue}]`;
  line(depth, `${label}${typeName(field)} ${field.name} = ${field.number}${options};`);
}

function printEnum(depth: number, type: DescEnum): void {
  line(depth, `enum ${type.name} {`);
  for (const range of type.proto.reservedRange) line(depth + 1, `reserved ${range.start} to ${range.end};`);
  for (const value of type.values) line(depth + 1, `${value.name} = ${value.number};`);
  line(depth, "}");
}

function printMessage(depth: number, type: DescMessage): void {
  line(depth, `message ${type.name} {`);
  for (const range of type.proto.reservedRange) line(depth + 1, `reserved ${range.start} to ${range.end - 1};`);
  for (const range of type.proto.extensionRange) {
    line(depth + 1, `extensions ${range.start} to ${range.end === 536870912 ? "max" : range.end - 1};`);
  }
  for (const nested of type.nestedEnums) printEnum(depth + 1, nested);
  for (const nested of type.nestedMessages) printMessage(depth + 1, nested);
  const printed = new Set<DescOneof>();
  for (const field of type.fields) {
    if (field.oneof === undefined) printField(depth + 1, field);
    else if (!printed.has(field.oneof)) {
      printed.add(field.oneof);
      line(depth + 1, `oneof ${field.oneof.name} {`);
      for (const member of field.oneof.fields) printField(depth + 2, member);
      line(depth + 1, "}");
    }
  }
  line(depth, "}");
}

line(0, "// Printed by tools/print-validate-proto.ts from @bufbuild/protovalidate (Apache-2.0, Buf Technologies).");
line(0, "");
line(0, `syntax = "proto2";`);
line(0, "");
line(0, `package ${file.proto.package};`);
line(0, "");
for (const dependency of file.proto.dependency) line(0, `import "${dependency}";`);
for (const type of file.enums) printEnum(0, type);
for (const type of file.messages) printMessage(0, type);
for (const extension of file.extensions) {
  line(0, `extend ${extension.proto.extendee} {`);
  printField(1, extension);
  line(0, "}");
}
mkdirSync("third_party/buf/validate", { recursive: true });
writeFileSync(target, `${lines.join("\n")}\n`);
