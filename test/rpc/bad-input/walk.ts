import type { DescField, DescMessage, DescMethod } from "@bufbuild/protobuf";
import { AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";

/** One field that a request of an RPC can carry, or the items of a list or a map. */
export interface Place {
  /** As a refusal names it: `caps[0].cap.limit.amount`. */
  readonly path: string;
  /** As the table names it: `Money.amount`. */
  readonly entry: string;
  /** Where it is in the JSON of the request. */
  readonly keys: readonly (string | number)[];
  readonly field: DescField;
  readonly isItem: boolean;
}

export const methods: readonly DescMethod[] = [...SpendControlService.methods, ...AdminService.methods];

/** Every field of the request, nested ones, list items and map values included. */
export function placesOf(method: DescMethod): readonly Place[] {
  return [...inMessage(method.input, "", [])];
}

function* inMessage(schema: DescMessage, path: string, keys: Place["keys"]): Generator<Place> {
  for (const field of schema.fields) {
    const place = {
      path: path === "" ? field.name : `${path}.${field.name}`,
      entry: `${schema.name}.${field.name}`,
      keys: [...keys, field.name],
      field,
      isItem: false,
    };
    yield place;
    if (field.fieldKind === "list") {
      const item = { ...place, path: `${place.path}[0]`, keys: [...place.keys, 0], isItem: true };
      yield item;
      if (field.message !== undefined) yield* inMessage(field.message, item.path, item.keys);
    } else if (field.fieldKind === "map") {
      yield { ...place, path: `${place.path}["team"]`, keys: [...place.keys, "team"], isItem: true };
    } else if (field.message !== undefined && !field.message.typeName.startsWith("google.protobuf.")) {
      yield* inMessage(field.message, place.path, place.keys);
    }
  }
}
