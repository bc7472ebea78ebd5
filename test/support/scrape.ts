/** One line of Prometheus' text format. */
export interface Sample {
  readonly name: string;
  readonly labels: Readonly<Record<string, string>>;
  readonly value: number;
}

/** What a server shows Prometheus. */
export interface Scrape {
  readonly text: string;
  readonly samples: readonly Sample[];
  readonly names: ReadonlySet<string>;
  /** Sum over the series with these labels; undefined without any. */
  value(name: string, labels?: Readonly<Record<string, string>>): number | undefined;
}

/** Scrapes a server's metrics. Throws on a line that is not of the format, and on a series that comes twice. */
export async function scrape(url: string | undefined): Promise<Scrape> {
  const response = await fetch(url ?? "");
  const text = await response.text();
  if (response.status !== 200) throw new Error(`${response.status} ${text}`);
  return readScrape(text);
}

export function readScrape(text: string): Scrape {
  const lines = text.split("\n").filter((line) => line !== "" && !line.startsWith("#"));
  const samples = lines.map(readSample);
  const series = samples.map(
    ({ name, labels }) =>
      `${name} ${JSON.stringify(Object.entries(labels).toSorted(([a], [b]) => a.localeCompare(b)))}`,
  );
  const twice = [...Map.groupBy(series, (one) => one)].find(([, same]) => same.length > 1);
  if (twice !== undefined) throw new Error(`a series comes twice: ${twice[0]}`);
  return {
    text,
    samples,
    names: new Set(samples.map(({ name }) => name)),
    value(name, wanted = {}) {
      const fitting = samples.filter(
        (one) => one.name === name && Object.entries(wanted).every(([key, value]) => one.labels[key] === value),
      );
      return fitting.length === 0 ? undefined : fitting.reduce((sum, { value }) => sum + value, 0);
    },
  };
}

function readSample(line: string): Sample {
  const match = /^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$/.exec(line);
  const [, name, text = "", value] = match ?? [];
  if (name === undefined) throw new Error(`not a line of the format: ${line}`);
  const labels: Record<string, string> = {};
  const rest = text.replaceAll(/([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)",?/g, (_, key: string, of: string) => {
    labels[key] = of;
    return "";
  });
  if (rest !== "") throw new Error(`not a line of the format: ${line}`);
  return { name, labels, value: Number(value) };
}
