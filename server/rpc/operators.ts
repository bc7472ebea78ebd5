import { create } from "@bufbuild/protobuf";
import type { ServiceImpl } from "@connectrpc/connect";
import { type AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import {
  CreateOperatorRequestSchema,
  type Operator as OperatorMessage,
  OperatorRole as OperatorRoleMessage,
  OperatorSchema,
} from "@holdfast/api/holdfast/v1/operator_pb";
import { HoldfastError, invalidField } from "../domain/errors.ts";
import type { Operator, OperatorRole } from "../domain/operator.ts";
import type { Database } from "../store/database.ts";
import * as store from "../store/operator.ts";
import type { ChangePolicy } from "../store/policy.ts";
import { createToken, principalOf, tokenHash } from "./auth.ts";
import { timestampMessage } from "./convert.ts";
import { creationRequest, requireSameRequest } from "./creation-request.ts";
import { overlapMs } from "./overlap.ts";
import { cutPage, decodePageToken, pageSize } from "./page.ts";
import { currentTraceId } from "./trace.ts";

type OperatorMethods = Pick<
  ServiceImpl<typeof AdminService>,
  "createOperator" | "rotateOperator" | "revokeOperator" | "listOperators"
>;

const roleOf = {
  OPERATOR: OperatorRoleMessage.OPERATOR,
  AUDITOR: OperatorRoleMessage.AUDITOR,
} as const satisfies Record<OperatorRole, OperatorRoleMessage>;

/** Operators and auditors. `random` returns that many random bytes. */
export function operatorMethods(
  database: Database,
  changePolicy: ChangePolicy,
  random: (size: number) => Uint8Array,
): OperatorMethods {
  const eventOf = (principal: ReturnType<typeof principalOf>, kind: string, detail: object) => ({
    principal,
    kind,
    traceId: currentTraceId() ?? "",
    detail,
  });
  return {
    async createOperator(request, context) {
      const principal = principalOf(context.values);
      const { workspace } = principal;
      const { operatorId } = request;
      const role = roleFrom(request.role);
      const sent = creationRequest(CreateOperatorRequestSchema, request, request.requestId);
      const token = createToken("op", workspace, operatorId, random);
      const event = eventOf(principal, "operator.created", { operatorId, role });
      return await changePolicy(event, async (transaction, audit) => {
        const before =
          sent === undefined ? undefined : await store.findOperatorByRequest(transaction, workspace, sent.requestId);
        if (sent !== undefined && before !== undefined) {
          requireSameRequest(sent, before.sha256, `operators/${before.operator.operatorId}`);
          audit.unchanged();
          return { operator: operatorMessage(before.operator), token: "" };
        }
        const made = { operatorId, role, secretSha256: tokenHash(token) };
        return { operator: operatorMessage(await store.insertOperator(transaction, workspace, made, sent)), token };
      });
    },
    async rotateOperator(request, context) {
      const principal = principalOf(context.values);
      const { workspace } = principal;
      const operatorId = operatorIdOf(request.name);
      const token = createToken("op", workspace, operatorId, random);
      const change = { secretSha256: tokenHash(token), overlapMs: overlapMs(request.overlap) };
      const event = eventOf(principal, "operator.rotated", { operatorId, overlap_ms: change.overlapMs });
      const rotated = await changePolicy(event, async (transaction) => {
        const operator = await store.rotateOperator(transaction, workspace, operatorId, change);
        return operator ?? (await refuse(transaction, workspace, operatorId));
      });
      return { operator: operatorMessage(rotated), token };
    },
    async revokeOperator(request, context) {
      const principal = principalOf(context.values);
      const { workspace } = principal;
      const operatorId = operatorIdOf(request.name);
      const { reason } = request;
      const event = eventOf(principal, "operator.revoked", { operatorId, reason });
      const revoked = await changePolicy(event, async (transaction, audit) => {
        const operator = await store.revokeOperator(transaction, workspace, operatorId, reason);
        if (operator !== undefined) return operator;
        audit.unchanged();
        const before = await store.getOperator(transaction, workspace, operatorId);
        if (before?.revokeTime !== undefined) return before;
        return await refuse(transaction, workspace, operatorId);
      });
      return { operator: operatorMessage(revoked) };
    },
    async listOperators(request, context) {
      const { workspace } = principalOf(context.values);
      const size = pageSize(request.pageSize);
      const [after = ""] = decodePageToken("operators", request.pageToken, 1) ?? [];
      const rows = await store.listOperators(database, workspace, after, size + 1);
      const page = cutPage("operators", rows, size, (last) => [last.operatorId]);
      return { operators: page.rows.map(operatorMessage), nextPageToken: page.nextPageToken };
    },
  };
}

/** Says why nothing was changed. */
async function refuse(database: Database, workspace: string, operatorId: string): Promise<never> {
  const name = `operators/${operatorId}`;
  const operator = await store.getOperator(database, workspace, operatorId);
  if (operator === undefined) {
    throw new HoldfastError("NOT_FOUND", `There is no operator ${name}. ListOperators shows which there are.`, {
      metadata: { name },
    });
  }
  if (operator.revokeTime !== undefined) {
    throw new HoldfastError("STATE_NOT_ALLOWED", `The operator ${name} is revoked, and for ever; create another one.`, {
      metadata: { name, state: "REVOKED" },
    });
  }
  throw new HoldfastError(
    "STATE_NOT_ALLOWED",
    `The operator ${name} is the last one of this workspace that may change anything; create another one first.`,
    { metadata: { name, state: "LAST_OPERATOR" } },
  );
}

function roleFrom(role: OperatorRoleMessage): OperatorRole {
  const name = (Object.keys(roleOf) as OperatorRole[]).find((one) => roleOf[one] === role);
  if (name === undefined) throw invalidField("role", "must be OPERATOR_ROLE_OPERATOR or OPERATOR_ROLE_AUDITOR.");
  return name;
}

function operatorIdOf(name: string): string {
  const match = /^operators\/([a-z0-9]{1,32})$/.exec(name);
  if (match === null) throw invalidField("name", 'must be a resource name, for example "operators/alice".');
  return match[1] as string;
}

function operatorMessage(operator: Operator): OperatorMessage {
  const time = (name: string, micros: bigint | undefined) =>
    micros === undefined ? {} : { [name]: timestampMessage(micros) };
  return create(OperatorSchema, {
    name: `operators/${operator.operatorId}`,
    role: roleOf[operator.role],
    createTime: timestampMessage(operator.createTime),
    revokeReason: operator.revokeReason,
    ...time("rotateTime", operator.rotateTime),
    ...time("previousSecretExpireTime", operator.previousSecretExpireTime),
    ...time("revokeTime", operator.revokeTime),
  });
}
