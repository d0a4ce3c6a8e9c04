/**
 * The series of a chart as uPlot draws them: stacked or not.
 *
 * @typedef {import("./chart.js").Column} Column
 * @typedef {import("./chart.js").Panel} Panel
 * @typedef {import("./chart.js").Series} Series
 */

/**
 * The highest sums of a stack come first: each is filled down to zero, and those below it are painted over it. To clip
 * each to its band would cost several times as much.
 * @template T @param {T[]} ofSeries @param {Panel} panel
 */
export function inDrawingOrder(ofSeries, panel) {
  return panel.isStacked ? [...ofSeries].reverse() : ofSeries;
}

/** @param {Series} series @param {Panel} panel */
export function styled({ label, color, isFilled }, panel) {
  if (panel.isStacked) return { label, width: 0, fill: color, points: { show: false } };
  const fill = isFilled ? `color-mix(in oklab, ${color} 18%, transparent)` : undefined;
  return { label, stroke: color, width: 1.75, fill, points: { show: false } };
}

/** Sums from the first column on; where nothing is, nothing is added. @param {Column[]} columns */
export function stacked(columns) {
  /** @type {Column | null} */
  let below = null;
  return columns.map((column) => {
    const sums = column.map((value, row) => (value ?? 0) + (below?.[row] ?? 0));
    below = sums;
    return sums;
  });
}
