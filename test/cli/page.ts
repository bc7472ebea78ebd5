/** The calls of a page, by its headings. */
export interface Section {
  readonly title: string;
  /** The lines of its shell blocks that call a server, in order. */
  readonly calls: readonly string[];
}

const block = /^```(\w+)\n([\s\S]*?)^```$/gm;

export function blocksOf(text: string, language: string): readonly string[] {
  return [...text.matchAll(block)].flatMap(([, found, body = ""]) => (found === language ? [body] : []));
}

export function sectionsOf(page: string): readonly Section[] {
  return page.split(/^## /m).map((part) => {
    const [title = ""] = part.split("\n");
    const lines = blocksOf(part, "sh").flatMap((body) => body.split("\n"));
    return { title, calls: lines.filter((line) => /^(npx holdfast |call \w+ |echo .*\| npx holdfast )/.test(line)) };
  });
}

/** The two ways in which the page defines `call`. */
export function definitionsOf(page: string): readonly string[] {
  return blocksOf(page, "sh").flatMap((body) => body.split("\n").filter((line) => line.startsWith("call() ")));
}
