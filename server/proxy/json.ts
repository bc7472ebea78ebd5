import { isInborn } from "./form-name.ts";
import { refuse } from "./refusal.ts";

const depthMax = 32;
// Long texts are matched without a choice per character, which would need memory for each.
const tokenPattern = /"[^"\\]*(?:\\.[^"\\]*)*"|[{}[\],:]|-?[0-9][0-9.eE+-]*|true|false|null/g;
const textPattern = /^[\t\n\r -~\u00a0-\u{10ffff}]*$/u;
const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/**
 * Reads a JSON body, strictly: an object in valid UTF-8, no byte order mark, no member twice (whatever its case), no
 * number that JavaScript would change, no lone surrogate, no control character, at most 32 levels, and at the top no
 * member that is not in `closed`. Returns it written anew; refuses with 400 what two parsers could read differently.
 */
export function readJson(body: Uint8Array, closed: ReadonlySet<string> | undefined): string {
  let text: string;
  let value: unknown;
  try {
    text = utf8.decode(body);
    value = JSON.parse(text);
  } catch {
    throw malformed("Send JSON in UTF-8.");
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw malformed("Send a JSON object.");
  checkTokens(text);
  const unknown = closed === undefined ? undefined : Object.keys(value).find((name) => !closed.has(name));
  if (unknown !== undefined) {
    throw refuse(
      400,
      "unknown_parameter",
      "The request moves money, and Holdfast does not know one of its members. Leave it out, or see whether it is " +
        "spelled right.",
      /^[A-Za-z0-9_.-]{1,64}$/.test(unknown) ? unknown : undefined,
    );
  }
  return JSON.stringify(value);
}

/** The text is valid JSON, so its tokens are enough to see members that are repeated and numbers that are inexact. */
function checkTokens(text: string): void {
  const members: (Set<string> | undefined)[] = [];
  let previous = "";
  for (const [token] of text.matchAll(tokenPattern)) {
    if (token === "{" || token === "[") members.push(token === "{" ? new Set() : undefined);
    else if (token === "}" || token === "]") members.pop();
    else if (token === ":") addMember(previous, members.at(-1));
    else if (token.startsWith('"')) checkText(token);
    else if (/^-?[0-9]/.test(token) && String(Number(token)) !== token) {
      throw malformed("Write numbers plainly, and those that a double cannot hold as texts.");
    }
    if (members.length > depthMax) throw malformed(`Send at most ${depthMax} levels.`);
    previous = token;
  }
}

function addMember(token: string, names: Set<string> | undefined): void {
  const name = JSON.parse(token) as string;
  // Some readers do not tell cases apart.
  const folded = name.toLowerCase();
  if (names?.has(folded) === true) throw malformed("A member is sent twice; send each once.");
  if (isInborn(name) || name.includes("[") || name.includes("]")) throw malformed("A member's name is not allowed.");
  names?.add(folded);
}

function checkText(token: string): void {
  const text = JSON.parse(token) as string;
  if (!text.isWellFormed() || !textPattern.test(text)) {
    throw malformed("A text has half a character, or control characters.");
  }
}

function malformed(message: string): ReturnType<typeof refuse> {
  return refuse(400, "malformed_body", message);
}
