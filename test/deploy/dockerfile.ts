import { readFileSync } from "node:fs";
import { cp, mkdir, readdir } from "node:fs/promises";
import { dirname, join, relative } from "node:path";

/** One instruction of a Dockerfile, with the lines that belong to it joined. */
export interface Instruction {
  readonly name: string;
  readonly flags: Readonly<Record<string, string>>;
  readonly text: string;
}

export interface Stage {
  readonly image: string;
  readonly name: string | undefined;
  readonly instructions: readonly Instruction[];
}

export function parseDockerfile(text: string): readonly Stage[] {
  const stages: { image: string; name: string | undefined; instructions: Instruction[] }[] = [];
  const lines = text.split("\n").filter((line) => !line.trimStart().startsWith("#"));
  for (const line of lines.join("\n").replaceAll("\\\n", " ").split("\n")) {
    const [, name = "", rest = ""] = /^(\S+)\s+(.*)$/.exec(line.trim()) ?? [];
    if (name === "") continue;
    if (name === "FROM") {
      const [image = "", as, stage] = rest.split(/\s+/);
      stages.push({ image, name: as === "AS" ? stage : undefined, instructions: [] });
      continue;
    }
    const current = stages.at(-1);
    if (current === undefined) throw new Error(`${name} stands before the first FROM.`);
    current.instructions.push(instruction(name, rest));
  }
  return stages;
}

function instruction(name: string, rest: string): Instruction {
  const flags: Record<string, string> = {};
  let text = rest;
  for (let found = flag(text); found !== null; found = flag(text)) {
    flags[found[1] ?? ""] = found[2] ?? "";
    text = text.slice(found[0].length);
  }
  return { name, flags, text };
}

const flag = (text: string) => /^--([a-z-]+)=(\S+)\s+/.exec(text);

/** The words of `["a", "b"]`; a shell's form is refused. */
export function execForm(text: string): readonly string[] {
  if (!text.startsWith("[")) throw new Error(`"${text}" is not in the exec form and would need a shell.`);
  return JSON.parse(text) as string[];
}

/** Whether a file of the context, by its path from there, is left out of it. The last pattern that fits decides. */
export function readIgnore(file: string): (path: string) => boolean {
  const rules = readFileSync(file, "utf8")
    .split("\n")
    .map((line) => line.trim())
    .filter((line) => line !== "" && !line.startsWith("#"))
    .map((line) => ({ keeps: line.startsWith("!"), pattern: patternOf(line.replace(/^!/, "")) }));
  return (path) => {
    const parts = path.split("/");
    const upTo = parts.map((_, n) => parts.slice(0, n + 1).join("/"));
    return rules.reduce(
      (ignored, { keeps, pattern }) => (upTo.some((one) => pattern.test(one)) ? !keeps : ignored),
      false,
    );
  };
}

function patternOf(glob: string): RegExp {
  const body = glob
    .replace(/^\/|\/$/g, "")
    .replaceAll(/[.+^${}()|[\]\\]/g, "\\$&")
    .replaceAll("**/", "\0")
    .replaceAll("*", "[^/]*")
    .replaceAll("?", "[^/]")
    .replaceAll("\0", "(?:.*/)?");
  return new RegExp(`^${body}$`);
}

/** What a container of the last stage is started with. */
export interface Image {
  /** The root file system, without that of the base image. */
  readonly root: string;
  readonly workdir: string;
  readonly env: Readonly<Record<string, string>>;
  readonly user: string;
  readonly entrypoint: readonly string[];
  readonly command: readonly string[];
  readonly healthcheck: readonly string[];
}

export interface BuildOptions {
  readonly dockerfile: string;
  /** The folder that COPY takes from. */
  readonly context: string;
  /** An empty folder; every stage gets one of its own in it. */
  readonly folder: string;
  /** Carries out a RUN in a folder that stands for the stage's working one. */
  readonly run: (
    command: readonly string[],
    place: { readonly cwd: string; readonly env: Readonly<Record<string, string>> },
  ) => Promise<void>;
}

interface Building {
  readonly root: string;
  workdir: string;
  user: string;
  readonly env: Record<string, string>;
  readonly words: Record<string, readonly string[]>;
}

/** Does what the Dockerfile says in plain folders, one per stage. Of what it does not know it says so. */
export async function build(options: BuildOptions): Promise<Image> {
  const stages = new Map<string, Building>();
  let last: Building | undefined;
  for (const [index, stage] of parseDockerfile(readFileSync(options.dockerfile, "utf8")).entries()) {
    const root = join(options.folder, stage.name ?? `stage-${index}`);
    await mkdir(root, { recursive: true });
    last = { root, workdir: "/", user: "0:0", env: {}, words: {} };
    stages.set(stage.name ?? `${index}`, last);
    for (const one of stage.instructions) await carryOut(one, last, { ...options, stages });
  }
  if (last === undefined) throw new Error("The Dockerfile has no stage.");
  const { root, workdir, env, user, words } = last;
  const { ENTRYPOINT: entrypoint = [], CMD: command = [], HEALTHCHECK: healthcheck = [] } = words;
  return { root, workdir, env, user, entrypoint, command, healthcheck };
}

async function carryOut(
  { name, flags, text }: Instruction,
  stage: Building,
  options: BuildOptions & { readonly stages: ReadonlyMap<string, Building> },
): Promise<void> {
  switch (name) {
    case "ENV": {
      const [, variable = "", value = ""] = /^([A-Z_]+)=(\S*)$/.exec(text) ?? [];
      stage.env[variable] = value;
      return;
    }
    case "WORKDIR":
      stage.workdir = text;
      await mkdir(join(stage.root, text), { recursive: true });
      return;
    case "USER":
      stage.user = text;
      return;
    case "COPY":
      await copy(
        text.split(/\s+/),
        stage,
        flags["from"] === undefined ? undefined : options.stages.get(flags["from"]),
        {
          ...options,
        },
      );
      return;
    case "RUN":
      await options.run(execForm(text), { cwd: join(stage.root, stage.workdir), env: stage.env });
      return;
    case "ENTRYPOINT":
    case "CMD":
      stage.words[name] = execForm(text);
      return;
    case "HEALTHCHECK":
      stage.words[name] = execForm(text.replace(/^CMD\s+/, ""));
      return;
    case "EXPOSE":
    case "STOPSIGNAL":
      return;
    default:
      throw new Error(`${name} is not known here.`);
  }
}

async function copy(
  words: readonly string[],
  stage: Building,
  from: Building | undefined,
  { context, dockerfile }: Pick<BuildOptions, "context" | "dockerfile">,
): Promise<void> {
  const to = words.at(-1) ?? "";
  const target = to.startsWith("/") ? join(stage.root, to) : join(stage.root, stage.workdir, to);
  const ignored = readIgnore(join(dirname(dockerfile), "../.dockerignore"));
  for (const source of words.slice(0, -1)) {
    if (from !== undefined) {
      await cp(join(from.root, source), target, { recursive: true, verbatimSymlinks: true });
      continue;
    }
    const entry = (await readdir(dirname(join(context, source)), { withFileTypes: true })).find(
      ({ name }) => name === source.split("/").at(-1),
    );
    if (entry === undefined || ignored(source)) throw new Error(`COPY ${source}: it is not in the context.`);
    const isFolder = entry.isDirectory();
    const place = isFolder ? target : join(target, entry.name);
    await cp(join(context, source), to.endsWith("/") || isFolder ? place : target, {
      recursive: true,
      filter: (path) => !ignored(relative(context, path)),
    });
  }
}
