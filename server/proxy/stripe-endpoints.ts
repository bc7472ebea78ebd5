import { stripeReads, stripeWrites } from "./stripe-reads.ts";
import { addTemplate, addWords, createTemplates, findTemplate } from "./template.ts";

const known = [...stripeReads, ...stripeWrites];
const templates = createTemplates();
for (const endpoint of known) addTemplate(templates, endpoint);
// A word that one method has is no id for another: what Stripe would make of it is not known.
for (const method of ["GET", "POST", "DELETE"]) {
  for (const endpoint of known) addWords(templates, `${method} ${endpoint.slice(endpoint.indexOf("/"))}`);
}

/** The endpoint of Stripe that a method and a path mean, for example "GET /v1/charges/:id"; undefined for any other. */
export function findEndpoint(method: string, path: string): string | undefined {
  return findTemplate(templates, method, path);
}
