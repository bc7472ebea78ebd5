// A segment is a parameter, or literal: letters, digits, _, - and ., and never first a dot. So "." and ".." are none,
// and nothing that a URL parser would decode, resolve or cut off: no %, \, ;, #, ?, no empty segment, no NUL.
const canonical = /^(?:GET|POST|PUT|PATCH|DELETE) (?:\/(?::[A-Za-z][A-Za-z0-9_]*|[A-Za-z0-9_-][A-Za-z0-9_.-]*))+$/;

const lengthMax = 256;

/**
 * Whether a text is a method, one space and a canonical path or path template, for example "POST /v1/charges" or
 * "GET /v1/charges/:id". The contract refuses every other one before anything is decided by it.
 */
export function isEndpoint(text: string): boolean {
  return text.length <= lengthMax && canonical.test(text);
}

/**
 * Whether a policy allows an endpoint: one template has the same method and the same number of segments, each equal byte
 * for byte, or a parameter that matches any one segment. What is not canonical is allowed by nothing. The grant decides
 * by `holdfast.endpoint_allowed`, which says the same of every canonical endpoint; this is for whoever has to know before.
 */
export function endpointAllowed(templates: readonly string[], endpoint: string): boolean {
  if (!isEndpoint(endpoint)) return false;
  const given = endpoint.split("/");
  return templates.some((template) => {
    const wanted = template.split("/");
    return (
      wanted.length === given.length && wanted.every((segment, i) => segment === given[i] || segment.startsWith(":"))
    );
  });
}
