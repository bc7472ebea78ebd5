import type { Cell } from "./cell.ts";
import type { Played } from "./round.ts";

export function lineOf({ cell, violations, missed, ending }: Played): string {
  const verdict = violations.length > 0 ? "VIOLATION" : missed.length > 0 ? "missed" : "ok";
  return [`${verdict}  ${cell.name}: ${ending}`, ...[...violations, ...missed].map((one) => `    ${one}`)].join("\n");
}

/** What the cells of a round have in common. */
export function roundOf(played: readonly Played[]): string {
  const [cell] = played.map((one) => one.cell);
  const place = cell?.server === undefined ? "a process" : `a server, ${cell.server}`;
  return `${place}, ${cell?.action ?? "nothing"}`;
}

/** Every cell that cannot be, and why. */
export function impossibleList(cells: readonly Cell[]): string {
  return cells
    .flatMap(({ name, route }) => ("impossible" in route ? [`impossible  ${name}: ${route.impossible}`] : []))
    .join("\n");
}

/** Point × action: how many states were played, how many cannot be, and how many were violated. */
export function tableOf(cells: readonly Cell[], played: readonly Played[], actions: readonly string[]): string {
  const violated = new Set(played.filter(({ violations }) => violations.length > 0).map(({ cell }) => cell.name));
  const points = [...new Set(cells.map(pointOf))];
  const rows = points.map((point) => [
    point,
    ...actions.map((action) => {
      const some = cells.filter((cell) => pointOf(cell) === point && cell.action === action);
      const possible = some.filter(({ route }) => !("impossible" in route));
      const wrong = possible.filter(({ name }) => violated.has(name)).length;
      return `${possible.length}/${some.length}${wrong === 0 ? "" : ` !${wrong}`}`;
    }),
  ]);
  const lines = [["states played / all, by point", ...actions], ...rows];
  const widths = lines[0]?.map((_, column) => Math.max(...lines.map((line) => line[column]?.length ?? 0))) ?? [];
  return lines.map((line) => line.map((text, column) => text.padEnd(widths[column] ?? 0)).join("  ")).join("\n");
}

function pointOf({ flow, step, server }: Cell): string {
  const nth = (step.nth ?? 1) > 1 ? ` ${step.nth}` : "";
  return `${server === undefined ? "" : `server, ${server}: `}${flow.name}: ${step.name}${nth}`;
}
