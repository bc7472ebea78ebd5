import fc from "fast-check";

export const small = (below: number): fc.Arbitrary<number> => fc.nat({ max: below - 1 });
export const often = <T>(usual: T, ...rest: T[]): fc.Arbitrary<T> =>
  fc.oneof({ weight: 3 * rest.length + 3, arbitrary: fc.constant(usual) }, ...rest.map((one) => fc.constant(one)));
/** As above, for policies: a history in which everything is denied shows nothing. */
export const mostly = <T>(usual: T, ...rest: T[]): fc.Arbitrary<T> =>
  fc.oneof({ weight: 20 * rest.length, arbitrary: fc.constant(usual) }, ...rest.map((one) => fc.constant(one)));
