import { readFile } from "node:fs/promises";
import { fromJsonString, toJson } from "@bufbuild/protobuf";
import { CapSchema, CreateCapRequestSchema } from "@holdfast/api/holdfast/v1/cap_pb";
import { afterAll, beforeAll, expect, test } from "vitest";
import { startTestServer, type TestServer } from "../support/server.ts";

let server: TestServer;

beforeAll(async () => {
  server = await startTestServer();
});
afterAll(() => server.close());

const page = await readFile(new URL("../../docs/caps.md", import.meta.url), "utf8");
const examples = [...page.matchAll(/^\{"cap_id".*\}$/gm), ...page.matchAll(/(?<=^call CreateCap ').*(?='$)/gm)].map(
  ([text]) => text,
);

test("every example of the page on caps is a cap that can be made, and is shown with what it says", async () => {
  expect(examples.length).toBeGreaterThan(12);
  for (const example of examples) {
    const request = fromJsonString(CreateCapRequestSchema, example);
    const { cap } = await server.admin.createCap(request);
    if (cap === undefined) throw new Error("no cap");
    const { cap: said } = JSON.parse(example) as { cap: object };
    expect(toJson(CapSchema, cap, { useProtoFieldName: true }), example).toMatchObject(said);
    await server.admin.getCap({ name: `caps/${request.capId}` });
  }
});
