import { readdirSync, readFileSync } from "node:fs";

// Linux shows these times in hundredths of a second, whatever its own ticks are.
const msPerTick = 10;

/**
 * The processor time that a process and its children have used, those included that have ended, in milliseconds with
 * a resolution of ten. Undefined where there is no /proc.
 */
export function processCpuMs(pid: number): number | undefined {
  const own = statOf(pid);
  if (own === undefined) return undefined;
  const children = readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .map((name) => statOf(Number(name)))
    .filter((stat) => stat?.parent === pid);
  const living = children.reduce((sum, stat) => sum + (stat?.ticks ?? 0), 0);
  return (own.ticks + own.endedTicks + living) * msPerTick;
}

function statOf(pid: number): { parent: number; ticks: number; endedTicks: number } | undefined {
  let text: string;
  try {
    text = readFileSync(`/proc/${pid}/stat`, "utf8");
  } catch {
    return undefined;
  }
  // The name, in parentheses, may contain anything; from the state on there are numbers only.
  const fields = text
    .slice(text.lastIndexOf(")") + 2)
    .split(" ")
    .map(Number);
  const [, parent = 0] = fields;
  const [user = 0, system = 0, endedUser = 0, endedSystem = 0] = fields.slice(11, 15);
  return { parent, ticks: user + system, endedTicks: endedUser + endedSystem };
}
