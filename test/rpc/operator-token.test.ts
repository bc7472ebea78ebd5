import { Code, ConnectError, createClient, type Interceptor } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-node";
import { AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import { expect, test } from "vitest";
import { startApp } from "../../server/app.ts";
import { readConfig } from "../../server/config.ts";
import { createTestDatabase } from "../support/postgres.ts";

/** An operator's client with that token. */
function admin(url: string, token: string) {
  const authorize: Interceptor = (next) => (request) => {
    request.header.set("authorization", `Bearer ${token}`);
    return next(request);
  };
  return createClient(
    AdminService,
    createConnectTransport({ baseUrl: url, httpVersion: "1.1", interceptors: [authorize] }),
  );
}

test.each([32, 43, 48, 128])(
  "an operator token with a secret of %s characters from the settings works",
  async (length) => {
    const database = await createTestDatabase();
    const token = `op_default_root_${"Ab3".repeat(length).slice(0, length)}`;
    const settings = { HOLDFAST_OPERATOR_TOKEN: token, HOLDFAST_PORT: "0", HOLDFAST_LOG_LEVEL: "silent" };
    const app = await startApp(readConfig(settings, []), { connection: database.connection, fsyncOff: "allowed" });
    try {
      expect((await admin(app.url, token).listCaps({})).caps).toEqual([]);
      const wrong = admin(app.url, `${token.slice(0, -1)}0`).listCaps({});
      await expect(wrong).rejects.toSatisfy(
        (error) => error instanceof ConnectError && error.code === Code.Unauthenticated,
      );
    } finally {
      await app.close();
      await database.close();
    }
  },
);
