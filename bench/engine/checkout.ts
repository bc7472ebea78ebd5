import { join } from "node:path";
import { pathToFileURL } from "node:url";

/** The checkout that this bench belongs to. */
export const ownRoot = join(import.meta.dirname, "../..");

/** A module of a checkout, for example "server/queues.ts". `Module` is what this checkout's has. */
export async function moduleOf<Module>(root: string, file: string): Promise<Module> {
  return (await import(pathToFileURL(join(root, file)).href)) as Module;
}
