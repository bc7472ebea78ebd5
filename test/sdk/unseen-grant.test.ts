import { Code } from "@connectrpc/connect";
import { AuthorizationState, VoidEvidence } from "@holdfast/api/holdfast/v1/spend_pb";
import { HoldfastUnavailableError, NotChargedError } from "@holdfast/sdk";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { failure } from "../support/fake-control-plane.ts";
import { rejection, SPEND, startWorld, type World } from "./setup.ts";

const MAIL = { amount: "0.0079", currency: "usd", vendor: "twilio", endpoint: "POST /Messages" };
const unsent = () => Promise.reject(new Error("sent"));
const mail = async () => ({ vendorReference: "SM1" });

let world: World;
beforeEach(async () => {
  world = await startWorld();
});
afterEach(() => world.close());

const voided = { state: AuthorizationState.VOIDED, voidEvidence: VoidEvidence.NEVER_SENT };

/** The next request for a grant is carried out without an answer, and those after it do not even arrive. */
function losesFirstAuthorize(): void {
  let reached = 0;
  world.plane.intercept = (rpc) => {
    if (rpc !== "authorize") return;
    reached += 1;
    if (reached > 1) throw failure(Code.Unavailable, "DATABASE_UNAVAILABLE");
  };
  world.plane.loseAnswers = (rpc) => rpc === "authorize" && reached === 1;
}

describe("a grant whose answer was lost until the deadline", () => {
  it("is found by its name and voided as never sent, and the spend is free again", async () => {
    losesFirstAuthorize();
    const holdfast = world.holdfast();
    expect(await rejection(holdfast.spend(SPEND, MAIL, unsent))).toBeInstanceOf(HoldfastUnavailableError);
    await expect.poll(() => world.plane.authorization()).toMatchObject(voided);
    world.plane.intercept = () => undefined;
    expect(await holdfast.spend(SPEND, MAIL, mail)).toMatchObject({ vendorReference: "SM1", alreadyCommitted: false });
  });

  it("of a later generation is found too", async () => {
    const holdfast = world.holdfast();
    await rejection(holdfast.spend(SPEND, MAIL, () => Promise.reject(new NotChargedError({ vendorStatus: 402 }))));
    losesFirstAuthorize();
    await rejection(holdfast.spend({ ...SPEND, retryAfterGeneration: 1 }, MAIL, unsent));
    await expect.poll(() => world.plane.authorization()).toMatchObject({ ...voided, generation: 2 });
  });

  it("is found behind generations that were not sent either", async () => {
    const holdfast = world.holdfast();
    for (let n = 0; n < 3; n += 1) {
      await rejection(holdfast.spend(SPEND, MAIL, () => Promise.reject(new NotChargedError())));
    }
    losesFirstAuthorize();
    await rejection(holdfast.spend(SPEND, MAIL, unsent));
    await expect.poll(() => world.plane.authorization()).toMatchObject({ ...voided, generation: 4 });
  });

  it("is in doubt where the server had told a repeat already, and keeps its headroom", async () => {
    world.plane.loseAnswers = (rpc) => rpc === "authorize";
    const holdfast = world.holdfast();
    await rejection(holdfast.spend(SPEND, MAIL, unsent));
    await expect.poll(() => world.plane.authorization().state).toBe(AuthorizationState.IN_DOUBT);
    expect(world.errors).toEqual([]);
  });

  it("of another attempt is left alone", async () => {
    const finish = Promise.withResolvers<void>();
    const first = world.holdfast().spend(SPEND, MAIL, async () => {
      await finish.promise;
      return mail();
    });
    await expect.poll(() => world.plane.names()).toContain("authorize");
    world.plane.loseAnswers = (rpc) => rpc === "authorize";
    const second = world.holdfast();
    await rejection(second.spend(SPEND, MAIL, unsent));
    await second.close();
    expect(world.plane.authorization().state).toBe(AuthorizationState.HELD);
    finish.resolve();
    expect((await first).alreadyCommitted).toBe(false);
  });

  it("is looked for a few times only where nothing was granted", async () => {
    world.plane.intercept = (rpc) => {
      if (rpc === "authorize") throw failure(Code.Unavailable, "DATABASE_UNAVAILABLE");
    };
    const holdfast = world.holdfast();
    await rejection(holdfast.spend(SPEND, MAIL, unsent));
    await expect.poll(() => world.plane.names().filter((rpc) => rpc === "get").length).toBe(5);
    expect(await holdfast.flush()).toBe(true);
    expect(world.plane.names()).not.toContain("void");
  });
});
