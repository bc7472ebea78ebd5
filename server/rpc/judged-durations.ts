import { type DescMessage, getOption, hasOption, type Message, type MessageShape } from "@bufbuild/protobuf";
import { type Duration, DurationSchema } from "@bufbuild/protobuf/wkt";
import { field as fieldRules, message as messageRules } from "@bufbuild/protovalidate/gen/buf/validate/validate_pb.js";

/** Which durations of a type of message were found valid, by `field seconds nanos`. */
interface Judged {
  readonly fields: readonly string[];
  readonly valid: Set<string>;
}

/** More are judged each time: a caller may send as many different ones as it likes. */
const validMax = 1_000;

const judgedOf = new WeakMap<DescMessage, Judged>();

/**
 * Calls `judge` with a message whose durations that were found valid before are left out, and puts them back. An
 * interpreter judges their rules and nothing else of a spend, which takes twice as long as all the rest, and callers send
 * the same few. `isValid` says of the result whether the durations that were judged are valid.
 */
export function withoutJudgedDurations<Desc extends DescMessage, Result>(
  schema: Desc,
  message: MessageShape<Desc>,
  judge: () => Result,
  isValid: (result: Result) => boolean,
): Result {
  const { fields, valid } = judgedIn(schema);
  const members = message as Message & Record<string, Duration | undefined>;
  const left: [string, Duration][] = [];
  const judged: string[] = [];
  for (const name of fields) {
    const value = members[name];
    if (value === undefined) continue;
    const key = `${name} ${value.seconds} ${value.nanos}`;
    if (valid.has(key)) {
      left.push([name, value]);
      members[name] = undefined;
    } else {
      judged.push(key);
    }
  }
  try {
    const result = judge();
    if (judged.length > 0 && valid.size < validMax && isValid(result)) for (const key of judged) valid.add(key);
    return result;
  } finally {
    for (const [name, value] of left) members[name] = value;
  }
}

/** Only where leaving one out changes no other judgement: it is not required, and nothing judges the whole message. */
function judgedIn(schema: DescMessage): Judged {
  const known = judgedOf.get(schema);
  if (known !== undefined) return known;
  const fields = hasOption(schema, messageRules)
    ? []
    : schema.fields.filter(
        (field) =>
          field.fieldKind === "message" &&
          field.message.typeName === DurationSchema.typeName &&
          field.oneof === undefined &&
          !(hasOption(field, fieldRules) && getOption(field, fieldRules).required),
      );
  const judged = { fields: fields.map(({ localName }) => localName), valid: new Set<string>() };
  judgedOf.set(schema, judged);
  return judged;
}
