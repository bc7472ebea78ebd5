import { createRouterTransport } from "@connectrpc/connect";
import { Disposition } from "@holdfast/api/holdfast/v1/spend_pb";
import { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { SpendAlreadyCommittedError, SpendAlreadyFailedError, SpendInDoubtError } from "@holdfast/sdk";
import { afterAll, beforeAll, expect, test } from "vitest";
import { PAYMENT, SPEND, startWorld, type World } from "./setup.ts";

let world: World;
beforeAll(async () => {
  world = await startWorld();
});
afterAll(() => world.close());

/** A server whose spend belongs to another vault key: it answers the disposition and nothing more. */
function stripeFor(disposition: Disposition) {
  const transport = createRouterTransport(({ service }) => {
    service(SpendControlService, { authorizeSpend: () => ({ disposition }) });
  });
  return world.stripe({ transport });
}

test("a spend that another vault key committed is told so, with no vendor call", async () => {
  const call = stripeFor(Disposition.ALREADY_COMMITTED).paymentIntents.create(PAYMENT, { spend: SPEND });
  const error = await call.catch((thrown: unknown) => thrown);
  expect(error).toBeInstanceOf(SpendAlreadyCommittedError);
  expect(error).toMatchObject({ vendorReference: undefined, message: expect.stringContaining("another vault key") });
  expect(world.posts()).toEqual([]);
});

test("a spend that failed under another vault key is told so, without a generation to try again with", async () => {
  const call = stripeFor(Disposition.ALREADY_FAILED).paymentIntents.create(PAYMENT, { spend: SPEND });
  const error = await call.catch((thrown: unknown) => thrown);
  expect(error).toBeInstanceOf(SpendAlreadyFailedError);
  expect(error).toMatchObject({ retryAfterGeneration: 0, message: expect.stringContaining("use that key") });
  expect(world.posts()).toEqual([]);
});

test("a spend that another vault key left in doubt is in doubt for everybody", async () => {
  const call = stripeFor(Disposition.IN_DOUBT).paymentIntents.create(PAYMENT, { spend: SPEND });
  await expect(call).rejects.toBeInstanceOf(SpendInDoubtError);
  expect(world.posts()).toEqual([]);
});
