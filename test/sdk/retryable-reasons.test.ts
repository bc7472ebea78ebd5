import { Code } from "@connectrpc/connect";
import { expect, test } from "vitest";
import { isRetryable, RpcFailure } from "../../sdk/rpc-failure.ts";
import { codeOfReason } from "../../server/rpc/errors.ts";

test("what the server calls temporary is tried again, and nothing else", () => {
  const retried = Object.entries(codeOfReason).flatMap(([reason, code]) =>
    isRetryable(new RpcFailure({ message: "", code, reason })) ? [reason] : [],
  );
  const temporary = Object.entries(codeOfReason).flatMap(([reason, code]) =>
    code === Code.Unavailable || code === Code.ResourceExhausted ? [reason] : [],
  );
  expect(new Set(retried)).toEqual(new Set(temporary));
  expect(retried).toContain("STORAGE_FULL");
});
