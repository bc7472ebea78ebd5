import { spawn } from "node:child_process";
import { text } from "node:stream/consumers";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { StartupError } from "../../server/startup-error.ts";
import { createWorkspace, workspaceReport } from "../../server/workspace-command.ts";
import { readConfig } from "../../server/config.ts";
import { startTestServer, type TestServer } from "../support/server.ts";

let server: TestServer;
beforeAll(async () => {
  server = await startTestServer();
});
afterAll(() => server.close());

function create(workspace: string | undefined): Promise<string> {
  const config = { ...readConfig({}, []), alteredClock: "allowed" as const };
  return createWorkspace(config, workspace, { connection: server.database.connection, fsyncOff: "allowed" });
}

describe("workspace create", () => {
  test("makes a workspace whose operator's token opens on a server that is running already", async () => {
    const token = await create("fresh");
    expect(token).toMatch(/^op_fresh_root_[A-Za-z0-9]{43}$/);
    const admin = server.adminAs(token);
    expect((await admin.listOperators({})).operators.map((one) => one.name)).toEqual(["operators/root"]);
    const { auditEvents } = await admin.listAuditEvents({ newestFirst: true });
    expect(auditEvents.map((one) => one.kind)).toEqual(["workspace.created"]);
    expect((await admin.listVaultKeys({})).vaultKeys).toEqual([]);
    const { rows } = await server.database.pool.query<{ text: string }>(
      "select o::text as text from holdfast.operators o",
    );
    expect(JSON.stringify(rows)).not.toContain(token.split("_")[3]);
    expect(workspaceReport("fresh", token)).toContain(token);
  });

  test("refuses one that exists, and changes nothing of it", async () => {
    const token = await create("twice");
    await expect(create("twice")).rejects.toThrow(StartupError);
    await expect(create("default")).rejects.toThrow("exists; nothing was changed");
    expect((await server.adminAs(token).listOperators({})).operators).toHaveLength(1);
  });

  test("made twice at once is made once", async () => {
    const made = await Promise.allSettled([create("race"), create("race"), create("race")]);
    expect(made.filter((one) => one.status === "fulfilled")).toHaveLength(1);
  });

  test.each(["", "Upper", "a_b", "a-b", "a".repeat(33), "ü", undefined])("refuses the id %s", async (id) => {
    await expect(create(id)).rejects.toMatchObject({ exitCode: 64 });
  });

  test("is refused by the program without an id or with another word", async () => {
    for (const args of [
      ["workspace"],
      ["workspace", "create"],
      ["workspace", "drop", "x"],
      ["workspace", "create", "a", "b"],
    ]) {
      const child = spawn(process.execPath, ["--conditions=holdfast-source", "server/main.ts", ...args]);
      const [err, code] = await Promise.all([text(child.stderr), new Promise((resolve) => child.on("close", resolve))]);
      expect(code, args.join(" ")).toBe(64);
      expect(err).toContain("workspace create");
    }
  });
});
