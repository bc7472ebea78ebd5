import { expect, test } from "vitest";
import { startApp } from "../../server/app.ts";
import { charge, proxyConfig, startProxyWorld } from "./world.ts";

test("what was not written down of a flood of refusals is counted when the server is closed", async () => {
  const world = await startProxyWorld();
  try {
    const token = await world.key("flood");
    const app = await startApp(proxyConfig(world.simulator.url), {
      connection: world.server.database.connection,
      fsyncOff: "allowed",
    });
    const asked = 60;
    try {
      await Promise.all(
        Array.from({ length: asked }, () =>
          fetch(`${app.stripeProxyUrl}/v1/charges`, {
            method: "POST",
            headers: { authorization: `Bearer ${token}` },
            body: new URLSearchParams(charge),
          }).then((response) => response.text()),
        ),
      );
    } finally {
      await app.close();
    }
    const events = (await world.events()).filter(({ disposition }) => disposition === "REFUSED");
    const suppressed = events.reduce((sum, { detail }) => sum + Number(detail["suppressed"] ?? 0), 0);
    const rest = events.filter(({ reason }) => reason === "refusals_not_recorded").length;
    expect(events.length - rest + suppressed).toBe(asked);
    expect(rest).toBeLessThanOrEqual(1);
  } finally {
    await world.close();
  }
});

test("an amount that cannot be charged is not repeated in the refusal", async () => {
  const world = await startProxyWorld();
  try {
    const token = await world.key("amount");
    const answer = await world.ask("POST", "/v1/charges", {
      token,
      fields: { ...charge, amount: "9007199254740993" },
      headers: { "idempotency-key": "1" },
    });
    expect(answer.status).toBe(403);
    expect(answer.body.error.message).toMatch(/has no usable amount\./);
  } finally {
    await world.close();
  }
});
