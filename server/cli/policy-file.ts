import { readFileSync } from "node:fs";
import { parsePolicyDocument, PolicyDocumentError } from "../domain/policy-document.ts";
import { policyDocumentRequest } from "../rpc/policy-document.ts";
import { CommandError } from "./exit-codes.ts";

/** The request that makes the vault key of a policy document in a file. Throws a CommandError that names every problem. */
export function policyFileRequest(file: string, vaultKeyId: string): ReturnType<typeof policyDocumentRequest> {
  let text: string;
  try {
    text = readFileSync(file, "utf8");
  } catch (error) {
    throw new CommandError("usage", `--policy names ${file}, which cannot be read.`, error);
  }
  try {
    return policyDocumentRequest(parsePolicyDocument(text, BigInt(Date.now()) * 1000n), vaultKeyId);
  } catch (error) {
    if (!(error instanceof PolicyDocumentError)) throw error;
    throw new CommandError("usage", `${file} is no policy:\n${error.message}`, error);
  }
}
