import { create } from "@bufbuild/protobuf";
import type { Duration } from "@bufbuild/protobuf/wkt";
import {
  CreateOperatorResponseSchema,
  ListOperatorsResponseSchema,
  type Operator,
  OperatorRole,
  OperatorSchema,
  RotateOperatorResponseSchema,
} from "@holdfast/api/holdfast/v1/operator_pb";
import type { Command } from "commander";
import { choice, parseCount, parseDuration, resourceName } from "./arguments.ts";
import { type CommandContext, type ListFlags, listPages, printMore } from "./command.ts";
import { printToken } from "./keys.ts";
import { type Output, printFields, printJson, printTable, timeText, wordOf } from "./output.ts";

const roles = { operator: OperatorRole.OPERATOR, auditor: OperatorRole.AUDITOR } as const;

export function operatorCommands(program: Command, context: CommandContext): void {
  const operators = program.command("operators").description("who may change and who may read");
  operators
    .command("list")
    .description("operators and auditors by id")
    .option("--limit <rows>", "how many to show", parseCount, 50)
    .action((flags: ListFlags) => list(context, flags));
  operators
    .command("create <operator>")
    .description("a new operator or auditor; the token is shown once")
    .requiredOption("--role <role>", Object.keys(roles).join(", "), choice(roles))
    .action(async (operatorId: string, { role }: { role: OperatorRole }) => {
      const answer = await context.connection().admin.createOperator({ operatorId, role });
      const output = context.output();
      if (output.json) return printJson(output, CreateOperatorResponseSchema, answer);
      printOperator(output, answer.operator);
      printToken(output, answer.token);
    });
  operators
    .command("rotate <operator>")
    .description("a new token; the present one goes on to open for a while")
    .option("--overlap <time>", 'how long, for example "1h"', parseDuration)
    .action(async (operator: string, { overlap }: { overlap?: Duration }) => {
      const name = resourceName("operators", operator);
      const answer = await context.connection().admin.rotateOperator({
        name,
        ...(overlap === undefined ? {} : { overlap }),
      });
      const output = context.output();
      if (output.json) return printJson(output, RotateOperatorResponseSchema, answer);
      printOperator(output, answer.operator);
      printToken(output, answer.token);
    });
  operators
    .command("revoke <operator>")
    .description("take every right away, for ever")
    .requiredOption("--reason <text>", "why, for the audit")
    .action(async (operator: string, { reason }: { reason: string }) => {
      const request = { name: resourceName("operators", operator), reason };
      printOperator(context.output(), (await context.connection().admin.revokeOperator(request)).operator);
    });
}

async function list(context: CommandContext, flags: ListFlags): Promise<void> {
  const { admin } = context.connection();
  const output = context.output();
  const { rows, nextPageToken } = await listPages(flags.limit, async (page) => {
    const answer = await admin.listOperators(page);
    return { rows: answer.operators, nextPageToken: answer.nextPageToken };
  });
  if (output.json) {
    const all = create(ListOperatorsResponseSchema, { operators: [...rows], nextPageToken });
    return printJson(output, ListOperatorsResponseSchema, all);
  }
  printTable(
    output,
    [
      { title: "OPERATOR", of: ({ name }) => name.slice("operators/".length) },
      { title: "ROLE", of: ({ role }) => wordOf(OperatorRole, role).toLowerCase() },
      { title: "CREATED", of: ({ createTime }) => timeText(createTime).slice(0, 10) },
      { title: "REVOKED", of: ({ revokeTime }) => timeText(revokeTime).slice(0, 10) },
    ],
    rows,
  );
  printMore(output, nextPageToken, flags.limit);
}

function printOperator(output: Output, operator: Operator | undefined): void {
  if (operator === undefined) return;
  if (output.json) return printJson(output, OperatorSchema, operator);
  printFields(output, [
    ["operator", operator.name],
    ["role", wordOf(OperatorRole, operator.role).toLowerCase()],
    ["created", timeText(operator.createTime)],
    ["rotated", timeText(operator.rotateTime)],
    ["old token until", timeText(operator.previousSecretExpireTime)],
    ["revoked", timeText(operator.revokeTime)],
    ["reason", operator.revokeReason],
  ]);
}
