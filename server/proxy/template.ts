/** Endpoints by their segments. */
export interface Templates {
  readonly children: Map<string, Templates>;
  endpoint?: string;
}

export function createTemplates(): Templates {
  return { children: new Map() };
}

/** Adds a method and path template, for example "POST /v1/charges/:id/capture". */
export function addTemplate(templates: Templates, endpoint: string): void {
  addWords(templates, endpoint).endpoint = endpoint;
}

/** Makes the words of a template words where they stand, so that they are no ids there. */
export function addWords(templates: Templates, endpoint: string): Templates {
  let node = templates;
  for (const segment of endpoint.split(/ ?\//)) {
    const next = node.children.get(segment) ?? createTemplates();
    node.children.set(segment, next);
    node = next;
  }
  return node;
}

/** The endpoint of a path. A segment that is a word of the vendor's there is never an id: no two routers disagree. */
export function findTemplate(templates: Templates, method: string, path: string): string | undefined {
  let node = templates.children.get(method);
  for (const segment of path.slice(1).split("/")) {
    node = segment === "" || segment === ":id" ? undefined : (node?.children.get(segment) ?? node?.children.get(":id"));
  }
  return node?.endpoint;
}

/** What stands for each ":id" of a template in a path of it. */
export function idsIn(endpoint: string, path: string): string[] {
  const segments = path.split("/");
  return endpoint
    .slice(endpoint.indexOf("/"))
    .split("/")
    .flatMap((segment, at) => (segment === ":id" ? [segments[at] ?? ""] : []));
}

/** A template's path with ids in it. */
export function fillTemplate(endpoint: string, ids: readonly string[]): string {
  const left = [...ids];
  return endpoint.slice(endpoint.indexOf("/")).replaceAll(":id", () => left.shift() ?? "");
}
