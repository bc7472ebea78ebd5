// Preloaded into a process: its wall clock, and nothing else, is off by the milliseconds in SHIFTED_CLOCK_MS.
// Everything in JavaScript that reads the wall clock reads it here; timers and the monotonic clocks stay true.
const shiftMs = Number(process.env["SHIFTED_CLOCK_MS"]);
const RealDate = Date;

class ShiftedDate extends RealDate {
  constructor(...args: readonly unknown[]) {
    if (args.length === 0) super(RealDate.now() + shiftMs);
    else super(...(args as ConstructorParameters<typeof RealDate>));
  }

  static override now(): number {
    return RealDate.now() + shiftMs;
  }
}

globalThis.Date = ShiftedDate as DateConstructor;
