/** The charts of the page, and their series. */

import { duration, number, percent } from "./format.js";
import { color, gpuColor } from "./theme.js";
import { durationTicks, numberTicks, percentTicks } from "./ticks.js";

/**
 * @typedef {import("./chart.js").Panel} Panel
 * @typedef {import("./timeline.js").Row} Row
 */

/**
 * @param {import("./timeline.js").Timeline} timeline
 * @param {import("./sizes.js").Sizes} sizes
 * @returns {Record<string, Panel>}
 */
export function panels(timeline, sizes) {
  return {
    requests: { ...single("Requests per second", "requestsPerS", "series-1"), hasNoTimes: true },
    tokens: { ...single("Tokens per second", "tokensPerS", "series-2"), hasNoTimes: true },
    batch: {
      title: "Batch sizes, stacked",
      format: number,
      ticks: numberTicks,
      series: () => timeline.uuids.map((uuid, index, { length }) => ({ label: timeline.names.of(uuid), color: gpuColor(index, length) })),
      columns: (rows) => batchSizes(rows, timeline.uuids),
      isStacked: true,
      hasMarks: true,
      limit: (row) => row.uuids.reduce((sum, uuid) => sum + sizes.batch(uuid), 0),
      top: 4,
    },
    queue: { ...single("Requests that wait", "queue", "series-3"), top: 4 },
    firstToken: percentiles("Time to first token", "firstToken"),
    interToken: percentiles("Time between tokens", "interToken"),
    kvCache: {
      title: "KvCache in use",
      format: percent,
      ticks: percentTicks,
      series: () => [
        { label: "all", color: color("series-1"), isFilled: true },
        { label: "fullest GPU", color: color("series-3") },
      ],
      columns: (rows) => kvCacheUse(rows, sizes),
      top: 0.1,
    },
  };
}

/**
 * @param {string} title
 * @param {"requestsPerS" | "tokensPerS" | "queue"} key
 * @param {string} colorName
 * @returns {Panel}
 */
function single(title, key, colorName) {
  return {
    title,
    format: number,
    ticks: numberTicks,
    series: () => [{ label: "", color: color(colorName), isFilled: true }],
    columns: (rows) => [rows.map((row) => row[key])],
    hasMarks: true,
  };
}

/** @param {string} title @param {"firstToken" | "interToken"} key @returns {Panel} */
function percentiles(title, key) {
  const names = /** @type {const} */ (["p50", "p90", "p99"]);
  return {
    title,
    format: duration,
    ticks: durationTicks,
    series: () => names.map((name, index) => ({ label: name, color: color(`percentile-${index + 1}`) })),
    columns: (rows) => names.map((name) => rows.map((row) => row[key]?.[name] ?? null)),
    top: 0.001,
  };
}

/** @param {Row[]} rows @param {string[]} uuids */
function batchSizes(rows, uuids) {
  const columns = uuids.map(() => /** @type {(number | null)[]} */ (new Array(rows.length).fill(null)));
  const indexOf = new Map(uuids.map((uuid, index) => [uuid, index]));
  /** @type {string[] | null} */
  let known = null;
  /** @type {number[]} */
  let places = [];
  rows.forEach((row, at) => {
    if (row.uuids !== known) {
      known = row.uuids;
      places = row.uuids.map((uuid) => indexOf.get(uuid) ?? -1);
    }
    places.forEach((place, index) => {
      if (place >= 0) columns[place][at] = row.batch[index];
    });
  });
  return columns;
}

/** @param {Row[]} rows @param {import("./sizes.js").Sizes} sizes */
function kvCacheUse(rows, sizes) {
  /** @type {(number | null)[]} */
  const all = [];
  /** @type {(number | null)[]} */
  const fullest = [];
  for (const row of rows) {
    let [used, total, most] = [0, 0, 0];
    row.uuids.forEach((uuid, index) => {
      const num = sizes.pages(uuid);
      if (!num) return;
      used += row.usedPages[index];
      total += num;
      most = Math.max(most, row.usedPages[index] / num);
    });
    all.push(total ? used / total : null);
    fullest.push(total ? most : null);
  }
  return [all, fullest];
}
