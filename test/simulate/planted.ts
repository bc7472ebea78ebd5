import { create } from "@bufbuild/protobuf";
import type { Transport } from "@connectrpc/connect";
import { BindVendorReferenceRequestSchema } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { rules as meant } from "../property/model-rules.ts";
import { type Rules, unfollow, voidWith } from "../property/model-world.ts";
import type { Row } from "./database.ts";
import type { Chance } from "./random.ts";

/** A defect, planted at one place of a simulation. */
export interface Planted {
  /** Instead of the rules of the control plane. */
  readonly rules?: Rules;
  /** Replaces the key of every write to the vendor. */
  readonly key?: (key: string, chance: Chance) => string;
  /** Comes between the SDK and the network. */
  readonly transport?: (transport: Transport) => Transport;
  /** Alters what the control plane reads from its rows. */
  readonly alter?: (row: Row) => Row;
}

export const plantedBugs = {
  "a random key for every send": { key: (_key, chance) => chance.hex(32) },
  "confirm before bind": { transport: withoutBinding },
  "void without proof": {
    rules: {
      ...meant,
      toDoubt: (generation) => {
        unfollow(generation);
        if (generation.bound) generation.state = "IN_DOUBT";
        else voidWith(generation, "NEVER_SENT");
      },
    },
  },
  "a key sent again after 24 h": {
    rules: {
      ...meant,
      takeover: (live, request, now) =>
        live.settlement === "RESEND_SAFE" && !live.bound ? "CONTINUE" : meant.takeover(live, request, now),
    },
    // So young it looks, however old it is: the SDK's own check of the age is deceived as well.
    alter: (row) =>
      typeof row["hold_expire_time"] === "bigint"
        ? { ...row, grant_time: row["hold_expire_time"] - 600_000_000n }
        : row,
  },
  "a hold that expires is released": {
    rules: { ...meant, expire: (generation) => voidWith(generation, "ABSENT_AFTER_QUARANTINE") },
  },
  "in doubt is not counted": {
    rules: {
      ...meant,
      toDoubt: (generation, now) => {
        if (generation.state !== "IN_DOUBT") for (const hold of generation.holds) hold.counter.held -= hold.amount;
        meant.toDoubt(generation, now);
      },
    },
  },
} as const satisfies Record<string, Planted>;

/** The SDK is told that its object is bound before the control plane has been asked, which then never is. */
function withoutBinding(transport: Transport): Transport {
  return {
    stream: (...args) => transport.stream(...args),
    unary: async (method, signal, timeoutMs, header, input, values) => {
      if (method.localName !== "bindVendorReference") {
        return transport.unary(method, signal, timeoutMs, header, input, values);
      }
      const request = create(BindVendorReferenceRequestSchema, input as object);
      if (request.vendorState !== "") return transport.unary(method, signal, timeoutMs, header, input, values);
      const message = create(method.output);
      return {
        stream: false,
        service: method.parent,
        method,
        header: new Headers(),
        trailer: new Headers(),
        message,
      } as never;
    },
  };
}
