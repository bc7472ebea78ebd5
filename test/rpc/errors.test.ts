import { readFileSync } from "node:fs";
import { Code, ConnectError, createClient, createRouterTransport } from "@connectrpc/connect";
import { BadRequestSchema, ErrorInfoSchema, RetryInfoSchema } from "@holdfast/api/google/rpc/error_details_pb";
import { ErrorReasonSchema } from "@holdfast/api/holdfast/v1/error_reason_pb";
import { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { type ErrorReasonName, HoldfastError, invalidField } from "@holdfast/server/domain/errors";
import { codeOfReason, errorInterceptor, toConnectError, toRequestError } from "@holdfast/server/rpc/errors";
import { describe, expect, test } from "vitest";

interface Logged {
  readonly err: unknown;
  readonly request_id: string;
}

function recordingLog(): { readonly entries: Logged[]; readonly error: (fields: object) => void } {
  const entries: Logged[] = [];
  return { entries, error: (fields) => void entries.push(fields as Logged) };
}

/** What a client sees when the handler throws `thrown`. */
async function overTheWire(thrown: unknown, log = recordingLog()): Promise<ConnectError> {
  const transport = createRouterTransport(
    ({ service }) =>
      service(SpendControlService, {
        voidSpend: () => {
          throw thrown;
        },
      }),
    { router: { interceptors: [errorInterceptor(log)] } },
  );
  return await createClient(SpendControlService, transport)
    .voidSpend({})
    .then(
      () => expect.fail("the call was not refused"),
      (error: unknown) => ConnectError.from(error),
    );
}

describe("the table of reasons", () => {
  test("has the code that the contract states for every reason", () => {
    const text = readFileSync(new URL("../../proto/holdfast/v1/error_reason.proto", import.meta.url), "utf8");
    const stated = new Map<string, string>();
    for (const [, code, reason] of text.matchAll(/\/\/ ([A-Z_]+)\. [^\n]*\n\s*ERROR_REASON_([A-Z_]+) = /g)) {
      stated.set(reason as string, code as string);
    }
    const reasons = ErrorReasonSchema.values.filter((value) => value.number !== 0);
    expect(Object.keys(codeOfReason)).toEqual(reasons.map((value) => value.name.replace("ERROR_REASON_", "")));
    for (const [reason, code] of Object.entries(codeOfReason)) {
      const name = Code[code].replace(/(?<=[a-z])(?=[A-Z])/g, "_").toUpperCase();
      expect(name, reason).toBe(stated.get(reason));
    }
  });
});

describe("what leaves the server", () => {
  test("a refusal carries its code, message, reason and metadata", async () => {
    const error = await overTheWire(
      new HoldfastError("SPEND_MISMATCH", "The spend is live with another amount.", {
        metadata: { fields: "spend.amount" },
      }),
    );
    expect(error.code).toBe(Code.FailedPrecondition);
    expect(error.rawMessage).toBe("The spend is live with another amount.");
    expect(error.findDetails(ErrorInfoSchema)).toMatchObject([
      { domain: "holdfast", reason: "SPEND_MISMATCH", metadata: { fields: "spend.amount" } },
    ]);
    expect(error.findDetails(RetryInfoSchema)).toEqual([]);
    expect(error.findDetails(BadRequestSchema)).toEqual([]);
  });

  test("a refusal with a waiting time says when to try again", async () => {
    const error = await overTheWire(new HoldfastError("QUEUE_FULL", "The queue is full.", { retryAfterMs: 1_500 }));
    expect(error.code).toBe(Code.ResourceExhausted);
    expect(error.findDetails(RetryInfoSchema)).toMatchObject([{ retryDelay: { seconds: 1n, nanos: 500_000_000 } }]);
  });

  test("a refused field is listed as a violation", async () => {
    const error = await overTheWire(invalidField("spend.amount", "must be greater than zero."));
    expect(error.code).toBe(Code.InvalidArgument);
    expect(error.rawMessage).toBe("spend.amount: must be greater than zero.");
    expect(error.findDetails(BadRequestSchema)).toMatchObject([
      { fieldViolations: [{ field: "spend.amount", description: "must be greater than zero." }] },
    ]);
  });

  test("a defect shows nothing but a request id, under which the log has the cause", async () => {
    const log = recordingLog();
    const cause = new Error("select * from holdfast.spend where secret");
    const error = await overTheWire(cause, log);
    expect(error.code).toBe(Code.Internal);
    expect(error.rawMessage).toBe("internal error");
    const [info] = error.findDetails(ErrorInfoSchema);
    expect(info).toMatchObject({ reason: "INTERNAL", domain: "holdfast" });
    expect(log.entries).toEqual([{ err: cause, request_id: info?.metadata["request_id"] }]);
    expect(JSON.stringify([error.message, error.details])).not.toContain("select");
  });

  test("anything can be thrown", async () => {
    for (const thrown of [undefined, null, "text", 7, { code: 3 }]) {
      expect((await overTheWire(thrown)).code).toBe(Code.Internal);
    }
  });

  test("a ConnectError passes as it is", async () => {
    const error = await overTheWire(new ConnectError("no such service", Code.NotFound));
    expect(error.code).toBe(Code.NotFound);
    expect(error.rawMessage).toBe("no such service");
  });

  test("after an abort the reason of the abort is the answer, not its echo", () => {
    const log = recordingLog();
    const deadline = AbortSignal.abort(new ConnectError("the operation timed out", Code.DeadlineExceeded));
    expect(toConnectError(new Error("query was cancelled"), log, deadline).code).toBe(Code.DeadlineExceeded);
    expect(toConnectError(new Error("socket closed"), log, AbortSignal.abort()).code).toBe(Code.Canceled);
    expect(log.entries).toEqual([]);
  });

  test("an outcome that is unknown stays unknown after an abort", () => {
    const error = new HoldfastError("OUTCOME_UNKNOWN", "The database did not answer. Repeat the call unchanged.");
    const translated = toConnectError(error, recordingLog(), AbortSignal.abort());
    expect(translated.code).toBe(Code.Unavailable);
  });
});

describe("an item of a batch", () => {
  test("has the same code, reason and metadata as a call of its own", () => {
    const refusal = new HoldfastError("QUEUE_FULL", "The queue is full.", {
      retryAfterMs: 250,
      metadata: { queue: "commit" },
    });
    expect(toRequestError(refusal, recordingLog())).toMatchObject({
      code: 8,
      reason: "QUEUE_FULL" satisfies ErrorReasonName,
      message: "The queue is full.",
      metadata: { queue: "commit" },
      retryDelay: { seconds: 0n, nanos: 250_000_000 },
    });
  });

  test("hides a defect", () => {
    const log = recordingLog();
    const error = toRequestError(new TypeError("x is not a function"), log);
    expect(error).toMatchObject({ code: 13, reason: "INTERNAL", message: "internal error" });
    expect(log.entries[0]?.request_id).toBe(error.metadata["request_id"]);
  });
});
