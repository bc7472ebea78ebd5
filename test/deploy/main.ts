import { runImage } from "./image-run.ts";

// `npm run deploy:check`: deploy/Dockerfile as it stands, with its npm ci from the registry, without a container engine.

const { refused, migrated, health, served } = await runImage("npm ci", (line) => process.stdout.write(`${line} …\n`));
const good = [
  ["refuses clear text on an open address", refused.code === 78],
  ["migrates", migrated.code === 0],
  ["answers its health check", health.code === 0],
  ["stops by SIGTERM with 0", served.code === 0],
  ["writes to no file", !/ERR_ACCESS_DENIED|EACCES|EROFS/.test(served.output)],
] as const;
for (const [what, holds] of good) process.stdout.write(`${holds ? "ok    " : "FAILED"}  ${what}\n`);
if (good.some(([, holds]) => !holds)) {
  for (const { output } of [refused, migrated, health, served]) process.stdout.write(output);
  process.exitCode = 1;
}
