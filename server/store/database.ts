import { SpanKind, SpanStatusCode, trace } from "@opentelemetry/api";
import type { QueryResult, QueryResultRow } from "pg";

const tracer = trace.getTracer("holdfast");

/** A pool or a checked-out client. */
export interface Database {
  query<Row extends QueryResultRow>(query: {
    name?: string;
    text: string;
    values: unknown[];
  }): Promise<QueryResult<Row>>;
}

/** One SQL statement of the store: static text, prepared under its name. */
export interface Statement {
  readonly name: string;
  readonly text: string;
}

const statements = new Map<string, Statement>();

/** Declares a statement. The name is its leading comment too, so that pg_stat_statements shows it. */
export function statement(name: string, text: string): Statement {
  if (statements.has(name)) throw new Error(`statement ${name} is declared twice`);
  const declared = { name, text: `/* ${name} */ ${text.trim()}` };
  statements.set(name, declared);
  return declared;
}

/** Every declared statement, for the test that prepares each against a migrated database. */
export function declaredStatements(): readonly Statement[] {
  return [...statements.values()];
}

/** Runs a statement in a span of its own and returns its rows. The span never carries values. */
export async function run<Row extends QueryResultRow>(
  database: Database,
  { name, text }: Statement,
  values: unknown[],
): Promise<Row[]> {
  const attributes = { "db.system.name": "postgresql", "db.query.summary": name };
  return await tracer.startActiveSpan(`postgresql ${name}`, { kind: SpanKind.CLIENT, attributes }, async (span) => {
    try {
      const result = await database.query<Row>({ name, text, values });
      return result.rows;
    } catch (error) {
      span.setStatus({ code: SpanStatusCode.ERROR });
      throw error;
    } finally {
      span.end();
    }
  });
}
