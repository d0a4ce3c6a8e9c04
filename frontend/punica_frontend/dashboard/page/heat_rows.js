/** The heat map's rows, one for each GPU, and its columns, one for each second. This module draws nothing. */

import { GAP_S } from "./timeline.js";

/**
 * @typedef {import("./timeline.js").Row} Row
 * @typedef {"busiest" | "host"} Order
 */

/** The GPUs of these rows, in order. @param {Row[]} rows @param {import("./names.js").Names} names @param {Order} order */
export function orderedGpus(rows, names, order) {
  /** @type {Map<string, number>} */
  const sums = new Map();
  for (const row of rows) row.uuids.forEach((uuid, index) => sums.set(uuid, (sums.get(uuid) ?? 0) + row.batch[index]));
  const uuids = [...sums.keys()].sort((one, other) => names.compare(one, other));
  if (order === "busiest") uuids.sort((one, other) => (sums.get(other) ?? 0) - (sums.get(one) ?? 0));
  return uuids;
}

/**
 * The first second that a row of the timeline stands for. Rows come about once a second, so that some seconds have none:
 * the next row has them, unless it came after a gap.
 * @param {Row[]} rows @param {number} index
 */
function firstSecond(rows, index) {
  const [before, row] = [rows[index - 1], rows[index]];
  return before?.uuids.length && row.at <= before.at + GAP_S ? before.at + 1 : row.at;
}

/** The row of a second. @param {Row[]} rows @param {number} second */
export function rowOf(rows, second) {
  const index = rows.findIndex((row) => row.at >= second);
  return index >= 0 && firstSecond(rows, index) <= second ? rows[index] : undefined;
}

/**
 * Cells, row by row: an index of the ramp and 1, or 0 where the GPU was not there.
 * @param {Row[]} rows @param {string[]} uuids @param {number} from The first column's second. @param {number} numColumns
 * @param {(size: number, uuid: string) => number} step
 */
export function cellsOf(rows, uuids, from, numColumns, step) {
  const cells = new Uint8Array(uuids.length * numColumns);
  const placeOf = new Map(uuids.map((uuid, place) => [uuid, place]));
  /** @type {string[] | null} */
  let known = null;
  /** @type {number[]} */
  let places = [];
  rows.forEach((row, at) => {
    const begin = Math.max(firstSecond(rows, at) - from, 0);
    const end = Math.min(row.at - from, numColumns - 1);
    if (row.uuids !== known) {
      known = row.uuids;
      places = row.uuids.map((uuid) => placeOf.get(uuid) ?? -1);
    }
    places.forEach((place, index) => {
      if (place < 0 || begin > end) return;
      const cell = 1 + step(row.batch[index], row.uuids[index]);
      for (let column = begin; column <= end; column++) cells[place * numColumns + column] = cell;
    });
  });
  return cells;
}

/** How high a row is, so that all GPUs fit, and few are not lost. @param {number} numGpus @param {number} maxHeight */
export function rowHeight(numGpus, maxHeight) {
  const highest = numGpus <= 4 ? 48 : 26;
  return Math.max(6, Math.min(highest, Math.floor(maxHeight / Math.max(numGpus, 1))));
}

/** The rows that are named: with small ones every second, or third. @param {number} numGpus @param {number} height */
export function namedRows(numGpus, height) {
  const stride = Math.ceil(17 / height);
  return [...Array(numGpus).keys()].filter((place) => place % stride === 0);
}
