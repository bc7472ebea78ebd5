import { create } from "@bufbuild/protobuf";
import type { ServiceImpl } from "@connectrpc/connect";
import { type AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import {
  type KillSwitch as KillSwitchMessage,
  KillSwitchSchema,
  type KillSwitchTarget as KillSwitchTargetMessage,
} from "@holdfast/api/holdfast/v1/kill_switch_pb";
import { HoldfastError, invalidField } from "../domain/errors.ts";
import type { KillSwitch, KillSwitchTarget } from "../domain/kill-switch.ts";
import type { Database } from "../store/database.ts";
import { type ExposureFilter, readExposure } from "../store/exposure.ts";
import * as store from "../store/kill-switch.ts";
import type { ChangePolicy } from "../store/policy.ts";
import { principalOf } from "./auth.ts";
import { timestampMessage } from "./convert.ts";
import { exposureFields, exposureMax } from "./exposure.ts";
import { cutPage, decodePageToken, pageSize } from "./page.ts";
import { currentTraceId } from "./trace.ts";

type KillSwitchMethods = Pick<
  ServiceImpl<typeof AdminService>,
  "engageKillSwitch" | "releaseKillSwitch" | "listKillSwitches"
>;

/** Stopping a vendor, a customer or the workspace. `random` returns that many random bytes. */
export function killSwitchMethods(
  database: Database,
  changePolicy: ChangePolicy,
  random: (size: number) => Uint8Array,
): KillSwitchMethods {
  return {
    async engageKillSwitch(request, context) {
      const principal = principalOf(context.values);
      const { workspace, id: engagedBy } = principal;
      const target = targetFrom(request.target);
      const { reason } = request;
      // Nothing of the target is in the name: it is shown to whoever is denied.
      const killSwitchId = Buffer.from(random(16)).toString("hex");
      const detail = { kill_switch: killSwitchId, target, reason };
      const event = { principal, kind: "kill_switch.engaged", traceId: currentTraceId() ?? "", detail };
      const engaged = await changePolicy(event, async (transaction, audit) => {
        const made = { killSwitchId, target, reason, engagedBy };
        const { killSwitch, isNew } = await store.engageKillSwitch(transaction, workspace, made);
        if (!isNew) audit.unchanged();
        return killSwitch;
      });
      // Read after the change: no grant can be added any more, so this is the whole exposure.
      const exposure = await readExposure(database, workspace, stoppedBy(target), exposureMax);
      return { killSwitch: killSwitchMessage(engaged), ...exposureFields(exposure) };
    },
    async releaseKillSwitch(request, context) {
      const principal = principalOf(context.values);
      const { workspace, id: by } = principal;
      const killSwitchId = killSwitchIdOf(request.name);
      const { reason } = request;
      const detail = { kill_switch: killSwitchId, reason };
      const event = { principal, kind: "kill_switch.released", traceId: currentTraceId() ?? "", detail };
      const released = await changePolicy(event, async (transaction, audit) => {
        const changed = await store.releaseKillSwitch(transaction, workspace, killSwitchId, { by, reason });
        if (changed === undefined) audit.unchanged();
        else audit.detail({ target: changed.target });
        const after = changed ?? (await store.getKillSwitch(transaction, workspace, killSwitchId));
        if (after === undefined) throw notFound(request.name);
        return after;
      });
      return { killSwitch: killSwitchMessage(released) };
    },
    async listKillSwitches(request, context) {
      const { workspace } = principalOf(context.values);
      const size = pageSize(request.pageSize);
      const rows = await store.listKillSwitches(database, workspace, {
        includeReleased: request.includeReleased,
        after: afterFrom(request.pageToken),
        limit: size + 1,
      });
      const page = cutPage("kill_switches", rows, size, (last) => [`${last.engageTime}`, last.killSwitchId]);
      return { killSwitches: page.rows.map(killSwitchMessage), nextPageToken: page.nextPageToken };
    },
  };
}

function targetFrom(message: KillSwitchTargetMessage | undefined): KillSwitchTarget {
  const target = message?.target;
  switch (target?.case) {
    case "vendor":
      return { kind: "VENDOR", vendor: target.value };
    case "customerId":
      return { kind: "CUSTOMER", customerId: target.value };
    case "workspace":
      return { kind: "WORKSPACE" };
    default:
      throw invalidField("target", "is required: set one of vendor, customer_id, workspace.");
  }
}

function targetMessage(target: KillSwitchTarget) {
  switch (target.kind) {
    case "VENDOR":
      return { case: "vendor" as const, value: target.vendor };
    case "CUSTOMER":
      return { case: "customerId" as const, value: target.customerId };
    case "WORKSPACE":
      return { case: "workspace" as const, value: true };
  }
}

function stoppedBy(target: KillSwitchTarget): ExposureFilter {
  if (target.kind === "VENDOR") return { vendor: target.vendor };
  return target.kind === "CUSTOMER" ? { customerId: target.customerId } : {};
}

function killSwitchIdOf(name: string): string {
  const match = /^killSwitches\/([0-9a-f]{32})$/.exec(name);
  if (match === null) throw invalidField("name", "must be a resource name as EngageKillSwitch returned it.");
  return match[1] as string;
}

function notFound(name: string): HoldfastError {
  return new HoldfastError("NOT_FOUND", `There is no kill switch ${name}. ListKillSwitches shows which there are.`, {
    metadata: { name },
  });
}

function afterFrom(token: string): store.KillSwitchFilter["after"] {
  const parts = decodePageToken("kill_switches", token, 2);
  if (parts === undefined) return undefined;
  const [engageTime = "", killSwitchId = ""] = parts;
  if (!/^\d{1,18}$/.test(engageTime) || !/^[0-9a-f]{32}$/.test(killSwitchId)) {
    throw invalidField("page_token", "is not one of ours; take next_page_token of the page before, or leave it empty.");
  }
  return { engageTime: BigInt(engageTime), killSwitchId };
}

function killSwitchMessage(killSwitch: KillSwitch): KillSwitchMessage {
  const { release } = killSwitch;
  return create(KillSwitchSchema, {
    name: `killSwitches/${killSwitch.killSwitchId}`,
    target: { target: targetMessage(killSwitch.target) },
    reason: killSwitch.reason,
    engageTime: timestampMessage(killSwitch.engageTime),
    engagedBy: `operators/${killSwitch.engagedBy}`,
    ...(release === undefined
      ? {}
      : {
          releaseTime: timestampMessage(release.time),
          releasedBy: `operators/${release.by}`,
          releaseReason: release.reason,
        }),
  });
}
