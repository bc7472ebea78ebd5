const words = new Set(
  (
    "and or unless by without on ignoring group_left group_right bool offset sum min max avg count bottomk topk rate irate " +
    "increase histogram_quantile absent clamp_min label_values vector scalar time"
  ).split(" "),
);

/** The names of the metrics that an expression of Prometheus reads: what is neither a word of the language nor a label. */
export function metricsOf(expression: string): string[] {
  const bare = expression
    .replaceAll(/"(?:[^"\\]|\\.)*"/g, '""')
    // Grafana's variables stand for durations and names of labels' values.
    .replaceAll(/\$\w+|\$\{\w+\}/g, "")
    .replaceAll(/\boffset\s+\w+/g, " ")
    .replaceAll(/\{[^}]*\}|\[[^\]]*\]/g, " ")
    .replaceAll(/\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)/g, " ");
  const found = bare.match(/[a-zA-Z_:][a-zA-Z0-9_:]*/g) ?? [];
  return [...new Set(found.filter((name) => !words.has(name)))];
}

/** The labels that an expression selects or groups by. */
export function labelsOf(expression: string): string[] {
  const bare = expression.replaceAll(/"(?:[^"\\]|\\.)*"/g, '""');
  const selected = [...bare.matchAll(/\{([^}]*)\}/g)].flatMap(
    ([, inside = ""]) => inside.match(/\w+(?=\s*[=!])/g) ?? [],
  );
  const grouped = [...bare.matchAll(/\b(?:by|without|on|ignoring)\s*\(([^)]*)\)/g)].flatMap(
    ([, inside = ""]) => inside.match(/\w+/g) ?? [],
  );
  return [...new Set([...selected, ...grouped])];
}
