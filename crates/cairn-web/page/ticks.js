// Round numbers for axes.

const UNITS_OF_TIME = [[3600e9, [1, 2, 3, 6, 12, 24, 48, 120, 240, 480]], [60e9, [1, 2, 5, 10, 15, 30]], [1e9, [1, 2, 5, 10, 20, 30]]];

/** Multiples of a step from 0 to at most `most`. */
function multiples(most, step) {
  const ticks = [];
  for (let i = 0; i * step <= most; i++) ticks.push(i * step);
  return ticks;
}

/** 1, 2 or 5 times a power of ten that divides a range into at most this many parts. */
function roundStep(most, parts) {
  const rough = most / Math.max(1, parts);
  const magnitude = 10 ** Math.floor(Math.log10(rough));
  const factor = [1, 2, 5, 10].find((factor) => factor * magnitude >= rough * (1 - 1e-9)) || 10;
  return factor * magnitude;
}

/** From 0 to at most `most`, in at most this many parts. */
export function roundTicks(most, parts) {
  // A tenth is no number of a computer: each tick is rounded to its digits.
  return most > 0 ? multiples(most, roundStep(most, parts)).map((tick) => Number(tick.toPrecision(12))) : [0];
}

/** Of bytes, which units of 1024 make round: powers of two of a unit, or tenths of bytes alone. */
export function byteTicks(most, parts) {
  if (!(most > 0)) return [0];
  const rough = most / Math.max(1, parts);
  if (most < 1000) return multiples(most, Math.max(1, roundStep(most, parts)));
  return multiples(most, 2 ** Math.ceil(Math.log2(rough) - 1e-9));
}

/** Of nanoseconds: minutes and hours are no powers of ten. */
export function timeTicks(most, parts) {
  if (!(most > 0)) return [0];
  const rough = most / Math.max(1, parts);
  if (most < 60e9) return roundTicks(most, parts);
  for (const [unit, factors] of [...UNITS_OF_TIME].reverse()) {
    const factor = factors.find((factor) => factor * unit >= rough * (1 - 1e-9));
    if (factor) return multiples(most, factor * unit);
  }
  return multiples(most, 3600e9 * Math.ceil(roundStep(most / 3600e9, parts)));
}
