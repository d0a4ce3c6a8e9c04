/** Labels of an axis: each says exactly what its tick is, so 7.5 % is not 8 %. */

/** Decimals that an increment needs. @param {number} increment */
function decimals(increment) {
  for (let count = 0; count < 6; count++) {
    const scaled = increment * 10 ** count;
    if (Math.abs(scaled - Math.round(scaled)) < 1e-6 * scaled) return count;
  }
  return 6;
}

/** @param {number[]} ticks @param {number} increment @param {number} unit @param {string} suffix */
function labels(ticks, increment, unit, suffix) {
  const count = decimals(increment / unit);
  return ticks.map((tick) => (tick === 0 ? "0" : `${(tick / unit).toFixed(count)}${suffix}`));
}

/** @typedef {(ticks: number[], increment: number) => string[]} Ticks */

/** @type {Ticks} */
export function numberTicks(ticks, increment) {
  const highest = Math.max(...ticks);
  const [unit, suffix] = highest >= 1e6 ? [1e6, " M"] : highest >= 1e4 ? [1e3, " k"] : [1, ""];
  return labels(ticks, increment, Number(unit), String(suffix));
}

/** Labels of seconds. @type {Ticks} */
export function durationTicks(ticks, increment) {
  return Math.max(...ticks) < 1 ? labels(ticks, increment, 1e-3, " ms") : labels(ticks, increment, 1, " s");
}

/** Labels of shares. @type {Ticks} */
export function percentTicks(ticks, increment) {
  return labels(ticks, increment, 1e-2, " %");
}
